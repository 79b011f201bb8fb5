package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
)

// The tests of leases are those of exact limits with two differences: the store counts what workers hold as leases, and what
// is lost in a crash.

func TestLeasedChargesAddUpToUsage(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { // time passes only while all goroutines wait, so no lease is given back too late
			leasesGiveBackAllBut(t, []*engine.Engine{onFile(t)}, 0)
		})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		// On a slow machine a lease may be given back too late and be lost: one of each worker, an eighth of the limit at most.
		leasesGiveBackAllBut(t, workers(t, 3), 3./8)
	})
}

// leasesGiveBackAllBut sends random requests for leased limits, and stops the workers. Then each counter must have what was
// charged to it, and at most the given part of its limit more.
func leasesGiveBackAllBut(t *testing.T, engines []*engine.Engine, part float64) {
	l := slowPool(t)
	for i := range l.pool {
		l.pool[i].Leased = true
	}
	l.play(t, engines, 12, 120)
	for _, e := range engines {
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for i, limit := range l.pool {
		got, want := usedOf(t, engines[0], limit.CounterID), l.charged[i].Load()
		if most := want + int64(part*float64(limit.Limit)); got < want || got > most {
			t.Errorf("%s: %d used; the answers add up to %d", limit.Name, got, want)
		}
	}
}

func TestShortWindowsWithLeasesNeverOverAdmit(t *testing.T) {
	t.Parallel()
	neverOverAdmit(t, 6, 3*time.Second, 500*time.Microsecond,
		engine.Limit{Algorithm: engine.SlidingWindow, Limit: 900, Window: parseWindow(t, "900ms"), Threshold: 90, Leased: true},
		engine.Limit{Algorithm: engine.FixedWindow, Limit: 900, Window: parseWindow(t, "700ms"), Threshold: 90, Leased: true},
		engine.Limit{Algorithm: engine.TokenBucket, Limit: 300, Burst: 600, Window: parseWindow(t, "900ms"), Threshold: 90, Leased: true})
}

const leasedLimit = 4000

// admitsLeased sends requests for one leased key by 32 clients. It kills a worker after some were allowed; if it was the only
// one, the clients stop then.
func admitsLeased(t *testing.T, l *load, url string, victim *worker, only bool, n int) {
	t.Helper()
	before := l.allowed.Load()
	l.stopped.Store(false)
	go func() {
		l.waitAllowed(before + 800)
		victim.kill()
		l.stopped.Store(only)
	}()
	l.run(t, url, 32, n, time.Second, func(int) string {
		return `{"key":"api:user:1","limit":4000,"window":"366d","consistency":"leased"}`
	})
}

// lostAtMost compares what the store has counted with the answers. A request without an answer may be charged, and each crash
// may lose a lease, an eighth of the limit at most.
func lostAtMost(t *testing.T, l *load, used int64, crashes int64) {
	t.Helper()
	t.Logf("%s; %d used", l, used)
	if l.allowed.Load() > leasedLimit || used > leasedLimit {
		t.Errorf("%s, %d used: more than %d", l, used, leasedLimit)
	}
	unanswered := l.failed.Load() + l.degraded.Load()
	if lost := used - l.allowed.Load(); lost < 0 || lost > unanswered+crashes*leasedLimit/8 {
		t.Errorf("%d used after %s", used, l)
	}
}

func TestKillingAWorkerLosesAtMostItsLeases(t *testing.T) {
	t.Parallel()
	db, cluster := testenv.Postgres(t), natsWithoutLead(t)
	env := []string{"DATABASE_URL=" + db, "NATS_URL=" + cluster.ClientURL()}
	survivors := []*worker{start(t, env...), start(t, env...)}
	var l load
	admitsLeased(t, &l, cluster.ClientURL(), start(t, env...), false, leasedLimit/2)
	// Kill another worker while the limit runs out.
	admitsLeased(t, &l, cluster.ClientURL(), start(t, env...), false, leasedLimit)
	if l.denied.Load() == 0 {
		t.Errorf("%s: the limit never ran out", &l)
	}
	for _, w := range survivors {
		w.terminate(t)
	}
	start(t, env...)
	lostAtMost(t, &l, used(t, connect(t, cluster.ClientURL()), "api:user:1"), 2)
}

func TestKillingAllInOneLosesAtMostItsLeases(t *testing.T) {
	t.Parallel()
	env := []string{"DATA_DIR=" + filepath.Join(t.TempDir(), "data")}
	var l load
	for range 2 {
		w := start(t, env...)
		admitsLeased(t, &l, w.nats, w, true, 1500)
		w.kill()
	}
	w := start(t, env...)
	l.stopped.Store(false)
	l.run(t, w.nats, 32, leasedLimit, time.Second, func(int) string {
		return `{"key":"api:user:1","limit":4000,"window":"366d","consistency":"leased"}`
	})
	w.terminate(t)
	w = start(t, env...)
	lostAtMost(t, &l, used(t, connect(t, w.nats), "api:user:1"), 2)
}

// TestAfterAResetNoWorkerServesAnEarlierLease: who has the answer to a reset gets no more than the limit, of whatever worker.
func TestAfterAResetNoWorkerServesAnEarlierLease(t *testing.T) {
	t.Parallel()
	db, cluster := testenv.Postgres(t), natsWithoutLead(t)
	env := []string{"DATABASE_URL=" + db, "NATS_URL=" + cluster.ClientURL()}
	start(t, env...)
	start(t, env...)
	nc := connect(t, cluster.ClientURL())
	const limit = 400
	for range 12 {
		if n := allowedOf(t, nc, limit/4); n != limit/4 {
			t.Fatalf("%d of %d allowed", n, limit/4)
		}
		if _, err := nc.Request(limits.SubjectReset, []byte(`{"key":"api:user:1"}`), patience); err != nil {
			t.Fatal(err)
		}
		if n := allowedOf(t, nc, limit*5/4); n > limit || n < limit*3/4 {
			t.Errorf("%d of %d were allowed after a reset; the limit is %d", n, limit*5/4, limit)
		}
		if _, err := nc.Request(limits.SubjectReset, []byte(`{"key":"api:user:1"}`), patience); err != nil {
			t.Fatal(err)
		}
	}
}

// allowedOf sends n requests for one leased key without waiting for answers, and then counts those that are allowed.
func allowedOf(t *testing.T, nc *nats.Conn, n int) (allowed int) {
	t.Helper()
	answers, err := nc.SubscribeSync(nats.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answers.Unsubscribe() }()
	for range n {
		_ = nc.PublishRequest(limits.SubjectConsume, answers.Subject, []byte(`{"key":"api:user:1","limit":400,"window":"366d","consistency":"leased"}`))
	}
	for range n {
		m, err := answers.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(m.Data), `"allowed":true`) {
			allowed++
		}
	}
	return allowed
}
