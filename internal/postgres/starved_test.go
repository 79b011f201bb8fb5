package postgres

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
)

// decideAndRead has a store decide, look for receipts and read counters at the same time, and
// returns the first error of a decision.
func decideAndRead(t *testing.T, s *Store, rounds int) error {
	t.Helper()
	var all sync.WaitGroup
	var failed atomic.Pointer[error]
	decide := func(what string, b engine.Batch, decide func(engine.Snapshot) engine.Changes) {
		for i := 0; i < rounds && failed.Load() == nil; i++ {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // the machine of the tests may be slow
			err := s.Update(ctx, b, decide)
			cancel()
			if err != nil {
				err = fmt.Errorf("%s: %w", what, err)
				failed.CompareAndSwap(nil, &err)
				return
			}
		}
	}
	for i := range 6 {
		all.Go(func() {
			for i := 0; i < rounds && failed.Load() == nil; i++ {
				_, _, _ = s.Counters(t.Context(), "a")
			}
		})
		all.Go(func() { decide("look for a receipt", engine.Batch{IDs: []string{fmt.Sprint("none ", i)}}, nothing) })
		if i < 4 {
			all.Go(func() { decide("decide", batch("a", fmt.Sprint(i)), set("1")) })
		}
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// limitedRole returns the URL of a database for a role that may have as many sessions as allow says.
func limitedRole(t *testing.T) (at string, allow func(sessions int)) {
	t.Helper()
	at = testenv.Postgres(t)
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	conn := connect(t, open(t, Config{URL: at}))
	role := "limited_" + strings.TrimPrefix(u.Path, "/")
	exec(t, conn, `CREATE ROLE `+role+` LOGIN PASSWORD 'p'`)
	t.Cleanup(func() {
		for _, sql := range []string{`DROP OWNED BY `, `DROP ROLE `} {
			if _, err := conn.Exec(context.Background(), sql+role); err != nil {
				t.Error(err)
			}
		}
	})
	exec(t, conn, `GRANT ALL ON ALL TABLES IN SCHEMA public TO `+role)
	exec(t, conn, `GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO `+role)
	u.User = url.UserPassword(role, "p")
	return u.String(), func(sessions int) { exec(t, conn, fmt.Sprintf(`ALTER ROLE %s CONNECTION LIMIT %d`, role, sessions)) }
}

// TestRefusedSessionsFailNoDecision: the server lets nobody else in, and the connections that are
// there serve decisions and reads.
func TestRefusedSessionsFailNoDecision(t *testing.T) {
	t.Parallel()
	for _, sessions := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(sessions), func(t *testing.T) {
			t.Parallel()
			at, allow := limitedRole(t)
			allow(sessions)
			s := open(t, Config{URL: at})
			update(t, s, batch("a"), set("0"))
			if err := decideAndRead(t, s, 100); err != nil {
				t.Error(err)
			}
			if n := s.pool.Stat().TotalConns() - s.pool.Stat().ConstructingConns(); n > int32(sessions) {
				t.Errorf("there are %d connections", n)
			}
			allow(-1)
			if err := decideAndRead(t, s, 10); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestUnansweredSessionsFailNoDecision: a pooler without a free session accepts connections and does not
// answer.
func TestUnansweredSessionsFailNoDecision(t *testing.T) {
	t.Parallel()
	proxy := startProxy(t, testenv.Postgres(t))
	s := open(t, Config{URL: proxy.url})
	update(t, s, batch("a"), set("0"))
	proxy.slow(time.Hour)
	if err := decideAndRead(t, s, 100); err != nil {
		t.Error(err)
	}
}
