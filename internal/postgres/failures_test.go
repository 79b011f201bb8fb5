package postgres

import (
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestCreators has two workers decide about one new counter at the same time: the second to write has to decide
// again.
func TestCreators(t *testing.T) {
	s := open(t, Config{})
	var deciding sync.WaitGroup
	deciding.Add(2)
	errs := make(chan error, 2)
	for range 2 {
		go func() {
			errs <- s.Update(t.Context(), batch("a"), func(snap engine.Snapshot) engine.Changes {
				deciding.Done()
				deciding.Wait() // both have read that it is not there
				return set("1")(snap)
			})
		}()
	}
	first, second := <-errs, <-errs
	if (first == nil) == (second == nil) || !errors.Is(errors.Join(first, second), engine.ErrConflict) {
		t.Errorf("got %v and %v; want one conflict", first, second)
	}
	if got := state(t, s, "a"); got != "1" {
		t.Errorf("state %q", got)
	}
}

// TestRowMoved has a row updated, and so moved, while another transaction waits to lock it: the place that is read
// must be the new one.
func TestRowMoved(t *testing.T) {
	s := open(t, Config{})
	if err := s.Update(t.Context(), batch("a", "b"), set("0")); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, s)
	for round := range 3 {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `UPDATE counters SET state = 'moved' WHERE key = 'a'`); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		var saw string // by the last call of decide, which counts
		go func() {
			done <- s.Update(t.Context(), batch("a", "b"), func(snap engine.Snapshot) engine.Changes {
				saw = string(snap.States[0])
				return set("written")(snap)
			})
		}()
		waitForLock(t, s)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if saw != "moved" {
			t.Errorf("round %d: read %q", round, saw)
		}
		if a, b := state(t, s, "a"), state(t, s, "b"); a != "written" || b != "written" {
			t.Errorf("round %d: states %q and %q", round, a, b)
		}
	}
}

// TestLockOrder holds that rows are locked in the order of the batch, not in the one they are stored in: while an
// update waits for its second row, it has the first and not the third.
func TestLockOrder(t *testing.T) {
	s := open(t, Config{})
	for _, key := range []string{"c", "b", "a"} {
		if err := s.Update(t.Context(), batch(key), set("0")); err != nil {
			t.Fatal(err)
		}
	}
	holder, err := connect(t, s).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), `SELECT FROM counters WHERE key = 'b' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Update(t.Context(), batch("a", "b", "c"), set("1")) }()
	waitForLock(t, s)
	rows, err := connect(t, s).Query(t.Context(), `SELECT key FROM counters FOR UPDATE SKIP LOCKED`)
	if err != nil {
		t.Fatal(err)
	}
	free, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || !slices.Equal(free, []string{"c"}) {
		t.Errorf("not locked: %v, %v; want c", free, err)
	}
	if err := holder.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// waitForLock waits until a session of the store's database waits for a lock.
func waitForLock(t *testing.T, s *Store) {
	t.Helper()
	for waiting := 0; waiting == 0; {
		err := s.relay.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestLockTimeout has somebody sit on a row: the decision fails in time, and holds on to nothing.
func TestLockTimeout(t *testing.T) {
	s := open(t, Config{LockTimeout: 20 * time.Millisecond})
	if err := s.Update(t.Context(), batch("a", "b"), set("0")); err != nil {
		t.Fatal(err)
	}
	tx, err := connect(t, s).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM counters WHERE key = 'b' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	err = s.Update(t.Context(), batch("a", "b"), set("1"))
	if sqlState(err) != "55P03" || errors.Is(err, engine.ErrConflict) || errors.Is(err, engine.ErrCommitUnknown) {
		t.Errorf("update: %v", err)
	}
	if err := s.Update(t.Context(), batch("a"), set("1")); err != nil {
		t.Errorf("update of the other row: %v", err)
	}
}

// TestServerKilled kills the server without warning: what was committed is there when it comes back, and the store
// finds it by itself, over connections that were idle when it went.
func TestServerKilled(t *testing.T) {
	server := testenv.PostgresServer(t)
	if err := Migrate(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	s := open(t, Config{URL: server.URL, MaxConns: 4})
	var deciding sync.WaitGroup
	deciding.Add(4)
	errs := make(chan error, 4)
	for _, key := range []string{"a", "b", "c", "d"} { // open all connections
		go func() {
			errs <- s.Update(t.Context(), batch(key), func(snap engine.Snapshot) engine.Changes {
				deciding.Done()
				deciding.Wait()
				return set("kept")(snap)
			})
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
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

// TestConnectionsKilled ends all sessions of the store, as a restart does between two decisions: the next ones do
// not notice.
func TestConnectionsKilled(t *testing.T) {
	s := open(t, Config{})
	conn := connect(t, s)
	for range 3 {
		if err := s.Update(t.Context(), batch("a"), set("1")); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid()`); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Update(t.Context(), batch("a"), set("2")); err != nil {
		t.Errorf("update: %v", err)
	}
}

// TestCommitAnswerLost cuts the connection when the answer to the commit comes back.
func TestCommitAnswerLost(t *testing.T) {
	direct := testenv.Postgres(t, Migrate)
	proxy := startProxy(t, direct)
	s := open(t, Config{URL: proxy.url})
	if err := s.Update(t.Context(), batch("a"), set("before")); err != nil {
		t.Fatal(err)
	}
	err := s.Update(t.Context(), batch("a"), func(snap engine.Snapshot) engine.Changes {
		proxy.cut()
		return set("after")(snap)
	})
	if !errors.Is(err, engine.ErrCommitUnknown) || errors.Is(err, engine.ErrConflict) {
		t.Errorf("update: %v", err)
	}
	// Here the answer was lost, not the commit.
	if got := state(t, open(t, Config{URL: direct}), "a"); got != "after" {
		t.Errorf("state %q", got)
	}
}

// proxy passes bytes on, until it is told to cut: then what the server says next is swallowed.
type proxy struct {
	url     string
	mu      sync.Mutex
	cutting bool
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	cfg, err := pgx.ParseConfig(target)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	network, backend := pgconn.NetworkAddress(cfg.Host, cfg.Port)
	u.Host = l.Addr().String()
	q := u.Query()
	q.Del("host")
	u.RawQuery = q.Encode()
	p := &proxy{url: u.String()}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial(network, backend)
			if err != nil {
				_ = client.Close()
				return
			}
			go p.pass(client, server)
		}
	}()
	return p
}

func (p *proxy) pass(client, server net.Conn) {
	defer client.Close()
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, client)
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		p.mu.Lock()
		cutting := p.cutting
		p.mu.Unlock()
		if err != nil || cutting {
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutting = true
}
