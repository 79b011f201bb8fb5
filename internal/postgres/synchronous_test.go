package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
)

// replicated is a server of this test whose synchronous standby comes and goes.
type replicated struct {
	url   string
	admin *pgx.Conn
}

func startReplicated(t *testing.T) *replicated {
	t.Helper()
	r := &replicated{url: testenv.PostgresServer(t).Migrated().URL}
	r.admin = r.connect(t)
	return r
}

func (r *replicated) connect(t *testing.T) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), r.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// standby sets the name of the standby, which never connects, and returns when commits wait for it or, if the name is empty, no
// longer do.
func (r *replicated) standby(t *testing.T, name string) {
	t.Helper()
	exec(t, r.admin, "ALTER SYSTEM SET synchronous_standby_names = '"+name+"'")
	exec(t, r.admin, "SELECT pg_reload_conf()")
	for r.commitsWait(t) != (name != "") {
	}
}

func (r *replicated) commitsWait(t *testing.T) bool {
	t.Helper()
	c := r.connect(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	committed := make(chan error, 1)
	go func() {
		_, err := c.Exec(ctx, `SELECT pg_logical_emit_message(true, 'test', '')`)
		committed <- err
	}()
	for waiting := 0; waiting == 0; {
		select {
		case err := <-committed:
			if err != nil {
				t.Fatal(err)
			}
			return false
		default:
		}
		if err := r.admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	<-committed
	return true
}

// try is Update, given up after 2 s.
func try(t *testing.T, s *Store, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	return s.Update(ctx, b, decide)
}

// chargeAlone charges counter a under an id while the standby is away, and returns the batch and how often it was replayed by
// replay.
func chargeAlone(t *testing.T, s *Store) (charged engine.Batch, replays *int, replay func(engine.Snapshot) engine.Changes) {
	t.Helper()
	receipt := engine.Receipt{ID: "id", Answer: []byte("{}"), ExpiresAt: 1 << 45}
	charged = batch("a")
	charged.IDs = []string{receipt.ID}
	err := try(t, s, charged, func(snap engine.Snapshot) engine.Changes {
		c := set("after")(snap)
		c.Receipts = []engine.Receipt{receipt}
		return c
	})
	if !errors.Is(err, engine.ErrCommitUnknown) {
		t.Errorf("a charge: %v", err)
	}
	replays = new(int)
	return charged, replays, func(snap engine.Snapshot) (c engine.Changes) {
		if snap.Receipts[0] != nil {
			*replays++
		}
		return c
	}
}

// TestChargesThatAStandbyLacksAreNotAnswered: when the synchronous standby is away, a client that gives up has the server
// commit without it. A failover would lose such a charge.
func TestChargesThatAStandbyLacksAreNotAnswered(t *testing.T) {
	t.Parallel()
	r := startReplicated(t)
	s := open(t, Config{URL: r.url})
	update(t, s, batch("a"), set("before"))
	r.standby(t, "away")
	charged, replays, replay := chargeAlone(t, s)
	if err := try(t, s, charged, replay); err == nil || *replays == 0 {
		t.Errorf("what was answered is read %d times: %v", *replays, err)
	}
	other := open(t, Config{URL: r.url}) // which takes over
	if err := try(t, other, charged, replay); err == nil || *replays == 1 {
		t.Errorf("another worker reads it %d times: %v", *replays-1, err)
	}
	other.Rest(t.Context(), true)
	r.standby(t, "")
	for _, s := range []*Store{s, other} {
		if err := try(t, s, charged, replay); err != nil || state(t, s, "a") != "after" {
			t.Errorf("without a standby: %v", err)
		}
	}
	r.standby(t, "away")
	other.Rest(t.Context(), false)
	if err := try(t, other, charged, replay); err == nil {
		t.Error("a worker that decides again may have missed something")
	}
	r.standby(t, "")
}

// TestAWorkerThatDecidesBesideAnotherConfirmsWhatItReads: several workers may decide at a time. One reads the receipt that
// another one committed without the standby.
func TestAWorkerThatDecidesBesideAnotherConfirmsWhatItReads(t *testing.T) {
	t.Parallel()
	r := startReplicated(t)
	s, beside := open(t, Config{URL: r.url}), open(t, Config{URL: r.url})
	update(t, s, batch("a"), set("before"))
	update(t, beside, batch("b"), set("before"))
	r.standby(t, "away")
	charged, replays, replay := chargeAlone(t, s)
	if err := try(t, beside, charged, replay); err == nil || *replays == 0 {
		t.Errorf("the worker beside it reads it %d times: %v", *replays, err)
	}
	r.standby(t, "")
}

// TestEventsThatAStandbyLacksAreNotPublished: after a failover the decision never was, and its event comes again with another id
// when the request does.
func TestEventsThatAStandbyLacksAreNotPublished(t *testing.T) {
	t.Parallel()
	r := startReplicated(t)
	s := open(t, Config{URL: r.url})
	update(t, s, batch("a"), set("before"))
	r.standby(t, "away")
	err := try(t, s, batch("a"), func(snap engine.Snapshot) engine.Changes {
		c := set("after")(snap)
		c.Events = []engine.Event{{ID: "crossing", Type: engine.EventExceeded}}
		return c
	})
	if !errors.Is(err, engine.ErrCommitUnknown) {
		t.Errorf("a charge: %v", err)
	}
	_, err = s.Relay(t.Context(), 10, func(_ context.Context, events []engine.Event) ([]string, error) {
		t.Errorf("%d are published", len(events))
		return nil, nil
	})
	if err == nil || !strings.Contains(err.Error(), "synchronous_standby_names") {
		t.Errorf("relay: %v", err)
	}
	r.standby(t, "")
	if got := publish(t, s, 10); !slices.Equal(got, []string{"crossing"}) {
		t.Errorf("with the standby: %q", got)
	}
}
