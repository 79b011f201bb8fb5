package postgres

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestChargesThatAStandbyLacksAreNotAnswered: when the synchronous standby is away, a client that gives up has the server
// commit without it. A failover would lose such a charge.
func TestChargesThatAStandbyLacksAreNotAnswered(t *testing.T) {
	t.Parallel()
	url := testenv.PostgresServer(t).Migrated().URL
	s := open(t, Config{URL: url})
	receipt := engine.Receipt{ID: "id", Answer: []byte("{}"), ExpiresAt: 1 << 45}
	update(t, s, batch("a"), set("before"))
	admin, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(context.WithoutCancel(t.Context())) }()
	// waits reports whether commits wait for a standby.
	waits := func() bool {
		c, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
		ctx, cancel := context.WithCancel(t.Context())
		committed := make(chan error, 1)
		go func() {
			_, err := c.Exec(ctx, `SELECT pg_logical_emit_message(true, 'test', '')`)
			committed <- err
		}()
		for waiting := 0; waiting == 0; {
			select {
			case err := <-committed:
				cancel()
				if err != nil {
					t.Fatal(err)
				}
				return false
			default:
			}
			if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`).Scan(&waiting); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		<-committed
		return true
	}
	standby := func(names string) {
		t.Helper()
		exec(t, admin, "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'")
		exec(t, admin, "SELECT pg_reload_conf()")
		for waits() != (names != "") {
		}
	}
	try := func(s *Store, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return s.Update(ctx, b, decide)
	}
	standby("away")
	charged := batch("a")
	charged.IDs = []string{receipt.ID}
	err = try(s, charged, func(snap engine.Snapshot) engine.Changes {
		c := set("after")(snap)
		c.Receipts = []engine.Receipt{receipt}
		return c
	})
	if !errors.Is(err, engine.ErrCommitUnknown) {
		t.Errorf("a charge: %v", err)
	}
	replays := 0
	replay := func(snap engine.Snapshot) (c engine.Changes) {
		if snap.Receipts[0] != nil {
			replays++
		}
		return c
	}
	if err := try(s, charged, replay); err == nil || replays == 0 {
		t.Errorf("what was answered is read %d times: %v", replays, err)
	}
	other := open(t, Config{URL: url}) // which takes over
	if err := try(other, charged, replay); err == nil || replays == 1 {
		t.Errorf("another worker reads it %d times: %v", replays-1, err)
	}
	other.Rest(t.Context(), true)
	standby("")
	for _, s := range []*Store{s, other} {
		if err := try(s, charged, replay); err != nil || state(t, s, "a") != "after" {
			t.Errorf("without a standby: %v", err)
		}
	}
	standby("away")
	other.Rest(t.Context(), false)
	if err := try(other, charged, replay); err == nil {
		t.Error("a worker that decides again may have missed something")
	}
	standby("")
}
