package bus

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
	"github.com/seed503877ad/limits/internal/testenv"
)

// ackless is a message whose acknowledgements go nowhere.
type ackless struct{ jetstream.Msg }

func (ackless) Ack() error                       { return nil }
func (ackless) NakWithDelay(time.Duration) error { return nil }
func (ackless) TermWithReason(string) error      { return nil }
func (ackless) Subject() string                  { return limits.EventWarning }
func (ackless) Data() []byte                     { return nil }
func (ackless) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{NumDelivered: 1}, nil
}

// eventStore is a store that keeps what events change.
type eventStore interface {
	alerts.Store
	OwnFault(err error) bool
}

// storing is a consumer whose events change a store, and its log.
func storing(t *testing.T, nc *nats.Conn, s eventStore, batch int) (*Consumer, *logBuffer) {
	t.Helper()
	service, log := alerts.New(alerts.Config{Store: s, Rules: alerts.Default, NewID: rand.Text}), &logBuffer{}
	c, err := NewConsumer(ConsumerConfig{Conn: nc, Take: service.Take, OwnFault: s.OwnFault, Poison: s.KeepPoison, Batch: batch,
		retry: time.Millisecond, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return c, log
}

// raised returns whose alerts a store has.
func raised(t *testing.T, s alerts.Store) map[string]bool {
	t.Helper()
	all, err := s.Alerts(t.Context(), alerts.AlertFilter{Max: 100})
	if err != nil {
		t.Fatal(err)
	}
	users := map[string]bool{}
	for _, a := range all {
		users[a.User] = true
	}
	return users
}

// deadLetters returns the messages that a store keeps because they could not be taken.
func deadLetters(t *testing.T, s alerts.Store) []alerts.Poison {
	t.Helper()
	all, err := s.PoisonMessages(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// publishDenials publishes a denial of each of so many users.
func publishDenials(t *testing.T, nc *nats.Conn, users int) {
	t.Helper()
	js := stream(t, nc)
	for n := range users {
		e := exceeded(n)
		e.User = fmt.Sprint("user-", n)
		if _, err := js.PublishMsg(t.Context(), eventMsg(t, &e)); err != nil {
			t.Fatal(err)
		}
	}
}

// refuseOnPostgres makes the server refuse events, all or one, with an error of that code.
func refuseOnPostgres(t *testing.T, conn *pgx.Conn, code, id string) {
	t.Helper()
	_, err := conn.Exec(t.Context(), `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN IF NEW.id LIKE '`+id+`' THEN RAISE EXCEPTION 'refused' USING ERRCODE = '`+code+`'; END IF; RETURN NEW; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON alert_events FOR EACH ROW EXECUTE FUNCTION refuse()`)
	if err != nil {
		t.Fatal(err)
	}
}

func connectTo(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// TestStoreThatTakesNoWritesPoisonsNothing: a store on a full disk answers what it is asked as long
// as it has nothing to write. All events wait until there is room, however often they were tried,
// and the log has one line of it.
func TestStoreThatTakesNoWritesPoisonsNothing(t *testing.T) {
	t.Parallel()
	const users = 5
	nc, url := dial(t, testenv.NATS(t).ClientURL()), testenv.Postgres(t)
	store, conn := eachstore.Postgres(t, url), connectTo(t, url)
	publishDenials(t, nc, users)
	refuseOnPostgres(t, conn, "53100", "%")
	c, log := storing(t, nc, store, users)
	for range maxStrikes + 2 {
		err := c.pass(t.Context())
		if err == nil || !strings.Contains(err.Error(), "53100") {
			t.Fatalf("%v, want that the disk is full", err)
		}
		c.failed(err)
	}
	if f := c.failure.Load(); f == nil || len(c.strikes) > 0 || len(deadLetters(t, store)) > 0 {
		t.Errorf("failure %+v; strikes %v; dead-lettered %+v", f, c.strikes, deadLetters(t, store))
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines of one failure:\n%s", n, log)
	}
	if _, err := conn.Exec(t.Context(), `DROP TRIGGER refuse ON alert_events`); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "there is an alert of each user", func() bool { return c.pass(t.Context()) == nil && len(raised(t, store)) == users })
	if dead := deadLetters(t, store); len(dead) > 0 {
		t.Errorf("dead-lettered %+v", dead)
	}
}

// TestEventThatStoreRefusesIsPoison: only that one is, after its tries.
func TestEventThatStoreRefusesIsPoison(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) eventStore{
		"postgres": func(t *testing.T) eventStore {
			url := testenv.Postgres(t)
			refuseOnPostgres(t, connectTo(t, url), "23514", "id-3")
			return eachstore.Postgres(t, url)
		},
		"sqlite": func(t *testing.T) eventStore {
			path := filepath.Join(t.TempDir(), "limits.db")
			s, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.ExecContext(t.Context(), `CREATE TRIGGER refuse BEFORE INSERT ON alert_events WHEN NEW.id = 'id-3'
BEGIN SELECT RAISE(ABORT, 'refused'); END`); err != nil {
				t.Fatal(err)
			}
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nc, store := dial(t, testenv.NATS(t).ClientURL()), open(t)
			publishDenials(t, nc, 5)
			c, _ := storing(t, nc, store, 5)
			waitFor(t, "the event is dead-lettered", func() bool { return c.pass(t.Context()) == nil && len(deadLetters(t, store)) > 0 })
			dead, users := deadLetters(t, store), raised(t, store)
			if len(dead) != 1 || !strings.HasPrefix(dead[0].Reason, "gave up after 10 tries: ") || len(users) != 4 || users["user-3"] {
				t.Errorf("dead-lettered %+v; alerts of %v", dead, users)
			}
			if f := c.struck.Load(); f != nil {
				t.Errorf("nothing is left to be taken, and yet: %v", f.err)
			}
		})
	}
}

// TestEventsThatFailAloneAreAFailure while none is taken: it may be the store that refuses them all.
// Whether one was taken by another alerter is not known, so the failure ends with their tries.
func TestEventsThatFailAloneAreAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newTaker()
		c, err := NewConsumer(ConsumerConfig{Conn: &nats.Conn{}, Take: k.take, Poison: k.poison, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		refused := errors.New("refused")
		bad := delivered{message: ackless{}, sequence: 1}
		c.strike(t.Context(), &bad, refused)
		if time.Sleep(failingAfter - time.Second); c.Failure() != nil {
			t.Errorf("at once: %v", c.Failure())
		}
		if time.Sleep(time.Second); !errors.Is(c.Failure(), refused) {
			t.Errorf("after %s: %v", failingAfter, c.Failure())
		}
		if time.Sleep(2 * time.Minute); c.Failure() != nil {
			t.Errorf("it has not come again for long, and yet: %v", c.Failure())
		}
		if c.strike(t.Context(), &bad, refused); c.Failure() != nil {
			t.Errorf("that of before goes on: %v", c.Failure())
		}
		time.Sleep(failingAfter)
		if c.acknowledge([]delivered{{message: ackless{}, sequence: 2}}); c.Failure() != nil {
			t.Errorf("another one was taken, and yet: %v", c.Failure())
		}
	})
}

// TestLastingFailureToDeadLetterIsLoggedOnce, however many messages it has, and its end.
func TestLastingFailureToDeadLetterIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, log := newTaker(), &logBuffer{}
		c, err := NewConsumer(ConsumerConfig{Conn: &nats.Conn{}, Take: k.take, Poison: k.poison, Logger: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		const tries = 10
		k.refusePoison = tries
		for n := range tries {
			if c.poison(t.Context(), &delivered{message: ackless{}, sequence: uint64(n)}, "junk") {
				t.Fatal("it was stored")
			}
			time.Sleep(30 * time.Second)
		}
		if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, `error="no room"`) || !strings.Contains(s, "reason=junk") {
			t.Errorf("of one failure the log says\n%s", s)
		}
		c.poison(t.Context(), &delivered{message: ackless{}}, "junk")
		time.Sleep(time.Minute)
		if s := log.String(); !strings.Contains(s, "can be dead-lettered again") {
			t.Errorf("the end is not told:\n%s", s)
		}
	})
}
