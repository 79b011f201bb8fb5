package postgres

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/alerts"
)

// raise raises an alert, of a group of its own unless it has one.
func raise(t *testing.T, s *Store, a alerts.Alert) {
	t.Helper()
	a.GroupID = cmp.Or(a.GroupID, alerts.GroupID{Rule: "r", Key: a.ID})
	err := s.Take(t.Context(), alerts.TakeQuery{Groups: []alerts.GroupID{a.GroupID}}, func(alerts.TakeState) (alerts.Changes, error) {
		return alerts.Changes{Raised: []alerts.Alert{a}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestTakeInvalidText: an id or key that PostgreSQL cannot store fails the whole batch, and nothing
// of the batch is stored. The caller has to prevent that. Text that is only displayed is sanitized:
// see package storetest.
func TestTakeInvalidText(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	none := func(alerts.TakeState) (alerts.Changes, error) { return alerts.Changes{}, nil }
	for _, bad := range []string{"a\x00b", "a\xffb"} {
		for what, taking := range map[string]alerts.TakeQuery{
			"event":   {Events: []string{"good", bad}},
			"group":   {Events: []string{"good"}, Groups: []alerts.GroupID{{Rule: "r", Key: bad}}},
			"subject": {Events: []string{"good"}, Subjects: []string{bad}},
		} {
			if err := s.Take(t.Context(), taking, none); err == nil {
				t.Errorf("%s %q was taken", what, bad)
			}
		}
		raised := alerts.Alert{ID: "i", GroupID: alerts.GroupID{Rule: "r", Key: "k"}, User: bad}
		err := s.Take(t.Context(), alerts.TakeQuery{Events: []string{"good"}, Groups: []alerts.GroupID{raised.GroupID}},
			func(alerts.TakeState) (alerts.Changes, error) {
				return alerts.Changes{Raised: []alerts.Alert{raised}}, nil
			})
		if err == nil {
			t.Errorf("user %q was taken", bad)
		}
	}
	err := s.Take(t.Context(), alerts.TakeQuery{Events: []string{"good"}}, func(taken alerts.TakeState) (alerts.Changes, error) {
		if !taken.Fresh["good"] {
			t.Error("a batch that failed left an event")
		}
		return alerts.Changes{}, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestTakeLocksGroups: a group is locked while decide runs, even if it is new, and unlocked after
// an error.
func TestTakeLocksGroups(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	old, fresh := alerts.GroupID{Rule: "r", Key: "old"}, alerts.GroupID{Rule: "r", Key: "new"}
	err := s.Take(t.Context(), alerts.TakeQuery{Groups: []alerts.GroupID{old}}, func(alerts.TakeState) (alerts.Changes, error) {
		return alerts.Changes{States: map[alerts.GroupID]json.RawMessage{old: json.RawMessage(`1`)}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	conn := connect(t, s)
	locked := func() (keys []string) {
		rows, err := conn.Query(t.Context(), `SELECT grp FROM alert_groups FOR UPDATE SKIP LOCKED`)
		if err != nil {
			t.Fatal(err)
		}
		if keys, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			t.Fatal(err)
		}
		return keys
	}
	refuse := errors.New("no")
	err = s.Take(t.Context(), alerts.TakeQuery{Groups: []alerts.GroupID{old, fresh}}, func(alerts.TakeState) (alerts.Changes, error) {
		if free := locked(); len(free) > 0 {
			t.Errorf("not locked: %q", free)
		}
		return alerts.Changes{}, refuse
	})
	if !errors.Is(err, refuse) {
		t.Error(err)
	}
	if free := locked(); !slices.Equal(free, []string{"old"}) {
		t.Errorf("after the error: %q", free)
	}
}

// TestResolveSkipsLocked: an alert that is locked is skipped, not waited for.
func TestResolveSkipsLocked(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	g := alerts.GroupID{Rule: "r", Key: "k"}
	raise(t, s, alerts.Alert{ID: "i", GroupID: g, ResolveAt: 1})
	if _, err := s.SaveNotices(t.Context(), []alerts.NoticeDecision{{Alert: "i", Notice: alerts.Sent}}); err != nil {
		t.Fatal(err)
	}
	resolve := func(want int) {
		t.Helper()
		n, err := s.ResolveAlerts(t.Context(), 9, func(alerts.Alert) ([]alerts.Delivery, error) { return nil, nil })
		if n != want || err != nil {
			t.Errorf("resolved %d, %v; want %d", n, err, want)
		}
	}
	err := s.Take(t.Context(), alerts.TakeQuery{Groups: []alerts.GroupID{g}}, func(alerts.TakeState) (alerts.Changes, error) {
		resolve(0)
		return alerts.Changes{}, nil
	})
	if err != nil {
		t.Error(err)
	}
	resolve(1)
}

// TestDigestWaitsForLocked alerts, such as one that is being resolved: left out, it would wait for another hour.
func TestDigestWaitsForLocked(t *testing.T) {
	t.Parallel()
	s := open(t, Config{lockTimeout: time.Minute})
	g := alerts.GroupID{Rule: "r", Key: "k"}
	raise(t, s, alerts.Alert{ID: "i", GroupID: g, User: "u"})
	if _, err := s.SaveNotices(t.Context(), []alerts.NoticeDecision{{Alert: "i", Notice: alerts.Held, HeldUntil: 1}}); err != nil {
		t.Fatal(err)
	}
	type outcome struct {
		n   int
		err error
	}
	made := make(chan outcome, 1)
	err := s.Take(t.Context(), alerts.TakeQuery{Groups: []alerts.GroupID{g}}, func(alerts.TakeState) (alerts.Changes, error) { // which locks it
		go func() {
			n, err := s.DigestAlerts(t.Context(), "u", 9, func([]alerts.Alert, int64) (alerts.DigestDecision, error) {
				return alerts.DigestDecision{Name: "d"}, nil
			})
			made <- outcome{n, err}
		}()
		for waiting := 0; waiting == 0 && len(made) == 0; {
			scan(t, s.pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`, &waiting)
		}
		return alerts.Changes{}, nil
	})
	if err != nil {
		t.Error(err)
	}
	if o := <-made; o.n != 1 || o.err != nil {
		t.Errorf("a digest of %d, %v", o.n, o.err)
	}
}

// TestAlertResolvedMeanwhileIsNotOpen: its lock is waited for while another transaction resolves it.
func TestAlertResolvedMeanwhileIsNotOpen(t *testing.T) {
	t.Parallel()
	s := open(t, Config{lockTimeout: time.Minute})
	g := alerts.GroupID{Rule: "r", Key: "k"}
	raise(t, s, alerts.Alert{ID: "i", GroupID: g})
	resolving := begin(t, s, `SET LOCAL idle_in_transaction_session_timeout = 0; UPDATE alerts SET resolved_at = 1 WHERE id = 'i'`)
	ended := make(chan error, 1)
	go func() {
		var open int
		err := s.Take(t.Context(), alerts.TakeQuery{Groups: []alerts.GroupID{g}}, func(taken alerts.TakeState) (alerts.Changes, error) {
			open = len(taken.Open)
			return alerts.Changes{}, nil
		})
		if err == nil && open > 0 {
			err = errors.New("it is open")
		}
		ended <- err
	}()
	waitForLock(t, s)
	if err := resolving.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestTransactionThatWaitedForLockRunsAgain, since locks are held briefly.
func TestTransactionThatWaitedForLockRunsAgain(t *testing.T) {
	t.Parallel()
	s := open(t, Config{lockTimeout: 500 * time.Millisecond})
	if err := s.AddDelivery(t.Context(), alerts.NewDelivery(alerts.Message{ID: "m"}, "c")); err != nil {
		t.Fatal(err)
	}
	holds := begin(t, s, `SET LOCAL idle_in_transaction_session_timeout = 0; SELECT FROM alert_deliveries FOR UPDATE`)
	ended := make(chan error, 1)
	go func() {
		ended <- s.SaveResults(t.Context(), []alerts.DeliveryResult{{ID: "m/c", State: alerts.DeliverySent}})
	}()
	attempts := map[time.Time]bool{}
	for len(attempts) < 2 {
		var began *time.Time
		scan(t, s.pool, `SELECT max(xact_start) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`, &began)
		if began != nil {
			attempts[*began] = true
		}
		select {
		case err := <-ended:
			t.Fatalf("it ended while the row was locked: %v", err)
		default:
		}
	}
	if err := holds.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestClaimsThatBeginAtOnceShareNoAlert: a claim of an hour by a statement that began five seconds
// later, and was quicker, is not one of a clock that was ahead.
func TestClaimsThatBeginAtOnceShareNoAlert(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	raise(t, s, alerts.Alert{ID: "i"})
	for _, want := range []int{1, 0} {
		if all, _, err := s.PendingAlerts(t.Context(), 9, time.Hour+5*time.Second); err != nil || len(all) != want {
			t.Errorf("claimed %+v, %v; want %d", all, err, want)
		}
	}
}
