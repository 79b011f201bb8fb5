package engine

import (
	"fmt"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// check tries prop at least n times, and more often if -rapid.checks is above 100. Nothing in the
// arithmetic could race, so the race detector, under which it takes five times as long, gets a
// tenth; make test runs the laws without it too.
func check(t *testing.T, n int, prop func(*rapid.T)) {
	t.Helper()
	if raced {
		n /= 10
	}
	for round := 0; round < n && !t.Failed(); round += 100 {
		rapid.Check(t, prop)
	}
}

var algorithms = []Algorithm{SlidingWindow, FixedWindow, TokenBucket}

// each runs a test for each algorithm.
func each(t *testing.T, test func(t *testing.T, a Algorithm)) {
	t.Helper()
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			test(t, a)
		})
	}
}

// The generators lean towards the bounds: amounts of 1 and of a billion, windows of 100 ms and of 366 days.
var (
	genAmount = rapid.OneOf(rapid.Just[int64](1), rapid.Int64Range(1, 20), rapid.Int64Range(1, 20),
		rapid.Int64Range(1, MaxAmount), rapid.Just[int64](MaxAmount))
	genBurst    = rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(0, 20), rapid.Just[int64](MaxAmount))
	genDuration = rapid.OneOf(
		rapid.SampledFrom([]string{"100ms", "101ms", "500ms", "1s", "7s", "1m", "1h", "1d", "1w", "366d"}),
		rapid.Map(rapid.IntRange(100, 100_000), func(ms int) string { return fmt.Sprintf("%dms", ms) }))
	genPeriod = rapid.SampledFrom([]string{"minute", "hour", "day", "week", "month"})
	genZone   = rapid.SampledFrom(zones("Europe/Berlin", "America/New_York", "Australia/Lord_Howe",
		"America/Sao_Paulo", "Africa/Cairo", "Asia/Beirut", "America/Havana", "Atlantic/Azores", "Pacific/Apia",
		"America/St_Johns", "America/Santiago", "Australia/Adelaide", "Asia/Kathmandu", "Antarctica/Troll", "UTC"))
	// genInstant draws from 2000 to 2040.
	genInstant = rapid.Int64Range(946_684_800_000, 2_208_988_800_000)
)

func zones(names ...string) []*time.Location {
	all := make([]*time.Location, 0, len(names))
	for _, name := range names {
		zone, err := time.LoadLocation(name)
		if err != nil {
			panic(err)
		}
		all = append(all, zone)
	}
	return all
}

func genLimit(a Algorithm) *rapid.Generator[Limit] {
	return rapid.Custom(func(t *rapid.T) Limit {
		l := Limit{
			CounterID: CounterID{Key: "k", Name: "n"}, Algorithm: a,
			Limit: genAmount.Draw(t, "limit"), Threshold: -1,
		}
		text := ""
		switch a {
		case TokenBucket:
			l.Burst = genBurst.Draw(t, "burst")
		case FixedWindow:
			l.FirstUse = rapid.Bool().Draw(t, "first use")
			if rapid.IntRange(0, 3).Draw(t, "calendar") == 0 {
				text = genPeriod.Draw(t, "period")
				l.Zone = genZone.Draw(t, "zone")
			}
		}
		if text == "" {
			text = genDuration.Draw(t, "window")
		}
		var err error
		if l.Window, err = ParseWindow(text); err != nil {
			t.Fatal(err)
		}
		return l
	})
}

// op is one request of a random history.
type op struct {
	// after is how far the clock moved since the request before; it may step back.
	after int64
	verb  Verb
	cost  int64
}

// genOps draws a history for a limit: steps of time and costs at the edges of what it admits.
func genOps(l Limit, most int, verbs ...Verb) *rapid.Generator[[]op] {
	w := l.Window.Millis
	one := max(1, w/l.Limit)
	after := rapid.OneOf(
		rapid.Just[int64](0), rapid.Just[int64](1), rapid.Int64Range(0, 2*one), rapid.Int64Range(0, subBucketWidth(w)+1),
		rapid.Int64Range(0, w/4), rapid.Int64Range(w-2, w+2), rapid.Int64Range(w, w+subBucketWidth(w)+1),
		rapid.Int64Range(-w-1, 0), rapid.Just(30*w))
	top := min(l.capacity()+1, MaxAmount)
	cost := rapid.OneOf(
		rapid.Just[int64](1), rapid.Int64Range(1, min(3, top)), rapid.Int64Range(1, top/3+1),
		rapid.Int64Range(max(1, top/2), top))
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) op {
		return op{after.Draw(t, "after"), rapid.SampledFrom(verbs).Draw(t, "verb"), cost.Draw(t, "cost")}
	}), 1, most)
}

// history plays requests on one counter.
type history struct {
	limit Limit
	state State
	// now is the store's clock; latest is the latest it has shown, which is the time for the counter.
	now, latest int64
}

func (h *history) play(o op) Result {
	h.now += o.after
	h.latest = max(h.latest, h.now)
	return h.ask(o.verb, o.cost)
}

func (h *history) ask(v Verb, cost int64) Result {
	return decide(v, []Limit{h.limit}, []*State{&h.state}, h.now, cost).Results[0]
}

// stored returns the state as a store keeps it.
func stored(t failer, s *State) *State {
	var back State
	if err := back.Decode(s.Append(nil)); err != nil {
		t.Fatal(err)
	}
	return &back
}

type failer interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// later asks at another time, over a copy.
func (h *history) later(t failer, now int64, v Verb, cost int64) Result {
	return decide(v, []Limit{h.limit}, []*State{stored(t, &h.state)}, now, cost).Results[0]
}

// model is a reference implementation of the arithmetic: slower, and written differently.
type model interface {
	// at brings the model to a moment; the moments never run backwards.
	at(now int64)
	used() int64
	charge(cost int64)
	refund(cost int64)
	// fitsAt is when used will be low enough for cost; freeAt when nothing will be used. Both may
	// exceed every bound.
	fitsAt(cost int64) *big.Int
	freeAt() *big.Int
}

func newModel(l Limit) model {
	switch l.Algorithm {
	case FixedWindow:
		return &fixedModel{limit: l, sums: map[int64]int64{}}
	case TokenBucket:
		return &bucketModel{limit: l, level: big.NewRat(l.Limit+l.Burst, 1)}
	default:
		return &slidingModel{limit: l}
	}
}

// expect returns the model's answer.
func expect(m model, l Limit, now, latest int64, o op) Result {
	m.at(latest)
	r := Result{
		Key: l.Key, Name: l.Name, Policy: l.Policy, Window: l.Window.String(), Algorithm: l.Algorithm, FirstUse: l.FirstUse,
		Limit: l.Limit, Burst: l.Burst,
	}
	r.Allowed = o.verb == Refund || m.used()+o.cost <= l.capacity()
	switch {
	case o.verb == Refund:
		m.refund(o.cost)
	case o.verb == Record || o.verb == Consume && r.Allowed:
		m.charge(o.cost)
	}
	r.Used = m.used()
	r.Remaining = max(0, l.capacity()-m.used())
	r.ResetAt = now
	if m.used() > 0 {
		r.ResetAt = max(now, capped(m.freeAt()))
	}
	if !r.Allowed && o.cost <= l.capacity() {
		r.RetryAfter = max(1, capped(m.fitsAt(o.cost))-now)
	}
	return r
}

func capped(at *big.Int) int64 {
	if far := big.NewInt(farFuture); at.Cmp(far) > 0 {
		return farFuture
	}
	return at.Int64()
}

// fixedModel sums the charges of every window so far.
type fixedModel struct {
	limit Limit
	now   int64
	sums  map[int64]int64
	// begin and end are the window anchored at the first use.
	begin, end int64
}

func (m *fixedModel) at(now int64) {
	m.now = now
	if m.limit.FirstUse {
		if now >= m.end || m.sums[m.begin] == 0 {
			m.begin, m.end = m.limit.span(now)
		}
		return
	}
	m.begin, m.end = m.limit.span(now)
}

func (m *fixedModel) used() int64           { return m.sums[m.begin] }
func (m *fixedModel) charge(cost int64)     { m.sums[m.begin] += cost }
func (m *fixedModel) refund(cost int64)     { m.sums[m.begin] = max(0, m.sums[m.begin]-cost) }
func (m *fixedModel) fitsAt(int64) *big.Int { return big.NewInt(m.end) }
func (m *fixedModel) freeAt() *big.Int      { return big.NewInt(m.end) }

// slidingModel keeps every charge, with the moment at which its sub-bucket has left the window.
type slidingModel struct {
	limit   Limit
	now     int64
	charges []leaving
}

type leaving struct{ at, cost int64 }

func (m *slidingModel) at(now int64) { m.now = now }

func (m *slidingModel) usedAt(at int64) (sum int64) {
	for _, c := range m.charges {
		if c.at > at {
			sum += c.cost
		}
	}
	return sum
}

func (m *slidingModel) used() int64 { return m.usedAt(m.now) }

func (m *slidingModel) charge(cost int64) {
	width := (m.limit.Window.Millis + 59) / 60
	end := m.now - m.now%width + width
	m.charges = append(m.charges, leaving{end + m.limit.Window.Millis, cost})
}

func (m *slidingModel) refund(cost int64) {
	for i := range m.charges {
		if m.charges[i].at <= m.now {
			continue
		}
		back := min(cost, m.charges[i].cost)
		m.charges[i].cost -= back
		cost -= back
	}
}

func (m *slidingModel) fitsAt(cost int64) *big.Int {
	for _, c := range m.charges {
		if c.at > m.now && m.usedAt(c.at)+cost <= m.limit.Limit {
			return big.NewInt(c.at)
		}
	}
	return big.NewInt(m.now)
}

func (m *slidingModel) freeAt() *big.Int { return m.fitsAt(m.limit.Limit) }

// bucketModel keeps its level as an exact fraction.
type bucketModel struct {
	limit Limit
	now   int64
	level *big.Rat
}

func (m *bucketModel) rate() *big.Rat { return big.NewRat(m.limit.Limit, m.limit.Window.Millis) }

func (m *bucketModel) full() *big.Rat { return big.NewRat(m.limit.Limit+m.limit.Burst, 1) }

func (m *bucketModel) at(now int64) {
	if m.now != 0 {
		m.level.Add(m.level, new(big.Rat).Mul(m.rate(), big.NewRat(now-m.now, 1)))
	}
	m.now = now
	m.cap()
}

func (m *bucketModel) cap() {
	if m.level.Cmp(m.full()) > 0 {
		m.level = m.full()
	}
}

// used counts each token that is not whole.
func (m *bucketModel) used() int64 {
	return ceil(new(big.Rat).Sub(m.full(), m.level)).Int64()
}

func (m *bucketModel) charge(cost int64) { m.level.Sub(m.level, big.NewRat(cost, 1)) }

func (m *bucketModel) refund(cost int64) {
	m.level.Add(m.level, big.NewRat(cost, 1))
	m.cap()
}

func (m *bucketModel) fitsAt(cost int64) *big.Int {
	missing := new(big.Rat).Sub(big.NewRat(cost, 1), m.level)
	wait := ceil(missing.Quo(missing, m.rate()))
	return wait.Add(wait, big.NewInt(m.now))
}

func (m *bucketModel) freeAt() *big.Int { return m.fitsAt(m.limit.capacity()) }

func ceil(r *big.Rat) *big.Int {
	n := new(big.Int).Neg(r.Num())
	return n.Neg(n.Div(n, r.Denom())) // Div rounds down, whatever the sign
}
