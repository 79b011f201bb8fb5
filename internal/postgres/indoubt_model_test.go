package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
	"github.com/seed503877ad/limits/internal/testenv"
)

// attempt is an Update and its result. Its event and, if it has one, its receipt have its id.
type attempt struct {
	id      string
	receipt bool
	charged int // counters that are never removed
	err     error
}

// flakyWorker is a worker over connections that are cut. Counters that start with p stay, those
// with v are removed.
type flakyWorker struct {
	*Store
	proxy    *proxy
	name     string
	rand     *rand.Rand
	attempts []attempt
}

// cut breaks the connections a third of the time.
func (f *flakyWorker) cut(r *rand.Rand) { f.proxy.breakSometimes(r, 12) }

// charge adds 1 to counters, some of which are removed meanwhile, until that is known to be
// committed or in doubt.
func (f *flakyWorker) charge(ctx context.Context) {
	var keys []string
	for _, k := range []string{"p0", "p1", "p2", "p3", "v0", "v1", "v2", "v3"} {
		if f.rand.IntN(4) == 0 {
			keys = append(keys, k)
		}
	}
	for n := 0; ; n++ {
		a := attempt{id: fmt.Sprintf("%s-%d-%d", f.name, len(f.attempts), n), receipt: f.rand.IntN(4) == 0}
		b := batch(keys...)
		if a.receipt {
			b.IDs = []string{a.id}
		}
		for _, k := range keys {
			if k[0] == 'p' {
				a.charged++
			}
		}
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		switch f.rand.IntN(4) {
		case 0:
			b.Turn = f.Await(ctx)
		case 1:
			cancel()
			ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Duration(f.rand.IntN(5000))*time.Microsecond)
		}
		a.err = f.Update(ctx, b, func(snap engine.Snapshot) engine.Changes {
			f.cut(f.rand)
			return f.decide(&a, keys, snap)
		})
		cancel()
		f.attempts = append(f.attempts, a)
		if !errors.Is(a.err, engine.ErrConflict) {
			return
		}
	}
}

func (f *flakyWorker) decide(a *attempt, keys []string, snap engine.Snapshot) (c engine.Changes) {
	for i, k := range keys {
		n, _ := strconv.Atoi(string(snap.States[i]))
		change := engine.CounterChange{Slot: i, State: []byte(strconv.Itoa(n + 1)), ExpiresAt: endOfTime}
		if k[0] == 'v' {
			change.ExpiresAt = snap.Now + f.rand.Int64N(100)
		}
		if snap.States[i] == nil {
			change.Spec = []byte(`{}`)
		}
		c.Counters = append(c.Counters, change)
	}
	c.Events = []engine.Event{{ID: a.id, Type: engine.EventWarning}}
	if a.receipt {
		c.Receipts = []engine.Receipt{{ID: a.id, Answer: []byte("x"), ExpiresAt: endOfTime}}
	}
	return c
}

// runMaintenance does what runs beside decisions; all of it may fail.
func (f *flakyWorker) runMaintenance(ctx context.Context, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	f.cut(r)
	switch r.IntN(8) {
	case 0:
		_, _ = f.Reset(ctx, engine.Selection{Key: "v" + strconv.Itoa(r.IntN(4))}, false)
	case 1, 2:
		_, _ = f.Expire(ctx, 10)
	case 3:
		_, _ = f.foldSome(ctx, func() int { return r.IntN(5) })
	case 4:
		if release, err := acquire(ctx, f.writeLock); err == nil {
			f.resetCache()
			release()
		}
	default:
		_, _, _ = f.Counters(ctx, "p0")
	}
}

// startFlakyWorkers opens a store for each of three folding policies, over a proxy of its own.
func startFlakyWorkers(t *testing.T, direct string, seed uint64) (workers []*flakyWorker) {
	t.Helper()
	for i, folding := range storetest.FoldPolicies[:3] {
		proxy := startProxy(t, direct)
		f := &flakyWorker{Store: open(t, Config{URL: proxy.url, maxConns: 3}), proxy: proxy, name: strconv.Itoa(i), rand: rand.New(rand.NewPCG(seed, uint64(i)))}
		setFoldPolicy(f.Store, folding)
		workers = append(workers, f)
	}
	return workers
}

// TestModelWithBrokenConnections has workers charge over connections that are cut, delayed and
// given up in the middle of transactions, while folding, resets and expiry run: the database has
// what was answered, and all workers agree.
func TestModelWithBrokenConnections(t *testing.T) {
	t.Parallel()
	direct := testenv.Postgres(t)
	seed := rand.Uint64()
	t.Log("seed", seed)
	workers := startFlakyWorkers(t, direct, seed)
	ctx, done := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer done()
	var all sync.WaitGroup
	for i, f := range workers {
		all.Go(func() {
			for ctx.Err() == nil {
				f.charge(t.Context())
			}
		})
		beside := rand.New(rand.NewPCG(seed, uint64(len(workers)+i)))
		all.Go(func() {
			for ctx.Err() == nil {
				f.runMaintenance(t.Context(), beside)
			}
		})
	}
	all.Wait()
	truth := open(t, Config{URL: direct})
	setFoldPolicy(truth, storetest.FoldPolicies[3])
	// Statements that are still on their way come too late after this one.
	update(t, truth, batch("end"), setUntil("", endOfTime))
	conn := connect(t, truth)
	charged := 0
	events, receipts := idSet(t, conn, `SELECT id FROM outbox`), idSet(t, conn, `SELECT id FROM receipts`)
	for _, f := range workers {
		charged += f.checkAnswers(t, events, receipts)
	}
	held := listCounters(t, truth)
	if sum := sumCharged(held); sum != charged {
		t.Errorf("%d are charged, and %d should be", sum, charged)
	}
	var first int64
	scan(t, conn, `SELECT min(seq) FROM journal`, &first)
	for _, f := range workers {
		f.checkCache(t, held)
		if f.firstNeeded != truth.firstNeeded || f.firstSeq > first || f.lastSeq != truth.lastSeq || f.lastToken != truth.lastToken {
			t.Errorf("worker %s has read to row %d, and takes those before %d for folded and those before %d for gone; want %d, %d and %d at most",
				f.name, f.lastSeq, f.firstNeeded, f.firstSeq, truth.lastSeq, truth.firstNeeded, first)
		}
	}
	truth.foldAll()
	if n := len(idSet(t, conn, `SELECT seq::text FROM journal`)); n != 1 {
		t.Errorf("%d rows of the journal are left", n)
	}
	if diff := cmp.Diff(withoutVolatile(held), withoutVolatile(listCounters(t, open(t, Config{URL: direct})))); diff != "" {
		t.Errorf("the table differs (-want +got):\n%s", diff)
	}
}

// sumCharged adds up the states of the counters that the workers charge.
func sumCharged(held map[engine.CounterID]string) (sum int) {
	for id, state := range held {
		if id.Key[0] == 'p' {
			n, _ := strconv.Atoi(state)
			sum += n
		}
	}
	return sum
}

// checkAnswers compares the answers with what was written, and returns what that charged.
func (f *flakyWorker) checkAnswers(t *testing.T, events, receipts map[string]bool) (charged int) {
	for _, a := range f.attempts {
		committed := events[a.id]
		if !errors.Is(a.err, engine.ErrCommitUnknown) && committed != (a.err == nil) {
			t.Errorf("%s: committed %v, and answered %v", a.id, committed, a.err)
		}
		if receipts[a.id] != (committed && a.receipt) {
			t.Errorf("%s: committed %v, with a receipt %v", a.id, committed, receipts[a.id])
		}
		if committed {
			charged += a.charged
		}
	}
	return charged
}

// checkCache compares what a worker lists, and its cache, with the counters that exist.
func (f *flakyWorker) checkCache(t *testing.T, held map[engine.CounterID]string) {
	if diff := cmp.Diff(withoutVolatile(held), withoutVolatile(listCounters(t, f.Store))); diff != "" {
		t.Errorf("worker %s differs (-want +got):\n%s", f.name, diff)
	}
	now, _, _ := f.clock.estimate()
	for id, r := range f.cache.rows {
		if state, ok := held[id]; !r.mayBeRemoved(now) && (!ok || state != string(r.state)) {
			t.Errorf("worker %s remembers %v as %q, dirty %v; want %q, %v", f.name, id, r.state, r.dirtySince != nil, state, ok)
		}
	}
}

// idSet returns the ids that a query selects.
func idSet(t *testing.T, conn *pgx.Conn, query string) map[string]bool {
	t.Helper()
	rows, _ := conn.Query(t.Context(), query)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	set := make(map[string]bool)
	for _, id := range all {
		set[id] = true
	}
	return set
}

// withoutVolatile leaves out counters that expire, since a late statement may still remove them
// from the table.
func withoutVolatile(all map[engine.CounterID]string) map[engine.CounterID]string {
	all = maps.Clone(all)
	maps.DeleteFunc(all, func(id engine.CounterID, _ string) bool { return id.Key[0] == 'v' })
	return all
}

// listCounters lists all counters. The worker may have to find out first that its connections are
// dead.
func listCounters(t *testing.T, s *Store) map[engine.CounterID]string {
	t.Helper()
	page, _, err := s.List(t.Context(), "", engine.CounterID{}, 1000)
	for range 20 {
		if err == nil {
			break
		}
		page, _, err = s.List(t.Context(), "", engine.CounterID{}, 1000)
	}
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[engine.CounterID]string)
	for _, c := range page {
		all[c.CounterID] = string(c.State)
	}
	return all
}
