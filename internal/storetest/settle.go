package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/seed503877ad/limits/internal/engine"
)

// settleTests run the engine's settle on a store, for what it needs of receipts.
var settleTests = []test{
	{"the difference is charged or refunded once", settleOnce},
	{"an error of settle says why", settleRefused},
	{"concurrent settles of one id count once", settleRace},
	{"a settle whose commit is unknown counts once", settleUnknown},
	{"a settle by another worker frees capacity for all", settleOnOtherWorker},
}

// startEngine starts an engine that is closed before the store.
func startEngine(t *testing.T, s engine.Store, change ...func(*engine.Config)) *engine.Engine {
	t.Helper()
	var ids atomic.Int64
	cfg := engine.Config{Store: s, NewID: func() string { return fmt.Sprint("event-", ids.Add(1)) }}
	for _, f := range change {
		f(&cfg)
	}
	e, err := engine.New(within(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return e
}

func limit(t *testing.T, key string, n int64) engine.Limit {
	t.Helper()
	w, err := engine.ParseWindow("1h")
	if err != nil {
		t.Fatal(err)
	}
	return engine.Limit{CounterID: id(key, "1h"), Limit: n, Window: w, Threshold: n / 10, User: "u"}
}

func ask(t *testing.T, e *engine.Engine, v engine.Verb, cost int64, requestID string, limits ...engine.Limit) engine.Decision {
	t.Helper()
	d, err := e.Do(within(t), &engine.Request{Verb: v, Limits: limits, Cost: cost, ID: requestID})
	if err != nil {
		t.Fatalf("%s: %v", v, err)
	}
	return d
}

// Settle sets the final cost of the consume that had an id.
func Settle(ctx context.Context, e *engine.Engine, id string, cost int64) (engine.Decision, error) {
	return e.Do(ctx, &engine.Request{Verb: engine.Settle, ID: id, Cost: cost})
}

func settleTo(t *testing.T, e *engine.Engine, requestID string, cost int64) engine.Decision {
	t.Helper()
	d, err := Settle(within(t), e, requestID, cost)
	if err != nil {
		t.Fatalf("settle %s to %d: %v", requestID, cost, err)
	}
	return d
}

// usedOf returns what each limit has used.
func usedOf(t *testing.T, e *engine.Engine, limits ...engine.Limit) (all []int64) {
	t.Helper()
	for _, r := range ask(t, e, engine.Check, 1, "", limits...).Results {
		all = append(all, r.Used)
	}
	return all
}

func settleOnce(t *testing.T, s Store) {
	e := startEngine(t, s)
	a, b := limit(t, "a", 100), limit(t, "b", 50)
	for name, c := range map[string]struct{ cost, a, b int64 }{"less": {5, 5, 5}, "none": {0, 0, 0}, "same": {30, 30, 30}, "more": {60, 60, 60}} {
		a.Key, b.Key = "a:"+name, "b:"+name
		ask(t, e, engine.Consume, 30, name, a, b)
		first := settleTo(t, e, name, c.cost)
		equal(t, name+": fits", first.Allowed, c.cost <= 50)
		ask(t, e, engine.Record, 1, "", a) // the answer is unchanged
		equal(t, name+": again", settleTo(t, e, name, c.cost), first)
		equal(t, name+": used", usedOf(t, e, a, b), []int64{c.a + 1, c.b})
		if _, err := Settle(within(t), e, name, c.cost+1); !errors.Is(err, engine.ErrIDConflict) {
			t.Errorf("%s: another cost: %v", name, err)
		}
	}
	var told []string
	for _, v := range peek(t, s, 100) {
		told = append(told, fmt.Sprint(v.Type, " ", v.Key))
	}
	equal(t, "events", told, []string{"limits.warning b:more", "limits.exceeded b:more"})
}

func settleRefused(t *testing.T, s Store) {
	e := startEngine(t, s)
	l := limit(t, "a", 10)
	ask(t, e, engine.Consume, 11, "denied", l)
	ask(t, e, engine.Record, 1, "recorded", l)
	for name, want := range map[string]error{
		"unheard of": engine.ErrUnknownID, "denied": engine.ErrNothingToSettle, "recorded": engine.ErrNothingToSettle,
	} {
		if _, err := Settle(within(t), e, name, 1); !errors.Is(err, want) {
			t.Errorf("%s: %v; want %v", name, err, want)
		}
	}
	equal(t, "used", usedOf(t, e, l), []int64{1})
}

func settleRace(t *testing.T, s Store) {
	workers := []*engine.Engine{startEngine(t, s), startEngine(t, s)}
	l := limit(t, "a", 100)
	ask(t, workers[0], engine.Consume, 50, "id", l)
	concurrently(t, 20, func(i int) error {
		d, err := Settle(within(t), workers[i%2], "id", 20)
		if err == nil && d.Results[0].Used != 20 {
			err = fmt.Errorf("used %d", d.Results[0].Used)
		}
		return err
	})
	equal(t, "used", usedOf(t, workers[0], l), []int64{20})
}

// lossyStore commits, but loses the answer to one commit of a change.
type lossyStore struct {
	Store
	lose atomic.Bool
}

func (f *lossyStore) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	changed := false
	err := f.Store.Update(ctx, b, func(s engine.Snapshot) engine.Changes {
		c := decide(s)
		changed = len(c.Counters) > 0
		return c
	})
	if err == nil && changed && f.lose.CompareAndSwap(true, false) {
		return engine.ErrCommitUnknown
	}
	return err
}

func settleUnknown(t *testing.T, s Store) {
	f := &lossyStore{Store: s}
	e := startEngine(t, f)
	l := limit(t, "a", 100)
	ask(t, e, engine.Consume, 50, "id", l)
	f.lose.Store(true)
	settleTo(t, e, "id", 70)
	if f.lose.Load() {
		t.Error("no answer was lost")
	}
	equal(t, "used", usedOf(t, e, l), []int64{70})
}

func settleOnOtherWorker(t *testing.T, s Store) {
	l := limit(t, "a", 10)
	told := make(chan engine.Forget, 10)
	one := startEngine(t, s)
	two := startEngine(t, s, func(c *engine.Config) { c.Broadcast = func(f engine.Forget) { one.Forget(f); told <- f } })
	ask(t, one, engine.Consume, 10, "id", l)
	equal(t, "allowed", ask(t, one, engine.Consume, 1, "", l).Allowed, false) // and one caches it
	settleTo(t, two, "id", 9)
	equal(t, "told", <-told, engine.Forget{Key: "a", Name: "1h", Freed: true})
	equal(t, "allowed", ask(t, one, engine.Consume, 1, "", l).Allowed, true)
}
