package app

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// started is a limiter or an alerter that is ready.
type started struct {
	log   *watcher
	stop  context.CancelFunc
	ended chan error
}

func startOne(t *testing.T, o Options, run func(context.Context, Options, *slog.Logger) error) *started {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &started{log: newWatcher(), stop: cancel, ended: make(chan error, 1)}
	go func() { s.ended <- run(ctx, o, slog.New(s.log)) }()
	select {
	case s.log.at = <-s.log.ready:
	case err := <-s.ended:
		t.Fatalf("ended before it was ready: %v\n%s", err, s.log)
	case <-time.After(patience):
		t.Fatalf("not ready after %s\n%s", patience, s.log)
	}
	return s
}

// running starts one that runs until the test ends.
func running(t *testing.T, run func(context.Context, Options, *slog.Logger) error, o Options) *started {
	t.Helper()
	s := startOne(t, o, run)
	t.Cleanup(func() {
		if err := s.stopOne(t); err != nil {
			t.Errorf("%v\n%s", err, s.log)
		}
	})
	return s
}

// connect returns a connection to its NATS server.
func (s *started) connect(t *testing.T) *nats.Conn {
	t.Helper()
	return testenv.Connect(t, s.log.at["nats"])
}

// database returns a connection to a database.
func database(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// stopOne stops it and returns its error.
func (s *started) stopOne(t *testing.T) error {
	t.Helper()
	s.stop()
	select {
	case err := <-s.ended:
		return err
	case <-time.After(2 * patience):
		t.Fatalf("still running %s after it was told to stop\n%s", 2*patience, s.log)
	}
	return nil
}

// told waits for an alert on a subscription.
func told(t *testing.T, sub *nats.Subscription, log *watcher) (data limits.AlertRaised) {
	t.Helper()
	m, err := sub.NextMsg(patience)
	if err != nil {
		t.Fatalf("no alert was published: %v\n%s", err, log)
	}
	var event struct {
		Data *limits.AlertRaised `json:"data"`
	}
	event.Data = &data
	if err := json.Unmarshal(m.Data, &event); err != nil {
		t.Fatal(err)
	}
	return data
}

// TestAlerterLeavesNothingBehind runs a worker and an alerter until an alert about the worker's denials was published.
func TestAlerterLeavesNothingBehind(t *testing.T) {
	o := options(t)
	o.DatabaseURL, o.NATSURL = testenv.Postgres(t), testenv.NATSServer(t).URL
	o.Alerts = writeFile(t, "rules: [{name: denials, threshold: {denials: 1}}]")
	db := database(t, o.DatabaseURL)
	before := goleak.IgnoreCurrent()
	for _, user := range []string{"7", "8"} { // the second pair finds the first one's streams
		worker, alerter := startOne(t, o, Run), startOne(t, o, RunAlerter)
		nc, err := nats.Connect(o.NATSURL)
		if err != nil {
			t.Fatal(err)
		}
		sub, err := nc.SubscribeSync(limits.EventAlertRaised)
		if err != nil {
			t.Fatal(err)
		}
		client := limits.NewClient(nc, limits.Timeout(patience))
		deny(t, client, "api:user:"+user)
		if a := told(t, sub, alerter.log); a.User != user || a.Denied != 1 {
			t.Errorf("%+v", a)
		}
		var programs int
		if err := db.QueryRow(t.Context(), `SELECT count(DISTINCT application_name) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name IN ('limiter', 'alerter')`).Scan(&programs); err != nil || programs != 2 {
			t.Errorf("PostgreSQL sees %d of the two programs, %v", programs, err)
		}
		var list limits.AlertList
		raw, err := client.Do(t.Context(), limits.SubjectAlertsList, []byte(`{"user":"`+user+`"}`))
		if err != nil || json.Unmarshal(raw, &list) != nil || len(list.Alerts) != 1 {
			t.Errorf("%s, %v", raw, err)
		}
		nc.Close()
		for _, s := range []*started{alerter, worker} {
			if err := s.stopOne(t); err != nil {
				t.Errorf("%v\n%s", err, s.log)
			}
		}
	}
	goleak.VerifyNone(t, before)
}

// TestNothingIsResolvedWhileEventsWait, on the stream or to be published to it: there may be denials among them.
func TestNothingIsResolvedWhileEventsWait(t *testing.T) {
	t.Parallel()
	resolves := func(t *testing.T, natsURL, databaseURL, want string) {
		t.Helper()
		o := options(t)
		o.NATSURL, o.DatabaseURL = natsURL, databaseURL
		client, note := limits.NewClient(running(t, RunAlerter, o).connect(t), limits.Timeout(patience)), ""
		for end := time.Now().Add(patience); note != want; <-time.After(20 * time.Millisecond) {
			// It fails while the same job runs by its schedule.
			if r, err := client.RunJob(t.Context(), "alerts-resolve"); err == nil {
				note = r.Run.Note
			}
			if time.Now().After(end) {
				t.Fatalf("the note is %q, want %q", note, want)
			}
		}
	}
	t.Run("on a stream that is not there", func(t *testing.T) {
		t.Parallel()
		resolves(t, testenv.NATSConfig(t, "").ClientURL(), testenv.Postgres(t), "resolved 0: events are waiting to be processed")
	})
	t.Run("in the outbox of a worker that is away", func(t *testing.T) {
		t.Parallel()
		databaseURL := testenv.Postgres(t)
		old := `INSERT INTO outbox (id, type, data) VALUES ('e', 'limits.exceeded', '{}')`
		if _, err := database(t, databaseURL).Exec(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		resolves(t, testenv.NATS(t).ClientURL(), databaseURL, "resolved 0: events are waiting to be published")
	})
}

// TestSIGHUPWithoutFilesDoesNotStop: SIGHUP may be sent to all processes, including those without a file.
func TestSIGHUPWithoutFilesDoesNotStop(t *testing.T) {
	s := running(t, Run, options(t))
	hangUp(t)
	s.log.await(t, "SIGHUP: no file to reload")
	s.use(t)
}

// deny exhausts a limit of 1, and is denied once.
func deny(t *testing.T, client *limits.Client, key string) {
	t.Helper()
	r := limits.Per(key, 1, "1h")
	for range 2 {
		if _, err := client.Consume(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAlerterStopsWithoutItsServers: the stop is not held up while PostgreSQL or NATS is down.
func TestAlerterStopsWithoutItsServers(t *testing.T) {
	database, server := testenv.PostgresServer(t).Migrated(), testenv.NATSServer(t)
	o := options(t)
	o.DatabaseURL, o.NATSURL = database.URL, server.URL
	for _, away := range []struct{ kill, start func() }{{server.Kill, server.Start}, {database.Kill, database.Start}} {
		before := goleak.IgnoreCurrent()
		s := startOne(t, o, RunAlerter)
		away.kill()
		_ = s.stopOne(t) // may tell what it could not do
		goleak.VerifyNone(t, before)
		away.start()
	}
}
