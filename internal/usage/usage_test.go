package usage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed503877ad/limits/internal/engine"
)

// notebook is a store that records what it gets, or fails. What SQL does with it is tested on the
// real stores by package storetest.
type notebook struct {
	Store
	mu       sync.Mutex
	counts   []Count
	requests []Request
	err      error
	tries    int // of requests
	takes    time.Duration
	cutOff   int // writes of counts that were cut off
}

func (n *notebook) AddUsage(ctx context.Context, counts []Count) error {
	select {
	case <-ctx.Done():
		n.mu.Lock()
		defer n.mu.Unlock()
		n.cutOff++
		return ctx.Err()
	case <-time.After(n.takes):
	}
	for i := range len(counts) - 1 { // SQL cannot update a row twice in one statement, and workers lock rows in one order
		if compareCounts(counts[i], counts[i+1]) >= 0 {
			return fmt.Errorf("%+v before %+v", counts[i], counts[i+1])
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err == nil {
		n.counts = append(n.counts, counts...)
	}
	return n.err
}

func (n *notebook) AddRequests(_ context.Context, requests []Request) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tries++
	if n.err == nil {
		n.requests = append(n.requests, requests...)
	}
	return n.err
}

func (n *notebook) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err = err
}

func (n *notebook) written() []Count {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counts
}

// manyKeys is more keys than a test counts.
const manyKeys = 1 << 20

func record(t testing.TB, cfg Config) *Recorder {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Keys == 0 {
		cfg.Keys = manyKeys
	}
	r, err := NewRecorder(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// decided is a decision over limits that are named like keys. Limits with a "!" deny, those with
// "~" before it belong to a policy in shadow, and those with one more to another policy.
func decided(v engine.Verb, cost int64, keys ...string) (*engine.Request, *engine.Decision) {
	r, d := &engine.Request{Verb: v, Cost: cost}, &engine.Decision{Allowed: true}
	for _, key := range keys {
		key, spared := strings.CutSuffix(key, "!!")
		key, denied := strings.CutSuffix(key, "!")
		fits := !denied && !spared
		key, tildes, shadow := strings.Cut(key, "~")
		policy := "p"
		if shadow {
			policy = "s" + tildes
		}
		d.Allowed = d.Allowed && (fits || shadow)
		d.Shadow = d.Shadow || shadow && !fits
		r.Limits = append(r.Limits, engine.Limit{CounterID: engine.CounterID{Key: key}, User: "u"})
		d.Results = append(d.Results, engine.Result{Key: key, Policy: policy, Shadow: shadow, Allowed: fits, Spared: spared})
	}
	for i := range d.Results {
		res := &d.Results[i]
		res.Spared = res.Spared || res.Shadow && v == engine.Consume && slices.ContainsFunc(d.Results, func(other engine.Result) bool {
			return other.Policy == res.Policy && !other.Allowed
		})
	}
	d.Shadow = d.Shadow && d.Allowed
	return r, d
}

func inShadow(c Count) Count {
	c.Policy = "s"
	return c
}

func counted1(key string, at, allowed, denied, cost int64) Count {
	return Count{ID: ID{key, "p", "u"}, At: at, Allowed: allowed, Denied: denied, Cost: cost}
}

func TestTally(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verb engine.Verb
		keys []string
		want []Count
	}{
		"a consume":                        {engine.Consume, []string{"a"}, []Count{counted1("a", 7, 1, 0, 3)}},
		"a denial":                         {engine.Consume, []string{"a!"}, []Count{counted1("a", 7, 0, 1, 0)}},
		"a denial counts on who refused":   {engine.Consume, []string{"a", "b!"}, []Count{counted1("b", 7, 0, 1, 0)}},
		"two limits of one key count once": {engine.Consume, []string{"a", "a"}, []Count{counted1("a", 7, 1, 0, 3)}},
		"and are denied when one refuses":  {engine.Consume, []string{"a", "a!"}, []Count{counted1("a", 7, 0, 1, 0)}},
		"and once when both refuse":        {engine.Consume, []string{"a!", "a!"}, []Count{counted1("a", 7, 0, 1, 0)}},
		"one key in two policies counts in both": {engine.Consume, []string{"a", "a~"},
			[]Count{counted1("a", 7, 1, 0, 3), inShadow(counted1("a", 7, 1, 0, 3))}},
		"a check that passes":             {engine.Check, []string{"a"}, nil},
		"a check that is denied":          {engine.Check, []string{"a!"}, []Count{counted1("a", 7, 0, 1, 0)}},
		"a record past the limit":         {engine.Record, []string{"a!"}, []Count{counted1("a", 7, 0, 1, 3)}},
		"a record within the limit":       {engine.Record, []string{"a"}, []Count{counted1("a", 7, 1, 0, 3)}},
		"a record past one of two limits": {engine.Record, []string{"a", "b!"}, []Count{counted1("a", 7, 1, 0, 3), counted1("b", 7, 0, 1, 3)}},
		"and of one key counts once":      {engine.Record, []string{"a", "a!"}, []Count{counted1("a", 7, 0, 1, 3)}},
		"what refuses in shadow denies, and is charged nothing": {engine.Consume, []string{"a", "b~!"},
			[]Count{counted1("a", 7, 1, 0, 3), inShadow(counted1("b", 7, 0, 1, 0))}},
		"what fits beside it in shadow is charged nothing": {engine.Consume, []string{"a~", "b~!", "c"},
			[]Count{inShadow(counted1("b", 7, 0, 1, 0)), counted1("c", 7, 1, 0, 3)}},
		"what fits in shadow beside another policy's is charged": {engine.Consume, []string{"a~", "b~~!"},
			[]Count{inShadow(counted1("a", 7, 1, 0, 3)), {ID: ID{"b", "s~", "u"}, At: 7, Denied: 1}}},
		"what fits in shadow is charged":  {engine.Consume, []string{"a~"}, []Count{inShadow(counted1("a", 7, 1, 0, 3))}},
		"a check denied in shadow":        {engine.Check, []string{"a", "b~!"}, []Count{inShadow(counted1("b", 7, 0, 1, 0))}},
		"a record past a limit in shadow": {engine.Record, []string{"a~!"}, []Count{inShadow(counted1("a", 7, 0, 1, 3))}},
		"a record that shadow spares":     {engine.Record, []string{"a", "b~!!"}, []Count{counted1("a", 7, 1, 0, 3)}},
		"a denial beside one in shadow": {engine.Consume, []string{"a!", "b~!", "c~"},
			[]Count{counted1("a", 7, 0, 1, 0), inShadow(counted1("b", 7, 0, 1, 0))}},
		"a request to which no limit apply": {engine.Consume, nil, nil},
	} {
		for _, byRef := range []bool{false, true} {
			y := newTally()
			r, d := decided(c.verb, 3, c.keys...)
			for i := range r.Limits {
				if byRef {
					r.Limits[i].Ref = new(engine.Ref)
				}
			}
			y.add(r, d)
			for _, want := range [][]Count{c.want, nil} { // the second take gives nothing
				var got []Count
				y.take(7, func(c Count) { got = append(got, c) })
				slices.SortFunc(got, compareCounts)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s, by ref %v (-want +got):\n%s", name, byRef, diff)
				}
			}
		}
	}
}

// TestTallyIsBounded counts more keys than there is room for, every other one in a ref. Only their
// names are lost.
func TestTallyIsBounded(t *testing.T) {
	t.Parallel()
	r := &Recorder{tally: newTally(), ids: newCardinality(manyKeys), cfg: Config{Pending: 1 << 20}}
	const keys = 2 * tallyShards * shardIDs
	for i := range keys {
		q, d := decided(engine.Consume, 1, fmt.Sprint("key:", i))
		if i%2 == 0 {
			q.Limits[0].Ref = new(engine.Ref)
		}
		r.Tally(q, d)
	}
	r.takeCounts()
	var sum, other int64
	for _, c := range r.pending {
		sum += c.Allowed
		if c.ID == (ID{}) {
			other += c.Allowed
		}
	}
	if rows := len(r.pending); sum != keys || rows > tallyShards*shardIDs+1 || other == 0 || r.Losses().Other != other {
		t.Errorf("%d decisions in %d rows, %d without a name, of which %+v tells", sum, rows, other, r.Losses())
	}
}

func TestTallyDoesNotAllocate(t *testing.T) {
	y := newTally()
	r, d := decided(engine.Consume, 1, "api:user:123")
	add := func() { y.add(r, d) }
	into := func(Count) {}
	for range 2 { // so that both pages have the key
		add()
		y.take(0, into)
	}
	if n := testing.AllocsPerRun(1000, add); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTally(b *testing.B) {
	y := newTally()
	r, d := decided(engine.Consume, 1, "api:user:123")
	b.ReportAllocs()
	for b.Loop() {
		y.add(r, d)
	}
}

// TestCountsAreWrittenUnderTheirMinute: what happens in a minute is written under that minute,
// and a few counts are written within 5 seconds.
func TestCountsAreWrittenUnderTheirMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(notebook)
		r := record(t, Config{Store: s})
		minute := time.Now().Truncate(time.Minute)
		at := func(after time.Duration) {
			time.Sleep(time.Until(minute.Add(after)))
			r.Tally(decided(engine.Consume, 2, "a"))
		}
		at(61 * time.Second)
		at(119 * time.Second)
		at(121 * time.Second)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		one, two := minute.Add(time.Minute).UnixMilli(), minute.Add(2*time.Minute).UnixMilli()
		want := []Count{counted1("a", one, 1, 0, 2), counted1("a", one, 1, 0, 2), counted1("a", two, 1, 0, 2)}
		if diff := cmp.Diff(want, s.written()); diff != "" {
			t.Error(diff)
		}
		r.Tally(decided(engine.Consume, 2, "b")) // and what is left at Close
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := len(s.written()); n != 4 {
			t.Errorf("%d counts after Close", n)
		}
	})
}

// TestManyCountsAreWrittenLessOften: more than a few counts are only written at whole multiples
// of 15 seconds, unless they run out of room.
func TestManyCountsAreWrittenLessOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(notebook)
		r := record(t, Config{Store: s})
		time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(61 * time.Second)))
		tell := func(keys int) {
			for i := range keys {
				r.Tally(decided(engine.Consume, 1, fmt.Sprint("key:", i)))
			}
		}
		written := func(want int) {
			t.Helper()
			synctest.Wait()
			if n := len(s.written()); n != want {
				t.Errorf("%d counts were written, want %d", n, want)
			}
		}
		tell(fewKeys)
		time.Sleep(5 * time.Second)
		written(fewKeys)
		tell(fewKeys + 1)
		time.Sleep(5 * time.Second)
		written(fewKeys)
		time.Sleep(5 * time.Second)
		written(2*fewKeys + 1)
		before := len(s.written())
		tell(tallyShards * nearlyFull) // one shard has that many, and another may have too
		synctest.Wait()
		if len(s.written()) == before {
			t.Error("a full tally was not written")
		}
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		var sum int64
		for _, c := range s.written() {
			sum += c.Allowed
		}
		if want := int64(2*fewKeys + 1 + tallyShards*nearlyFull); sum != want {
			t.Errorf("%d decisions of %d", sum, want)
		}
	})
}

// TestStoreFails keeps what there is room for, and counts the rest as lost.
func TestStoreFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(notebook)
		s.fail(errors.New("away"))
		r := record(t, Config{Store: s, Queue: 3, Pending: 2})
		for i := range 10 {
			r.Log(Request{Key: fmt.Sprint(i)})
		}
		for _, key := range []string{"a", "b", "c", "c"} {
			r.Tally(decided(engine.Consume, 1, key))
		}
		time.Sleep(11 * time.Second)
		for i := range 10 { // the first three have left the queue by now, and it has room for three more
			r.Log(Request{Key: fmt.Sprint(i)})
		}
		time.Sleep(10 * time.Second)
		for range 10 {
			r.Log(Request{Key: "there is no room for any"})
		}
		time.Sleep(10 * time.Second)
		s.fail(nil)
		r.Malformed()
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := r.Losses()
		if got.Requests != 24 || got.Counts < 1 || got.Counts > 2 || got.Malformed != 1 {
			t.Errorf("%+v", got)
		}
		if len(s.requests) != 6 || len(s.counts) != 2 {
			t.Errorf("written: %v, %v", s.requests, s.counts)
		}
	})
}

// TestCommitUnknown writes nothing twice, and reports what is lost. After a write whose fate is
// unknown nothing more is written in that round, so that it is not lost as well.
func TestCommitUnknown(t *testing.T) {
	t.Parallel()
	const more = 7
	for what, tell := range map[string]func(r *Recorder, i int){
		"counts":   func(r *Recorder, i int) { r.Tally(decided(engine.Consume, 1, fmt.Sprint("key:", i, "!"))) },
		"requests": func(r *Recorder, i int) { r.Log(Request{Key: fmt.Sprint("key:", i)}) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := new(notebook)
				s.fail(engine.ErrCommitUnknown)
				var log bytes.Buffer
				r := record(t, Config{Store: s, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				for i := range writeRows + more {
					tell(r, i)
				}
				time.Sleep(5 * time.Second)
				synctest.Wait()
				s.fail(nil)
				if err := r.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				lost, written := r.Losses(), len(s.counts)+len(s.requests)
				if lost.Counts+lost.Requests != writeRows || written != more {
					t.Errorf("of %d %+v are lost and %d written", writeRows+more, lost, written)
				}
				if text := log.String(); !strings.Contains(text, "is dropped rather than counted twice") {
					t.Errorf("the log does not say that it is dropped: %s", text)
				}
			})
		})
	}
}

// TestConcurrentRecording is for the race detector: many goroutines record while one writes, and
// nothing is lost.
func TestConcurrentRecording(t *testing.T) {
	t.Parallel()
	s := new(notebook)
	r := record(t, Config{Store: s, Every: time.Millisecond})
	var told sync.WaitGroup
	const tellers, each = 8, 2000
	for w := range tellers {
		told.Go(func() {
			for i := range each {
				r.Tally(decided(engine.Consume, 1, fmt.Sprint("key:", (w+i)%100)))
			}
		})
	}
	told.Wait()
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, c := range s.written() {
		sum += c.Allowed
	}
	if sum != tellers*each {
		t.Errorf("%d of %d", sum, tellers*each)
	}
}

// TestTallyByRef counts while counts are taken. No count is lost or doubled, even if nothing
// follows on the same limit.
func TestTallyByRef(t *testing.T) {
	t.Parallel()
	y := newTally()
	var sum Count
	take := func() { y.take(7, func(c Count) { sum.add(&c) }) }
	const tellers, refs, each = 2, 50_000, 3
	var counting sync.WaitGroup
	for range tellers {
		counting.Go(func() {
			r, d := decided(engine.Consume, 3, "a")
			denied, denial := decided(engine.Consume, 3, "a!")
			for range refs {
				ref := new(engine.Ref)
				r.Limits[0].Ref, denied.Limits[0].Ref = ref, ref
				for range each {
					y.add(r, d)
					y.add(denied, denial)
				}
			}
		})
	}
	var ended atomic.Bool
	go func() { counting.Wait(); ended.Store(true) }()
	for !ended.Load() {
		take()
	}
	take()
	const all = tellers * refs * each
	if diff := cmp.Diff(Count{Allowed: all, Denied: all, Cost: 3 * all}, sum); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestTheOldestMinuteIsWrittenFirst: if there is too little time or room, the newest waits or is
// lost.
func TestTheOldestMinuteIsWrittenFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(notebook)
		s.fail(errors.New("the store is away"))
		r := record(t, Config{Store: s})
		minute := time.Now().Truncate(time.Minute)
		time.Sleep(time.Second)
		for _, key := range []string{"b", "a"} {
			for range 2 { // they are taken separately, and written as one
				r.Tally(decided(engine.Consume, 1, "c", key))
				r.Tally(decided(engine.Consume, 1, "d!"))
				time.Sleep(30 * time.Second)
				synctest.Wait()
			}
		}
		s.fail(nil)
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		one, two := minute.UnixMilli(), minute.Add(time.Minute).UnixMilli()
		want := []Count{
			counted1("b", one, 2, 0, 2), counted1("c", one, 2, 0, 2), counted1("d", one, 0, 2, 0),
			counted1("a", two, 2, 0, 2), counted1("c", two, 2, 0, 2), counted1("d", two, 0, 2, 0),
		}
		if diff := cmp.Diff(want, s.written()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestInvalidConfigs(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]Config{"Store": {Logger: slog.New(slog.DiscardHandler)}, "Logger": {Store: new(notebook)}} {
		if _, err := NewRecorder(cfg); err == nil || !strings.Contains(err.Error(), want+" is missing") {
			t.Errorf("without %s: %v", want, err)
		}
	}
}
