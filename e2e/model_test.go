package e2e

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// These tests send random requests to engines over both stores, from many clients at once, and compare the answers with what
// the limits allow and with what the store has counted. A failure logs the random seed; the interleaving of the requests
// differs in each run.

// onBothStores runs f with one engine on SQLite, and with n engines on one PostgreSQL database.
func onBothStores(t *testing.T, n int, f func(t *testing.T, engines []*engine.Engine)) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		f(t, []*engine.Engine{onFile(t)})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		f(t, workers(t, n))
	})
}

// onFile returns an engine on a new SQLite file.
func onFile(t *testing.T) *engine.Engine {
	t.Helper()
	return engineOn(t, eachstore.SQLite(t, nil), nil)
}

// dice returns a random generator for each client. Its seed is logged if the test fails.
func dice(t *testing.T) func(client int) *mathrand.Rand {
	seed := mathrand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return func(client int) *mathrand.Rand { return mathrand.New(mathrand.NewPCG(seed, uint64(client))) }
}

func parseWindow(t *testing.T, text string) engine.Window {
	t.Helper()
	w, err := engine.ParseWindow(text)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// deal is one request of a client.
type deal struct {
	verb   engine.Verb
	pick   []int // indexes of counters in the pool, in the order of the request
	cost   int64
	id     string
	engine int
}

// ledger sums what the answers say about a pool of counters.
type ledger struct {
	pool    []engine.Limit
	charged []atomic.Int64
	allowed [4]atomic.Int64
	denied  [4]atomic.Int64
}

// slowPool returns counters of every algorithm. Their windows are so long that none ends or refills during a test.
func slowPool(t *testing.T) *ledger {
	year := parseWindow(t, "366d")
	l := &ledger{}
	for i, algorithm := range []engine.Algorithm{
		engine.SlidingWindow, engine.FixedWindow, engine.TokenBucket, engine.SlidingWindow, engine.FixedWindow, engine.TokenBucket,
	} {
		limit := engine.Limit{
			// Two of them share a key.
			CounterID: engine.CounterID{Key: fmt.Sprint("counter:", i/2), Name: fmt.Sprint("limit ", i)},
			Algorithm: algorithm, Limit: 150 + 50*int64(i), Window: year,
			FirstUse: algorithm == engine.FixedWindow, Threshold: 15,
		}
		if algorithm == engine.TokenBucket {
			limit.Burst = 40
		}
		l.pool = append(l.pool, limit)
	}
	l.charged = make([]atomic.Int64, len(l.pool))
	return l
}

func (l *ledger) request(d *deal) *engine.Request {
	r := &engine.Request{Verb: d.verb, Cost: d.cost, ID: d.id, OnError: engine.OnErrorDeny}
	for _, i := range d.pick {
		r.Limits = append(r.Limits, l.pool[i])
	}
	if d.id != "" {
		r.Fingerprint = [32]byte{byte(d.verb), byte(d.cost)}
	}
	return r
}

// enter checks that an answer is consistent, and adds what it says was charged.
func (l *ledger) enter(d *deal, got *engine.Decision) error {
	fits := true
	for i, result := range got.Results {
		limit := &l.pool[d.pick[i]]
		fits = fits && result.Allowed
		if d.verb == engine.Consume && got.Allowed && result.Used > limit.Limit+limit.Burst {
			return fmt.Errorf("%+v was allowed and leaves %d used: %+v", d, result.Used, limit)
		}
		if result.Remaining != max(0, limit.Limit+limit.Burst-result.Used) {
			return fmt.Errorf("%+v: %d used and %d remaining do not add up: %+v", d, result.Used, result.Remaining, limit)
		}
	}
	if fits != got.Allowed || got.Degraded || len(got.Results) != len(d.pick) {
		return fmt.Errorf("%+v was answered %+v", d, got)
	}
	if got.Allowed {
		l.allowed[d.verb].Add(1)
	} else {
		l.denied[d.verb].Add(1)
	}
	for _, i := range d.pick {
		switch {
		case d.verb == engine.Refund:
			l.charged[i].Add(-d.cost)
		case d.verb == engine.Record, d.verb == engine.Consume && got.Allowed:
			l.charged[i].Add(d.cost)
		}
	}
	return nil
}

// client sends requests. It records its charges and refunds no more than them, so that used never reaches 0, where the effect
// of a refund would depend on the order.
type client struct {
	*ledger
	*mathrand.Rand
	engines []*engine.Engine
	name    string
	charges []deal
}

func (c *client) run(ctx context.Context, n int) error {
	for i := range n {
		d := c.next(i)
		got, err := c.ask(ctx, &d)
		if err != nil {
			return err
		}
		if err := c.enter(&d, got); err != nil {
			return err
		}
		if d.id != "" && d.verb == engine.Consume && got.Allowed && c.IntN(2) == 0 {
			if err := c.settle(ctx, &d); err != nil {
				return err
			}
		}
		if d.cost > 0 && (d.verb == engine.Record || d.verb == engine.Consume && got.Allowed) {
			c.charges = append(c.charges, d)
		}
	}
	return nil
}

func (c *client) next(i int) deal {
	d := deal{verb: engine.Consume, cost: 1 + c.Int64N(4), engine: c.IntN(len(c.engines))}
	d.pick = c.Perm(len(c.pool))[:1+c.IntN(4)]
	switch p := c.IntN(20); {
	case p < 3:
		d.verb = engine.Check
	case p < 4:
		d.verb = engine.Record
	case p < 10 && len(c.charges) > 0:
		last := len(c.charges) - 1
		d.verb, d.pick, d.cost = engine.Refund, c.charges[last].pick, c.charges[last].cost
		c.charges = c.charges[:last]
	}
	if d.verb != engine.Check && c.IntN(4) == 0 {
		d.id = fmt.Sprintf("%s:%d", c.name, i)
	}
	return d
}

// ask sends a request. One with an id is sent to two engines at once and to one more afterwards, and must get the same answer
// each time; the same id with another body must be refused.
func (c *client) ask(ctx context.Context, d *deal) (*engine.Decision, error) {
	if d.id == "" {
		got, err := c.engines[d.engine].Do(ctx, c.request(d))
		if err != nil {
			return nil, fmt.Errorf("%+v: %w", d, err)
		}
		return &got, nil
	}
	var answers [3]engine.Decision
	var errs [3]error
	send := func(i int) {
		answers[i], errs[i] = c.engines[(d.engine+i)%len(c.engines)].Do(ctx, c.request(d))
	}
	thrice(send)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("%+v: %w", d, err)
	}
	for i := range answers {
		if diff := gocmp.Diff(answers[0], answers[i]); diff != "" {
			return nil, fmt.Errorf("%+v was answered differently (-first +again)\n%s", d, diff)
		}
	}
	other := *d
	other.cost++
	if got, err := c.engines[d.engine].Do(ctx, c.request(&other)); !errors.Is(err, engine.ErrIDConflict) {
		return nil, fmt.Errorf("%+v with the id of another request: %+v %w", other, got, err)
	}
	return &answers[0], nil
}

// thrice calls send twice at once, and once more afterwards.
func thrice(send func(i int)) {
	var first sync.WaitGroup
	first.Go(func() { send(0) })
	first.Go(func() { send(1) })
	first.Wait()
	send(2)
}

// settle sets the final cost of a consume, by two engines at once and one more afterwards. Then another cost must be refused.
func (c *client) settle(ctx context.Context, d *deal) error {
	final := c.Int64N(2*d.cost + 1)
	var errs [3]error
	send := func(i int) { _, errs[i] = storetest.Settle(ctx, c.engines[(d.engine+i)%len(c.engines)], d.id, final) }
	thrice(send)
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("%+v settled to %d: %w", d, final, err)
	}
	if got, err := storetest.Settle(ctx, c.engines[d.engine], d.id, final+1); !errors.Is(err, engine.ErrIDConflict) {
		return fmt.Errorf("%+v settled to %d and then to more: %+v %w", d, final, got, err)
	}
	for _, i := range d.pick {
		c.charged[i].Add(final - d.cost)
	}
	d.cost = final
	return nil
}

// play runs clients concurrently. Some requests must be allowed and some denied.
func (l *ledger) play(t *testing.T, engines []*engine.Engine, clients, each int) {
	chance := dice(t)
	var done sync.WaitGroup
	for i := range clients {
		c := client{ledger: l, Rand: chance(i), engines: engines, name: fmt.Sprint("client ", i)}
		done.Go(func() {
			if err := c.run(t.Context(), each); err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
	if l.allowed[engine.Consume].Load() == 0 || l.denied[engine.Consume].Load() == 0 {
		t.Errorf("%d allowed, %d denied: too few to test anything", l.allowed[engine.Consume].Load(), l.denied[engine.Consume].Load())
	}
}

func TestAnsweredChargesAddUpToUsage(t *testing.T) {
	t.Parallel()
	onBothStores(t, 3, func(t *testing.T, engines []*engine.Engine) {
		l := slowPool(t)
		l.play(t, engines, 12, 120)
		for i, limit := range l.pool {
			for _, e := range engines {
				if got, want := usedOf(t, e, limit.CounterID), l.charged[i].Load(); got != want {
					t.Errorf("%s: %d used; the answers add up to %d", limit.Name, got, want)
				}
			}
		}
	})
}

// usedOf returns what the store has counted.
func usedOf(t *testing.T, e *engine.Engine, id engine.CounterID) int64 {
	t.Helper()
	counters, err := e.Status(t.Context(), id.Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range counters {
		if c.CounterID == id {
			return c.Used
		}
	}
	return 0
}
