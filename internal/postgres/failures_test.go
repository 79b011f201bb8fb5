package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestConcurrentCreatorsOfOneCounter has two workers decide about one new counter at the same time:
// the second one waits for its turn, and decides over what the first one has written.
func TestConcurrentCreatorsOfOneCounter(t *testing.T) {
	first, second := twoStores(t)
	done := make(chan error, 1)
	err := first.Update(t.Context(), batch("a"), func(snap engine.Snapshot) engine.Changes {
		go func() {
			done <- second.Update(t.Context(), batch("a"), func(snap engine.Snapshot) engine.Changes {
				return set(string(snap.States[0]) + "2")(snap)
			})
		}()
		waitForLock(t, first)
		return set("1")(snap)
	})
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{first, second} {
		if got := state(t, s, "a"); got != "12" {
			t.Errorf("state %q", got)
		}
	}
}

// waitForLock waits until a session of the store's database waits for a lock.
func waitForLock(t *testing.T, s *Store) {
	t.Helper()
	for waiting := 0; waiting == 0; {
		scan(t, s.relay, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`, &waiting)
	}
}

// TestLockTimeout has another session keep the turn: the decision fails in time, and holds nothing.
func TestLockTimeout(t *testing.T) {
	s := open(t, Config{lockTimeout: 20 * time.Millisecond})
	update(t, s, batch("a"), set("0"))
	tx := begin(t, s, turnSQL)
	for _, what := range []string{"a decision over what is remembered", "a decision in turn"} {
		err := s.Update(t.Context(), batch("a"), set("1"))
		if sqlState(err) != "55P03" || errors.Is(err, engine.ErrConflict) || errors.Is(err, engine.ErrCommitUnknown) {
			t.Errorf("%s: %v", what, err)
		}
		s.optimistic.skips = 1
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), batch("a"), set("1")); err != nil {
		t.Errorf("update after it: %v", err)
	}
}

// TestLookupsLeaveConnectionsToDecisions has many lookups of keys wait for a lock, such as a
// migration's.
func TestLookupsLeaveConnectionsToDecisions(t *testing.T) {
	s := open(t, Config{lockTimeout: time.Minute, statementTimeout: time.Minute})
	update(t, s, batch("a"), set("0"))
	tx := begin(t, s, `SET LOCAL idle_in_transaction_session_timeout = 0; LOCK TABLE api_keys IN ACCESS EXCLUSIVE MODE`)
	ctx, cancel := context.WithCancel(t.Context())
	var lookups sync.WaitGroup
	for i := range 32 {
		lookups.Go(func() { _, _, _ = s.Key(ctx, fmt.Sprint(i)) })
	}
	waitForLock(t, s)
	within, done := context.WithTimeout(t.Context(), 5*time.Second)
	defer done()
	if err := s.Update(within, batch("a"), set("1")); err != nil {
		t.Errorf("a decision meanwhile: %v", err)
	}
	cancel()
	lookups.Wait()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestHangingWorkerLosesItsTurn has a worker hang while it has the turn: the server takes the turn
// away.
func TestHangingWorkerLosesItsTurn(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	still, s := open(t, Config{URL: url, decisionIdle: decisionIdle}), open(t, Config{URL: url})
	begun, end := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- still.Update(t.Context(), batch("a"), func(snap engine.Snapshot) engine.Changes {
			close(begun)
			<-end
			return set("still")(snap)
		})
	}()
	<-begun
	if err := s.Update(t.Context(), batch("a"), set("moved")); err != nil {
		t.Errorf("update of another worker: %v", err)
	}
	close(end)
	if err := <-done; err == nil {
		t.Error("the worker that stood still could write")
	}
	if got := state(t, s, "a"); got != "moved" {
		t.Errorf("state %q", got)
	}
}

// TestServerKilled kills the server: what was committed is there when it is back, and the store
// reconnects by itself, although its idle connections are dead.
func TestServerKilled(t *testing.T) {
	server := testenv.PostgresServer(t).Migrated()
	s := open(t, Config{URL: server.URL, maxConns: 4})
	for _, key := range []string{"a", "b"} {
		update(t, s, batch(key), set("kept"))
	}
	server.Kill()
	begin := time.Now()
	err := s.Update(t.Context(), batch("a"), set("lost"))
	if err == nil || errors.Is(err, engine.ErrConflict) {
		t.Errorf("update without a server: %v", err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("it took %v to fail", took)
	}
	server.Start()
	begin = time.Now()
	var last error
	for time.Since(begin) < 5*time.Second {
		if last = s.Update(t.Context(), batch("b"), set("back")); last == nil {
			break
		}
	}
	if last != nil {
		t.Errorf("update: %v", last)
	}
	if a, b := state(t, s, "a"), state(t, s, "b"); a != "kept" || b != "back" {
		t.Errorf("states %q and %q", a, b)
	}
}

// TestConnectionsKilled ends all sessions of the store, as a restart does between two decisions:
// the next decisions do not fail.
func TestConnectionsKilled(t *testing.T) {
	s := open(t, Config{})
	conn := connect(t, s)
	for range 3 {
		update(t, s, batch("a"), set("1"))
		terminate(t, conn, "true")
	}
	if err := s.Update(t.Context(), batch("a"), set("2")); err != nil {
		t.Errorf("update: %v", err)
	}
	terminate(t, conn, "true")
	if _, err := s.Receipts(t.Context(), []string{"x"}); err != nil {
		t.Error(err)
	}
}

// TestCommitAnswerLost cuts the connection when the answer to the commit comes back.
func TestCommitAnswerLost(t *testing.T) {
	direct := testenv.Postgres(t)
	proxy := startProxy(t, direct)
	s := open(t, Config{URL: proxy.url})
	update(t, s, batch("a"), set("before"))
	err := s.Update(t.Context(), batch("a"), func(snap engine.Snapshot) engine.Changes {
		proxy.setCutting(true)
		return set("after")(snap)
	})
	if !errors.Is(err, engine.ErrCommitUnknown) || errors.Is(err, engine.ErrConflict) {
		t.Errorf("update: %v", err)
	}
	// The answer was lost, but not the commit.
	if got := state(t, open(t, Config{URL: direct}), "a"); got != "after" {
		t.Errorf("state %q", got)
	}
}

// untilDecided tries a decision again until it is made, for so long at most, and returns how long that took. Each try has the
// time of a transaction.
func untilDecided(t *testing.T, s *Store, most time.Duration) (took time.Duration, err error) {
	t.Helper()
	began := time.Now()
	for err = errors.New("not asked"); err != nil && time.Since(began) < most; {
		within, done := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		err = s.Update(within, batch("a"), set("2"))
		done()
	}
	return time.Since(began), err
}

// TestSilentConnections has all connections of a worker go silent while new ones work, as in a
// failover that does not close them: background work gives them up, and so does the first decision.
func TestSilentConnections(t *testing.T) {
	proxy := startProxy(t, testenv.Postgres(t))
	s := open(t, Config{URL: proxy.url, relayTimeout: 2 * time.Second})
	none := func(context.Context, []engine.Event) ([]string, error) { return nil, nil }
	for _, key := range []string{"a", "b"} {
		update(t, s, batch(key), set("1"))
	}
	if _, err := s.Relay(t.Context(), 1, none); err != nil {
		t.Fatal(err)
	}
	// Locked, so that background work is first and meets the silence.
	release, err := acquire(t.Context(), s.writeLock)
	if err != nil {
		t.Fatal(err)
	}
	proxy.swallow()
	relayed := make(chan error, 1)
	go func() {
		for {
			if _, err := s.Relay(context.WithoutCancel(t.Context()), 1, none); err == nil {
				close(relayed)
				return
			}
		}
	}()
	folded := make(chan struct{})
	go func() {
		_, _ = s.foldSome(context.WithoutCancel(t.Context()), func() int { return 1 })
		close(folded)
	}()
	release()
	await := func(what string, done <-chan struct{}, within time.Duration) {
		t.Helper()
		select {
		case <-done:
		case <-time.After(within):
			t.Fatalf("%s waits for a silent connection after %v", what, within)
		}
	}
	await("a fold", folded, 5*time.Second)
	if took, err := untilDecided(t, s, 5*time.Second); err != nil || took > 5*time.Second {
		t.Fatalf("a decision after %v: %v", took, err)
	}
	back := make(chan struct{})
	go func() { <-relayed; close(back) }()
	await("the relay", back, 8*time.Second)
}

// TestSilentConnectionsOfOtherWorkDoNotBlockDecisions: other work that takes writeLock has as much
// time as its caller, which may be minutes, and meets a silent connection.
func TestSilentConnectionsOfOtherWorkDoNotBlockDecisions(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(context.Context, *Store) error{
		"expire": func(ctx context.Context, s *Store) error { _, err := s.Expire(ctx, 100); return err },
		"list": func(ctx context.Context, s *Store) error {
			_, _, err := s.List(ctx, "", engine.CounterID{}, 10)
			return err
		},
		"reset": func(ctx context.Context, s *Store) error {
			_, err := s.Reset(ctx, engine.Selection{}, false)
			return err
		},
		"dry run": func(ctx context.Context, s *Store) error {
			_, err := s.Reset(ctx, engine.Selection{}, true)
			return err
		},
		"status": func(ctx context.Context, s *Store) error { _, _, err := s.Counters(ctx, "a"); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := startProxy(t, testenv.Postgres(t))
			s := open(t, Config{URL: proxy.url})
			update(t, s, batch("a"), set("1"))
			if err := s.Ping(t.Context()); err != nil { // Expire acquires its connection before writeLock
				t.Fatal(err)
			}
			proxy.swallow()
			ended := make(chan error, 1)
			patient, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			go func() { ended <- act(patient, s) }()
			for len(s.writeLock) == 0 && len(ended) == 0 { // until it has writeLock
				time.Sleep(time.Millisecond)
			}
			if took, err := untilDecided(t, s, time.Minute); err != nil || took > 2*decisionTimeout+closeTimeout {
				t.Errorf("a decision after %v: %v", took, err)
			}
			cancel()
			<-ended
		})
	}
}

// TestEndOfRestDoesNotDelayDecisions: a worker takes over when a database fails, so its
// connections may be silent.
func TestEndOfRestDoesNotDelayDecisions(t *testing.T) {
	t.Parallel()
	proxy := startProxy(t, testenv.Postgres(t))
	s := open(t, Config{URL: proxy.url})
	update(t, s, batch("a"), set("1"))
	s.Rest(t.Context(), true)
	proxy.swallow()
	ended := make(chan struct{})
	go func() { s.Rest(t.Context(), false); close(ended) }()
	for has := false; !has; { // until it has writeLock, or has given it back
		select {
		case <-ended:
			has = true
		case <-time.After(time.Millisecond):
			has = len(s.writeLock) > 0
		}
	}
	if took, err := untilDecided(t, s, time.Minute); err != nil || took > decisionTimeout-time.Second {
		t.Errorf("a decision after %v: %v", took, err)
	}
}

// TestHangingRollbackReleasesWriteLock has a connection go silent in the middle of a transaction
// that writes nothing: writeLock is released nevertheless.
func TestHangingRollbackReleasesWriteLock(t *testing.T) {
	t.Parallel()
	for name, hang := range map[string]func(ctx context.Context, s *Store, silent func()) error{
		"canceled": func(ctx context.Context, s *Store, silent func()) error {
			s.optimistic.skips = 1
			return s.Update(ctx, batch("a"), func(snap engine.Snapshot) engine.Changes {
				silent()
				return set("2")(snap)
			})
		},
		"canceled in an awaited turn": func(ctx context.Context, s *Store, silent func()) error {
			s.optimistic.skips = 1
			b := batch("a")
			b.Turn = s.Await(ctx)
			return s.Update(ctx, b, func(snap engine.Snapshot) engine.Changes {
				silent()
				return set("2")(snap)
			})
		},
		"unused awaited turn": func(ctx context.Context, s *Store, silent func()) error {
			s.optimistic.skips = 1
			turn := s.Await(ctx)
			silent()
			turn.End()
			return ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := startProxy(t, testenv.Postgres(t))
			s := open(t, Config{URL: proxy.url})
			update(t, s, batch("a"), set("1"))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var began time.Time
			err := hang(ctx, s, func() {
				proxy.swallow()
				cancel()
				began = time.Now()
			})
			if took := time.Since(began); !errors.Is(err, context.Canceled) || took > rollbackTimeout/2 {
				t.Errorf("%v, after %v", err, took)
			}
			if release, err := acquire(t.Context(), s.writeLock); err == nil {
				release()
			}
			if got := state(t, s, "a"); got != "1" {
				t.Errorf("the state is %q", got)
			}
		})
	}
}

// TestSlowConnects has a server that accepts connections more slowly than a
// transaction times out, as after a failover with a storm of connections.
func TestSlowConnects(t *testing.T) {
	proxy := startProxy(t, testenv.Postgres(t))
	s := open(t, Config{URL: proxy.url + "&connect_timeout=20"})
	update(t, s, batch("a"), set("1"))
	proxy.slow(1700 * time.Millisecond) // longer than any transaction waits for a connection
	s.pool.Reset()
	begin := time.Now()
	for err := errors.New("not asked"); err != nil; {
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("after %v: %v", time.Since(begin), err)
		}
		ctx, done := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err = s.Update(ctx, batch("a"), set("2"))
		done()
	}
}

// TestConnectionsToStandbyAreNotKept has an address lead to a standby for a moment, as in a
// switchover, and to the primary again: no connection that was made meanwhile is kept.
func TestConnectionsToStandbyAreNotKept(t *testing.T) {
	primary := testenv.PostgresServer(t).Migrated()
	standby := primary.Standby()
	proxy := startProxy(t, primary.URL)
	s := open(t, Config{URL: proxy.url})
	none := func(context.Context, []engine.Event) ([]string, error) { return nil, nil }
	all := func() (errs []error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, relay := s.Relay(ctx, 1, none)
		_, claim := s.ClaimRun(ctx, jobs.Claim{Job: rand.Text(), Scheduled: 1, Replica: "a", Lease: time.Minute})
		return []error{s.Update(ctx, batch("a"), set("1")), s.Ping(ctx), relay, claim}
	}
	for i, err := range all() {
		if err != nil {
			t.Fatalf("on the primary, %d: %v", i, err)
		}
	}
	proxy.redirect(t, standby.URL)
	s.pool.Reset()
	s.relay.Reset()
	for i, err := range all() {
		if err == nil || !strings.Contains(s.Advice(err), "read-only") {
			t.Errorf("on the standby, %d: %v, with the advice %q", i, err, s.Advice(err))
		}
	}
	proxy.redirect(t, primary.URL)
	for i, err := range all() {
		if err != nil {
			t.Errorf("on the primary again, %d: %v", i, err)
		}
	}
}

// TestCloseWithSilentConnections: a store whose server does not answer can be closed.
func TestCloseWithSilentConnections(t *testing.T) {
	proxy := startProxy(t, testenv.Postgres(t))
	s := open(t, Config{URL: proxy.url, relayTimeout: 7 * time.Second})
	update(t, s, batch("a"), set("1"))
	proxy.hang()
	counted := make(chan struct{})
	go func() {
		_, _ = s.Backlog(context.WithoutCancel(t.Context()))
		close(counted)
	}()
	begin := time.Now()
	s.Close()
	if took := time.Since(begin); took > foldTimeout+closeTimeout+2*time.Second {
		t.Errorf("closing took %v", took)
	}
	<-counted
}
