package e2e

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
	"github.com/seed503877ad/limits/internal/testenv"
)

// clockSpeed is how many times faster the stores' clocks run. A counter is kept for at least a minute, and must expire and
// come back many times in a test.
const clockSpeed = 600

// cleaned is a store with engines on it, and its removal of expired counters.
type cleaned struct {
	engines []*engine.Engine
	runs    jobs.Store
	expire  func(ctx context.Context, max int) (int, error)
}

// TestCleanupLosesNoLiveCounter charges counters that expire and come back, while a job removes expired ones as fast as it
// can. In each window of a counter no more than the limit may be allowed: a counter that was removed during its window would
// start again at 0.
func TestCleanupLosesNoLiveCounter(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		began := time.Now()
		store := eachstore.SQLite(t, func() time.Time { return began.Add(clockSpeed * time.Since(began)) })
		cleanUnderLoad(t, cleaned{[]*engine.Engine{engineOn(t, store, nil)}, store, store.Expire})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		at := withFastClock(t, testenv.Postgres(t))
		var c cleaned
		for range 2 {
			store := eachstore.Postgres(t, at)
			c = cleaned{append(c.engines, engineOn(t, store, nil)), store, store.Expire}
		}
		cleanUnderLoad(t, c)
	})
}

// engineOn returns an engine on a store; broadcast may be nil.
func engineOn(t *testing.T, store engine.Store, broadcast func(engine.Forget)) *engine.Engine {
	t.Helper()
	e, err := engine.New(t.Context(), engine.Config{Store: store, NewID: rand.Text, Deadline: patience, Broadcast: broadcast})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close(context.Background()) })
	return e
}

// withFastClock returns a URL whose sessions use fast clock functions instead of PostgreSQL's, by their search path.
func withFastClock(t *testing.T, at string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	sql := "CREATE SCHEMA hasty; CREATE TABLE hasty.began AS SELECT pg_catalog.clock_timestamp() AS at;"
	for name, kind := range map[string]string{"clock_timestamp": "VOLATILE", "statement_timestamp": "STABLE"} {
		sql += fmt.Sprintf(`CREATE FUNCTION hasty.%s() RETURNS timestamptz LANGUAGE sql %s AS
			$$ SELECT at + (pg_catalog.%s() - at) * %d FROM hasty.began $$;`, name, kind, name, clockSpeed)
	}
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", "hasty,pg_catalog,public")
	u.RawQuery = q.Encode()
	return u.String()
}

// windowID identifies a window of a counter.
type windowID struct {
	key   string
	reset int64
}

// grants counts what was allowed in each window.
type grants struct {
	mu      sync.Mutex
	allowed map[windowID]int
	// full counts the windows that were charged up to the limit.
	full atomic.Int64
}

const (
	cleanedKeys  = 40
	cleanedLimit = 5
	// enoughRemoved is how many removals the test waits for.
	enoughRemoved = 3 * cleanedKeys
)

// burst sends two requests more than a window allows.
func (g *grants) burst(ctx context.Context, e *engine.Engine, l engine.Limit) error {
	for range cleanedLimit + 2 {
		got, err := e.Do(ctx, &engine.Request{Verb: engine.Consume, Cost: 1, Limits: []engine.Limit{l}, OnError: engine.OnErrorDeny})
		switch {
		case err != nil:
			return err
		case got.Degraded:
			return fmt.Errorf("degraded: %+v", got)
		case got.Allowed:
			g.mu.Lock()
			id := windowID{l.Key, got.Results[0].ResetAt}
			g.allowed[id]++
			if g.allowed[id] == cleanedLimit {
				g.full.Add(1)
			}
			g.mu.Unlock()
		}
	}
	return nil
}

// check checks that no window was charged more often than the limit.
func (g *grants) check(t *testing.T) {
	t.Helper()
	for id, n := range g.allowed {
		if n > cleanedLimit {
			t.Errorf("%s was charged %d in the window that ends at %d, limit %d", id.key, n, id.reset, cleanedLimit)
		}
	}
}

func cleanUnderLoad(t *testing.T, c cleaned) {
	var removed atomic.Int64
	r, err := jobs.New(jobs.Config{Store: c.runs, Logger: slog.New(slog.DiscardHandler), Replica: "a", Jobs: []jobs.Job{{
		// Long, because it is measured by the fast clock.
		Name: "expire", Timeout: 1000 * time.Hour, Run: func(ctx context.Context) (string, error) {
			n, err := c.expire(ctx, 20)
			removed.Add(int64(n))
			return "", err
		}}}})
	if err != nil {
		t.Fatal(err)
	}
	ended, cleanedUp := make(chan struct{}), make(chan error, 1)
	go func() { cleanedUp <- runUntil(r, ended) }()

	g, w, chance, late := grants{allowed: map[windowID]int{}}, parseWindow(t, "1m"), dice(t), time.Now().Add(patience)
	var clients sync.WaitGroup
	for client := range 4 {
		clients.Go(func() {
			for dice := chance(client); (removed.Load() < enoughRemoved || g.full.Load() < cleanedKeys) && time.Now().Before(late); {
				l := engine.Limit{CounterID: engine.CounterID{Key: fmt.Sprint("k", dice.IntN(cleanedKeys)), Name: "1m"},
					Algorithm: engine.FixedWindow, Limit: cleanedLimit, Window: w, Threshold: -1}
				if err := g.burst(t.Context(), c.engines[dice.IntN(len(c.engines))], l); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	clients.Wait()
	close(ended)
	if err := <-cleanedUp; err != nil {
		t.Fatal(err)
	}
	g.check(t)
	if full := g.full.Load(); removed.Load() < enoughRemoved || full < cleanedKeys {
		t.Errorf("%d counters were removed and %d windows of %d full; too few to test anything", removed.Load(), full, len(g.allowed))
	}
}

// runUntil runs the job again and again until ended is closed.
func runUntil(r *jobs.Runner, ended <-chan struct{}) error {
	for {
		run, err := r.RunNow(context.Background(), "expire")
		switch {
		case errors.Is(err, jobs.ErrBusy): // the previous run began in the same millisecond
		case err != nil:
			return err
		case run.Outcome != jobs.Done:
			return fmt.Errorf("%+v", run)
		}
		select {
		case <-ended:
			return r.Close(context.Background())
		default:
		}
	}
}

// TestTwoLimitersRunEachJobOnce: two processes on one database share the runs, and one goes on when the other is killed.
func TestTwoLimitersRunEachJobOnce(t *testing.T) {
	t.Parallel()
	env := []string{"DATABASE_URL=" + testenv.Postgres(t), "NATS_URL=" + testenv.NATS(t).ClientURL(), "CLEANUP_EVERY=1s", "ALERTER=on"}
	workers := []*worker{start(t, env...), start(t, env...)}
	// A request that is on its way to a worker when it is killed gets no answer, so it is asked again.
	client := limits.NewClient(connect(t, workers[0].nats), limits.Timeout(2*time.Second))
	history := func() (runs []limits.JobRun) {
		eventually(t, func() error {
			h, err := client.JobHistory(t.Context(), limits.JobHistoryRequest{Job: "expire", Max: limits.MaxJobRuns})
			if err == nil {
				runs = h.Runs
			}
			return err
		})
		return runs
	}
	enough := func(n int) func() error {
		return func() error {
			if got := len(history()); got < n {
				return fmt.Errorf("%d runs", got)
			}
			return nil
		}
	}
	eventually(t, enough(4))
	list, err := client.ListJobs(t.Context())
	if err != nil || len(list.Jobs) != 13 || list.Jobs[0].Name != "expire" || list.Jobs[0].Schedule != "@every 1s" {
		t.Errorf("jobs: %+v, %v", list, err)
	}
	// The metrics of the workers agree with the history, except for runs that began or ended meanwhile.
	before := len(history())
	did := jobsDone(t, workers[0]) + jobsDone(t, workers[1])
	if after := len(history()); did < before-1 || did > after {
		t.Errorf("the workers did %d runs, the history has %d to %d", did, before, after)
	}
	workers[0].kill()
	if len(history()) > 0 && history()[0].Outcome == "running" {
		return // it was killed during a run, whose lease lasts for minutes
	}
	eventually(t, enough(len(history())+3))
	seen := map[int64]bool{}
	for _, r := range history() {
		if seen[r.Scheduled] || r.Outcome != "done" && r.EndedAt != 0 {
			t.Errorf("run %+v", r)
		}
		seen[r.Scheduled] = true
	}
}

// jobsDone reads how many runs of expire a worker did from its metrics.
func jobsDone(t *testing.T, w *worker) int {
	t.Helper()
	metrics, err := w.metrics()
	if err != nil {
		t.Fatal(err)
	}
	_, value, _ := strings.Cut(metrics, `limits_job_runs_total{job="expire",outcome="done"} `)
	value, _, _ = strings.Cut(value, "\n")
	n, err := strconv.Atoi(value)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
