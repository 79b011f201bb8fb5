package engine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// table is what a store has, and the worker that writes it.
type table struct {
	now      int64
	counters map[CounterID]row
	receipts map[string]*Receipt
	denials  denialCounts
}

type row struct {
	State []byte
	Spec  string
}

// state is the decoded state. Where a window from its first use lies does not matter before it.
func (r row) state(t failer) (s State) {
	if err := s.Decode(r.State); err != nil {
		t.Fatal(err)
	}
	var spec Spec
	if err := json.Unmarshal([]byte(r.Spec), &spec); err != nil {
		t.Fatal(err)
	}
	if spec.FirstUse && s.fixed.count == 0 {
		s.fixed.begin, s.fixed.end = 0, 0
	}
	return s
}

// differences tells in what the counters of two tables differ.
func differences(t failer, want, got *table) (all string) {
	for id, r := range got.counters {
		was, is := want.counters[id].state(t), r.state(t)
		if !slices.Equal(was.Append(nil), is.Append(nil)) || r.Spec != want.counters[id].Spec {
			all += fmt.Sprintf("%v: %+v, want %+v\n", id, is, was)
		}
	}
	return all
}

func newTable(now int64) *table {
	w := &table{now: now, counters: map[CounterID]row{}, receipts: map[string]*Receipt{}}
	w.denials.init()
	return w
}

// write decides the requests in one transaction, and returns their answers.
func (w *table) write(requests ...asked) (answers []string) {
	b, _ := w.commit(requests...)
	for _, r := range b.requests {
		answers = append(answers, fmt.Sprintf("%s %d of %v: %+v, %v", r.Verb, r.Cost, r.Limits, r.decision, r.err))
	}
	return answers
}

// commit decides the requests in one transaction, and returns the batch and what it wrote.
func (w *table) commit(requests ...asked) (*batch, Changes) {
	b := newBatch()
	for _, a := range requests {
		b.add(w.request(a))
	}
	b.prepare()
	snap := Snapshot{Now: w.now}
	for _, id := range b.ids {
		snap.States = append(snap.States, w.counters[id].State)
	}
	for _, id := range b.receiptIDs {
		snap.Receipts = append(snap.Receipts, w.receipts[id])
	}
	changes := b.decide(snap, &w.denials, func() string { return "" })
	for _, c := range changes.Counters {
		r := row{slices.Clone(c.State), w.counters[b.ids[c.Slot]].Spec}
		if c.Spec != nil {
			r.Spec = string(c.Spec)
		}
		w.counters[b.ids[c.Slot]] = r
	}
	for _, p := range changes.Receipts {
		w.receipts[p.ID] = &p
	}
	for i := range b.counters {
		w.denials.afterCommit(&b.counters[i], b.now)
	}
	return b, changes
}

// asked is a request, which can be made more than once.
type asked struct {
	verb   Verb
	limits []Limit
	cost   int64
	// id is that of a consume, or of the consume that is settled.
	id string
	// look is set for a check that is a look at the status.
	look bool
}

func (w *table) request(a asked) *Request {
	r := &Request{Verb: a.verb, Limits: a.limits, Cost: a.cost, ID: a.id, look: a.look}
	if a.verb == reportDenials {
		r.deniedCosts = []int64{a.cost}
	}
	if a.verb == Settle {
		r.ID, r.consumeExpiry = settleID(a.id), w.receipts[a.id].ExpiresAt
		r.loadReservation(w.receipts[a.id])
	}
	return r
}

// settleable returns the ids of consumes that were charged, in order.
func (w *table) settleable() (ids []string) {
	for id := range w.receipts {
		if _, _, err := w.receipts[id].reserved(); err == nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// genAsked draws requests under any of the definitions that two counters have.
func genAsked(t *rapid.T, definitions [2][]Limit, w *table, ids *int) asked {
	a := asked{cost: rapid.Int64Range(1, 6).Draw(t, "cost")}
	verbs := []Verb{Consume, Consume, Consume, Check, Record, Refund, Refund, Settle, Settle}
	a.verb = rapid.SampledFrom(verbs).Draw(t, "verb")
	if open := w.settleable(); a.verb == Settle && len(open) > 0 {
		a.id = rapid.SampledFrom(open).Draw(t, "id")
		a.cost = rapid.Int64Range(0, 6).Draw(t, "final cost")
		return a
	} else if a.verb == Settle {
		a.verb = Consume
	}
	a.look = a.verb == Check && rapid.Bool().Draw(t, "look")
	which := rapid.IntRange(1, 3).Draw(t, "counters")
	for i := range definitions {
		if which&(1<<i) != 0 {
			a.limits = append(a.limits, rapid.SampledFrom(definitions[i]).Draw(t, "definition"))
		}
	}
	if a.verb == Consume && rapid.Bool().Draw(t, "with id") {
		*ids++
		a.id = strconv.Itoa(*ids)
	}
	return a
}

func genDefinitions(t *rapid.T, key string) (all []Limit) {
	for range rapid.IntRange(1, 3).Draw(t, "definitions") {
		a := rapid.SampledFrom(algorithms).Draw(t, "algorithm")
		l := Limit{CounterID: CounterID{key, "n"}, Algorithm: a, Limit: rapid.Int64Range(1, 12).Draw(t, "limit")}
		l.Threshold = rapid.Int64Range(-1, 3).Draw(t, "threshold")
		windows := []string{"1s", "7s", "1m", "1h"}
		if l.FirstUse = a == FixedWindow && rapid.Bool().Draw(t, "first use"); l.FirstUse {
			windows = []string{"2s", "9s", "61s"} // an empty one, which lies anywhere, must not be like an aligned one
		}
		l.Window, _ = ParseWindow(rapid.SampledFrom(windows).Draw(t, "window"))
		l.Shadow = rapid.IntRange(0, 5).Draw(t, "shadow") == 0
		if a == TokenBucket {
			l.Burst = rapid.Int64Range(0, 3).Draw(t, "burst")
		}
		all = append(all, l)
	}
	return all
}

// TestBatchDecidesAsOneByOne: requests that one transaction decides are answered, and leave
// counters, as if each had had a transaction of its own at the same moment.
func TestBatchDecidesAsOneByOne(t *testing.T) {
	t.Parallel()
	check(t, 2000, func(t *rapid.T) {
		definitions := [2][]Limit{genDefinitions(t, "a"), genDefinitions(t, "b")}
		now := genInstant.Draw(t, "now")
		together, apart := newTable(now), newTable(now)
		for i := range definitions { // a counter's first definition is that of its first request, even if that is denied
			first := asked{verb: Record, limits: definitions[i][:1], cost: 1}
			together.write(first)
			apart.write(first)
		}
		ids := 0
		after := rapid.OneOf(rapid.Int64Range(0, 2000), rapid.Int64Range(0, 130_000), rapid.Int64Range(-70_000, 0))
		for range rapid.IntRange(1, 5).Draw(t, "transactions") {
			now += after.Draw(t, "after")
			together.now, apart.now = now, now
			var requests []asked
			for range rapid.IntRange(1, 6).Draw(t, "requests") {
				requests = append(requests, genAsked(t, definitions, together, &ids))
			}
			var want []string
			for _, a := range requests {
				want = append(want, apart.write(a)...)
			}
			got := together.write(requests...)
			if diff := cmp.Diff(want, got) + differences(t, apart, together); diff != "" {
				t.Fatalf("at %d, one by one (-), in one transaction (+):\n%s\n%s", now, diff, strings.Join(want, "\n"))
			}
		}
	})
}

// TestSettleOfEndedWindowLeavesNoTrace if it charges nothing: the counter keeps the definition that
// is stored, so a refund in the same transaction finds what another one would find.
func TestSettleOfEndedWindowLeavesNoTrace(t *testing.T) {
	t.Parallel()
	settled := limitOf(t, FixedWindow, 5, "2s")
	settled.FirstUse = true
	stored := settled
	stored.Limit = 9
	together, apart := newTable(noon), newTable(noon)
	for _, w := range []*table{together, apart} {
		w.write(asked{verb: Consume, limits: []Limit{settled}, cost: 1, id: "x"})
		w.write(asked{verb: Consume, limits: []Limit{stored}, cost: 1})
		w.now += 2000
	}
	settle, refund := asked{verb: Settle, id: "x"}, asked{verb: Refund, limits: []Limit{settled}, cost: 1}
	together.write(settle, refund)
	apart.write(settle)
	apart.write(refund)
	if diff := differences(t, apart, together); diff != "" {
		t.Error(diff)
	}
}

// TestAChargedCounterKeepsTheDefinitionOfItsState: what a settle charges in a batch in which a counter is redefined, by the
// settle itself or by another request, is stored under the definition that the state has then.
func TestAChargedCounterKeepsTheDefinitionOfItsState(t *testing.T) {
	t.Parallel()
	free, pro := limitOf(t, FixedWindow, 5, "1m"), limitOf(t, FixedWindow, 9, "1m")
	charge := asked{verb: Consume, limits: []Limit{pro}, cost: 1}
	look := asked{verb: Check, limits: []Limit{pro}, cost: 1}
	settle := asked{verb: Settle, id: "x", cost: 7}
	hour := limitOf(t, FixedWindow, 9, "1h")
	hourly, hourlook := asked{verb: Consume, limits: []Limit{hour}, cost: 1}, asked{verb: Check, limits: []Limit{hour}, cost: 1}
	for name, c := range map[string]struct {
		before, together []asked
		after            int64
	}{
		"redefined by the settle, since the window has ended": {[]asked{charge}, []asked{look, settle}, 60_000},
		"redefined by another request":                        {nil, []asked{charge, settle}, 0},
		"in a window that is over, and another one begins":    {[]asked{hourly}, []asked{settle, hourlook}, 3_700_000},
	} {
		together, apart := newTable(noon), newTable(noon)
		for _, w := range []*table{together, apart} {
			w.write(asked{verb: Consume, limits: []Limit{free}, cost: 1, id: "x"})
			for _, a := range c.before {
				w.write(a)
			}
			w.now += c.after
		}
		together.write(c.together...)
		for _, a := range c.together {
			apart.write(a)
		}
		if diff := differences(t, apart, together); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestASettleThatChangesNothingLeavesNoTrace: nothing is written but its receipt, no event is raised, and other workers have
// nothing to forget.
func TestASettleThatChangesNothingLeavesNoTrace(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		l := limitOf(t, a, 5, "1m")
		l.Threshold = 5
		other := l
		other.Window, _ = ParseWindow("7s")
		for name, c := range map[string]struct {
			meanwhile []asked
			cost      int64
		}{
			"it cost what was reserved": {nil, 3},
			"it was redefined":          {[]asked{{verb: Consume, limits: []Limit{other}, cost: 1}}, 1},
		} {
			w := newTable(noon)
			w.write(asked{verb: Consume, limits: []Limit{l}, cost: 3, id: "x"})
			for _, m := range c.meanwhile {
				w.write(m)
			}
			w.now += 61_500
			b, changes := w.commit(asked{verb: Settle, id: "x", cost: c.cost})
			if len(changes.Counters) > 0 || len(changes.Events) > 0 || len(changes.Receipts) != 1 || b.counters[0].freed {
				t.Errorf("%s: %+v, freed %v", name, changes, b.counters[0].freed)
			}
			if _, changes = w.commit(asked{verb: Refund, limits: []Limit{l}, cost: 1}); c.meanwhile == nil && len(changes.Counters) > 0 {
				t.Errorf("a refund when nothing is used: %+v", changes)
			}
		}
	})
}

// TestACounterBeginsUnderTheLimitThatDeniedFirst, whoever is allowed or denied by another one in the same transaction.
func TestACounterBeginsUnderTheLimitThatDeniedFirst(t *testing.T) {
	t.Parallel()
	together, apart := newTable(noon), newTable(noon)
	free := asked{verb: Consume, limits: []Limit{limitOf(t, SlidingWindow, 5, "1m")}, cost: 6}
	pro := asked{verb: Consume, limits: []Limit{limitOf(t, SlidingWindow, 9, "1m")}, cost: 10}
	look := asked{verb: Check, limits: pro.limits, cost: 1}
	together.write(look, free, pro)
	for _, a := range []asked{look, free, pro} {
		apart.write(a)
	}
	if diff := differences(t, apart, together); diff != "" || len(apart.counters) != 1 {
		t.Errorf("%d counters: %s", len(apart.counters), diff)
	}
}
