package postgres

import (
	"errors"
	"fmt"
	"testing"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestTransactionsTakeARoundTripForEachBatch, and none to begin and to commit: the server may be far away.
func TestTransactionsTakeARoundTripForEachBatch(t *testing.T) {
	t.Parallel()
	direct := testenv.Postgres(t)
	proxy := startProxy(t, direct)
	s, near := open(t, Config{URL: proxy.url}), open(t, Config{URL: direct})
	n := 0
	take := func(changes func(alerts.GroupID) alerts.Changes, refusal error) func() {
		return func() {
			n++
			g := alerts.GroupID{Rule: "r", Key: fmt.Sprint(n)}
			q := alerts.TakeQuery{Events: []string{g.Key}, Groups: []alerts.GroupID{g}, Subjects: []string{"s"}}
			err := s.Take(t.Context(), q, func(alerts.TakeState) (alerts.Changes, error) { return changes(g), refusal })
			if !errors.Is(err, refusal) {
				t.Error(err)
			}
		}
	}
	none := func(alerts.GroupID) alerts.Changes { return alerts.Changes{} }
	raise := func(g alerts.GroupID) alerts.Changes {
		return alerts.Changes{Raised: []alerts.Alert{{ID: g.Key, GroupID: g}}}
	}
	relay := func(events string) func() {
		return func() {
			execute(t, near, `INSERT INTO outbox (id, type, data) SELECT i, 'limits.warning', '{}' FROM generate_series(1, `+events+`) i`)
			publish(t, s, 10)
		}
	}
	for _, c := range []struct {
		what string
		act  func()
		want int
	}{
		{"take events that raise an alert", take(raise, nil), 2},
		{"take events that change nothing", take(none, nil), 2},
		{"take events that are refused", take(none, errors.New("no")), 2},
		{"relay events", relay("3"), 2},
		{"look for events", relay("0"), 2},
	} {
		if got := proxy.fewestRoundTrips(c.act); got != c.want {
			t.Errorf("%s: %d round trips, want %d", c.what, got, c.want)
		}
	}
}

// failing makes what is done to a table fail with an error, the first times only: at once, or when the transaction commits.
func failing(t *testing.T, s *Store, table, state string, times int, atCommit bool) {
	t.Helper()
	trigger, when := "TRIGGER", ""
	if atCommit {
		trigger, when = "CONSTRAINT TRIGGER", "DEFERRABLE INITIALLY DEFERRED"
	}
	execute(t, s, fmt.Sprintf(`
CREATE SEQUENCE tries;
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF nextval('tries') <= %d THEN
		RAISE EXCEPTION 'told to fail' USING ERRCODE = '%s';
	END IF;
	RETURN NULL;
END $$;
CREATE %s fail AFTER INSERT ON %s %s FOR EACH ROW EXECUTE FUNCTION fail()`, times, state, trigger, table, when))
}

// TestTakeThatFails is rolled back, wherever it does, and runs again if it has lost a race. Its connection is not lost.
func TestTakeThatFails(t *testing.T) {
	t.Parallel()
	for where, f := range map[string]struct {
		table       string
		atCommit    bool
		wantDecided int
	}{"while it reads": {"alert_events", false, 1}, "while it writes": {"alerts", false, 3}, "when it commits": {"alerts", true, 3}} {
		for what, c := range map[string]struct {
			state     string
			wantCalls int
		}{"a race": {serializationFailure, 1}, "a deadlock": {deadlockDetected, 1}, "another failure": {diskFull, 3}} {
			t.Run(where+", "+what, func(t *testing.T) {
				t.Parallel()
				s := open(t, Config{})
				failing(t, s, f.table, c.state, 2, f.atCommit)
				g, decided := alerts.GroupID{Rule: "r", Key: "k"}, 0
				take := func() error {
					q := alerts.TakeQuery{Events: []string{"e"}, Groups: []alerts.GroupID{g}}
					return s.Take(t.Context(), q, func(taken alerts.TakeState) (alerts.Changes, error) {
						if decided++; !taken.Fresh["e"] || len(taken.Open) > 0 {
							t.Errorf("a try that failed left something: %+v", taken)
						}
						return alerts.Changes{Raised: []alerts.Alert{{ID: "a", GroupID: g}}}, nil
					})
				}
				calls := 1
				for err := take(); err != nil; err = take() {
					if calls++; sqlState(err) != c.state {
						t.Fatal(err)
					}
				}
				if calls != c.wantCalls || decided != f.wantDecided {
					t.Errorf("%d calls, which decided %d times; want %d and %d", calls, decided, c.wantCalls, f.wantDecided)
				}
				if n := s.relay.Stat().NewConnsCount(); n != 1 {
					t.Errorf("%d connections were made, want 1", n)
				}
			})
		}
	}
}

// TestTakeWhoseCommitIsNotAnswered fails, but the events are taken: they may come again.
func TestTakeWhoseCommitIsNotAnswered(t *testing.T) {
	t.Parallel()
	proxy := startProxy(t, testenv.Postgres(t))
	s := open(t, Config{URL: proxy.url})
	take := func(id string, decide func(taken alerts.TakeState)) error {
		return s.Take(t.Context(), alerts.TakeQuery{Events: []string{id}}, func(taken alerts.TakeState) (alerts.Changes, error) {
			decide(taken)
			return alerts.Changes{}, nil
		})
	}
	if err := take("first", func(alerts.TakeState) {}); err != nil { // prepares the statements
		t.Fatal(err)
	}
	if err := take("e", func(alerts.TakeState) { proxy.loseAnswers() }); err == nil {
		t.Error("a commit whose answer was lost counts as done")
	}
	err := take("e", func(taken alerts.TakeState) {
		if taken.Fresh["e"] {
			t.Error("the event was not taken")
		}
	})
	if err != nil {
		t.Error(err)
	}
}
