package postgres

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
	"github.com/seed503877ad/limits/internal/testenv"
)

// account is a counter and the sum of what the answers say about it.
type account struct {
	limit engine.Limit
	// maybeDenied counts denials that may not be told of: that the store has not answered, or whose receipt was written by a
	// worker that did not learn of it.
	charged, denied, maybeDenied atomic.Int64
}

// strict says that the account is only consumed from, so that what is admitted never exceeds the limit.
func (a *account) strict() bool { return a.limit.Limit < 1000 }

// accounts are counters that are exact or leased, and strict or roomy, in windows that do not end during a test.
func accounts(t *testing.T) (all []*account) {
	t.Helper()
	year, err := engine.ParseWindow("366d")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		all = append(all, &account{limit: engine.Limit{
			CounterID: engine.CounterID{Key: fmt.Sprint("key:", i/2), Name: fmt.Sprint("limit ", i)}, Window: year,
			Algorithm: []engine.Algorithm{engine.SlidingWindow, engine.FixedWindow}[i/2%2],
			Limit:     []int64{1_000_000, 150}[i%2], Leased: i >= 4, Threshold: -1, User: "u",
		}})
	}
	return all
}

// customer asks engines over broken connections. A request with an id is repeated until it is answered. Those for counters that
// are not leased have one, so it is known what was charged.
type customer struct {
	*rand.Rand
	name     string
	engines  []*engine.Engine
	accounts []*account
	cost     int64
	pick     []*account
}

// run asks until ctx ends.
func (c *customer) run(ctx context.Context, t *testing.T) {
	for i := 0; ctx.Err() == nil; i++ {
		verb, id := c.next(i)
		d, answered := c.ask(t, verb, id)
		switch {
		case !answered && verb != engine.Check:
			for _, a := range c.pick {
				a.maybeDenied.Add(1)
			}
		case answered && !d.Allowed && verb == engine.Consume:
			for i, a := range c.pick {
				switch {
				case d.Results[i].Allowed:
				case id == "":
					a.denied.Add(1)
				default:
					a.maybeDenied.Add(1)
				}
			}
		case answered && !d.Allowed:
			t.Errorf("a %s of counters with room for all is denied: %+v", verb, d)
		case answered && verb != engine.Check:
			c.charge(c.cost)
			if !slices.ContainsFunc(c.pick, (*account).strict) {
				c.correct(t, verb, id, i)
			}
		}
	}
}

func (c *customer) charge(cost int64) {
	for _, a := range c.pick {
		a.charged.Add(cost)
	}
}

// next chooses counters, and what to ask about them.
func (c *customer) next(i int) (verb engine.Verb, id string) {
	c.cost, c.pick, verb = 1+c.Int64N(4), nil, engine.Consume
	for _, k := range c.Perm(len(c.accounts))[:1+c.IntN(3)] {
		c.pick = append(c.pick, c.accounts[k])
	}
	if !slices.ContainsFunc(c.pick, (*account).strict) {
		verb = []engine.Verb{engine.Check, engine.Record, engine.Consume, engine.Consume}[c.IntN(4)]
	}
	exact := func(a *account) bool { return !a.limit.Leased }
	if verb != engine.Check && (slices.ContainsFunc(c.pick, exact) || c.IntN(3) == 0) {
		id = fmt.Sprint(c.name, ":", i)
	}
	return verb, id
}

// correct settles the i-th charge, refunds it, or does neither.
func (c *customer) correct(t *testing.T, verb engine.Verb, id string, i int) {
	switch c.IntN(3) {
	case 0:
		if id == "" || verb != engine.Consume {
			return
		}
		final := c.Int64N(6)
		until(t, func() (bool, error) {
			_, err := storetest.Settle(t.Context(), c.engine(), id, final)
			return err == nil, err
		})
		c.charge(final - c.cost)
	case 1:
		c.ask(t, engine.Refund, fmt.Sprint(c.name, ":", i, ":refund"))
		c.charge(-c.cost)
	}
}

func (c *customer) engine() *engine.Engine { return c.engines[c.IntN(len(c.engines))] }

// ask reports whether the store has answered.
func (c *customer) ask(t *testing.T, verb engine.Verb, id string) (d engine.Decision, answered bool) {
	until(t, func() (bool, error) {
		r := &engine.Request{Verb: verb, Cost: c.cost, ID: id, OnError: engine.OnErrorDeny}
		for _, a := range c.pick {
			r.Limits = append(r.Limits, a.limit)
		}
		if id != "" {
			r.Fingerprint = [32]byte{byte(verb), byte(c.cost)}
		}
		var err error
		d, err = c.engine().Do(t.Context(), r)
		answered = err == nil && !d.Degraded
		return answered || id == "", err
	})
	return d, answered
}

// until repeats a request to engines whose store fails now and then.
func until(t *testing.T, ask func() (done bool, err error)) {
	for end := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		done, err := ask()
		if err != nil && !errors.Is(err, engine.ErrUnavailable) && !errors.Is(err, engine.ErrOverloaded) {
			t.Errorf("answered with the error %v", err)
			return
		}
		if done {
			return
		}
		if time.Now().After(end) {
			t.Error("no answer in a minute")
			return
		}
	}
}

// TestEnginesOverBrokenConnections has workers decide while their connections are cut, delayed and silent: the counters have
// what was answered, an id is charged and settled once, nothing more than a limit is admitted, and each denial is told of.
func TestEnginesOverBrokenConnections(t *testing.T) {
	t.Parallel()
	direct, seed := testenv.Postgres(t), rand.Uint64()
	t.Log("seed", seed)
	ctx, done := context.WithTimeout(t.Context(), 3*time.Second)
	defer done()
	var engines []*engine.Engine
	start := func(s engine.Store) *engine.Engine {
		e, err := engine.New(t.Context(), engine.Config{Store: s, Deadline: time.Second, NewID: crand.Text, Broadcast: func(f engine.Forget) {
			for _, e := range engines {
				e.Forget(f)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	for i := range 3 {
		p := startProxy(t, direct)
		engines = append(engines, start(flakyStore{open(t, Config{URL: p.url, decisionIdle: decisionIdle}), rand.New(rand.NewPCG(seed, uint64(100+i))), p, ctx}))
	}
	all := accounts(t)
	var running sync.WaitGroup
	for i := range 8 {
		c := &customer{Rand: rand.New(rand.NewPCG(seed, uint64(i))), name: fmt.Sprint(i), engines: engines, accounts: all}
		running.Go(func() { c.run(ctx, t) })
	}
	running.Wait()
	for _, e := range engines {
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	store := open(t, Config{URL: direct})
	last := start(store)
	for _, a := range all {
		a.check(t, last)
	}
	checkDenials(t, store, last, all)
	if err := last.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// flakyStore breaks its connections when a transaction was decided and is about to be written, now and then.
type flakyStore struct {
	*Store
	*rand.Rand
	proxy *proxy
	ctx   context.Context // until its end
}

func (s flakyStore) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	return s.Store.Update(ctx, b, func(snap engine.Snapshot) engine.Changes {
		if s.ctx.Err() == nil {
			s.breakConnections()
		}
		return decide(snap)
	})
}

// breakConnections breaks those that there are in one of six ways, or none.
func (s flakyStore) breakConnections() {
	switch s.IntN(400) {
	case 0, 1, 2, 3: // for longer than it is tried to find out what became of the transaction
		s.proxy.loseAnswersOfNext(1 << 20)
		time.AfterFunc(2*maxPollFailing, s.proxy.loseAnswers)
	case 4:
		s.proxy.swallow()
	default:
		s.proxy.breakSometimes(s.Rand, 44)
	}
}

// check compares the counter with the answers. A leased one may have more: of requests without an answer, and what was lent by
// a transaction of unknown outcome.
func (a *account) check(t *testing.T, e *engine.Engine) {
	t.Helper()
	counters, err := e.Status(t.Context(), a.limit.Key)
	if err != nil {
		t.Fatal(err)
	}
	used := int64(0)
	for _, c := range counters {
		if c.CounterID == a.limit.CounterID {
			used = c.Used
		}
	}
	if charged := a.charged.Load(); used < charged || used > charged && !a.limit.Leased {
		t.Errorf("%s: %d are used; the answers add up to %d", a.limit.Name, used, charged)
	}
	if a.strict() && used > a.limit.Limit {
		t.Errorf("%s: %d are used of %d", a.limit.Name, used, a.limit.Limit)
	}
}

// checkDenials has each strict counter deny once more, when its next event is due, and compares the events with the answers.
func checkDenials(t *testing.T, s *Store, e *engine.Engine, all []*account) {
	t.Helper()
	conn := connect(t, s)
	<-time.After(10 * time.Second)
	for _, a := range all {
		if !a.strict() {
			continue
		}
		d, err := e.Do(t.Context(), &engine.Request{Limits: []engine.Limit{a.limit}, Cost: a.limit.Limit})
		if err != nil || d.Allowed || d.Degraded {
			t.Errorf("%s: %+v, %v", a.limit.Name, d, err)
		}
		var told int64
		scan(t, conn, `SELECT sum((data::json->>'denied')::bigint) FROM outbox WHERE type = 'limits.exceeded' AND data::json->>'name' = '`+
			a.limit.Name+`'`, &told)
		if least := 1 + a.denied.Load(); told < least || told > least+a.maybeDenied.Load() {
			t.Errorf("%s: events tell of %d denials, there were %d, and %d more at most", a.limit.Name, told, least, a.maybeDenied.Load())
		}
	}
}
