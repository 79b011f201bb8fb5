package app

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestNotReadyWhileTransactionsFail: it answers pings, but all transactions fail.
func TestNotReadyWhileTransactionsFail(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.DatabaseURL = testenv.Postgres(t)
	s := running(t, Run, o)
	nc := s.connect(t)
	db := database(t, o.DatabaseURL)
	for _, step := range []struct {
		sql, metric, logged string
		status              int
	}{
		{`ALTER TABLE journal RENAME TO gone`, "limits_store_failing 1", "the store is failing", 503},
		{`ALTER TABLE gone RENAME TO journal`, "limits_store_failing 0", "", 200}, // the log has the end of an outage later
	} {
		if _, err := db.Exec(t.Context(), step.sql); err != nil {
			t.Fatal(err)
		}
		client := limits.NewClient(nc, limits.Timeout(patience))
		for degraded := step.status == 200; degraded == (step.status == 200); {
			reply, err := client.Consume(t.Context(), limits.Request{LimitSpec: limits.LimitSpec{Key: "k", Limit: 1_000_000, Window: "1h"}})
			if err != nil {
				t.Fatal(err)
			}
			degraded = reply.Degraded
		}
		if status, body := s.get(t, "/readyz"); status != step.status || status == 503 && !strings.Contains(body, "journal") {
			t.Errorf("%s: %d %s", step.sql, status, body)
		}
		if _, body := s.get(t, "/metrics"); !strings.Contains(body, "\n"+step.metric+"\n") {
			t.Errorf("%s: no %s", step.sql, step.metric)
		}
		if !strings.Contains(s.log.String(), step.logged) {
			t.Errorf("%s: %q is not in the log:\n%s", step.sql, step.logged, s.log)
		}
	}
}

// TestCorruptCounterIsLogged with the command that repairs it, and the command works.
func TestCorruptCounterIsLogged(t *testing.T) {
	t.Parallel()
	for what, damage := range map[string]string{"state": `state = '\x00ff'`, "spec": `spec = '{"algorithm":"none"}'`} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			o := options(t)
			o.DatabaseURL = testenv.Postgres(t)
			request := limits.Per("damaged", 5, "1h")
			ask := func(act func(c *limits.Client, s *started)) {
				t.Helper()
				s := startOne(t, o, Run)
				nc := s.connect(t)
				act(limits.NewClient(nc, limits.Timeout(patience)), s)
				nc.Close()
				if err := s.stopOne(t); err != nil {
					t.Error(err)
				}
			}
			ask(func(c *limits.Client, _ *started) { // which folds what it has charged into the table when it stops
				if _, err := c.Consume(t.Context(), request); err != nil {
					t.Fatal(err)
				}
			})
			db := database(t, o.DatabaseURL)
			if tag, err := db.Exec(t.Context(), `UPDATE counters SET `+damage); err != nil || tag.RowsAffected() != 1 {
				t.Fatal(tag, err)
			}
			ask(func(c *limits.Client, s *started) {
				if _, err := c.Status(t.Context(), "damaged"); err == nil || !strings.Contains(err.Error(), `"damaged"`) || !strings.Contains(err.Error(), "limiter reset KEY") {
					t.Errorf("status: %v; want which counter, and what to do", err)
				}
				if what == "state" {
					if reply, err := c.Consume(t.Context(), request); err != nil || !reply.Degraded {
						t.Errorf("%+v, %v; want an answer without the store", reply, err)
					}
					s.log.await(t, `counter "damaged" "1h": stored state is corrupt`)
				}
				if _, err := c.Reset(t.Context(), limits.ResetRequest{Key: "damaged"}); err != nil {
					t.Fatal(err)
				}
				if reply, err := c.Consume(t.Context(), request); err != nil || reply.Degraded || reply.Remaining != 4 {
					t.Errorf("after the reset: %+v, %v", reply, err)
				}
			})
		})
	}
}

// TestStoreOutageIsDetectedWithoutRequests: no requests come, so only the scrape can find out.
func TestStoreOutageIsDetectedWithoutRequests(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t).Migrated()
	o := options(t)
	o.DatabaseURL = server.URL
	s := startOne(t, o, Run)
	defer func() { _ = s.stopOne(t) }() // it may have lost counts of usage
	failing := func() bool {
		_, body := s.get(t, "/metrics")
		return strings.Contains(body, "\nlimits_store_failing 1\n")
	}
	if failing() {
		t.Error("it fails from the start")
	}
	server.Kill()
	if !failing() {
		t.Error("PostgreSQL is away, and nothing fails")
	}
	server.Start()
	for end := time.Now().Add(patience); failing(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("PostgreSQL is back, and it still fails")
		}
	}
}

func (s *started) get(t *testing.T, path string) (status int, body string) {
	t.Helper()
	return get(t, "http://"+s.log.at["http"]+path)
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

// TestInterruptedStartSaysSo interrupts a start that waits for a missing server, and one that is about to open its file.
func TestInterruptedStartSaysSo(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"PostgreSQL": {DatabaseURL: "postgres://limits@127.0.0.1:1/limits"},
		"database":   {DataDir: t.TempDir()},
	} {
		l := &limiter{Options: o, log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		if o.DatabaseURL == "" {
			cancel()
		}
		time.AfterFunc(300*time.Millisecond, cancel)
		err := l.start(ctx, []func(context.Context) error{l.startStore})
		if err == nil || !strings.HasPrefix(err.Error(), "interrupted: ") || !strings.Contains(err.Error(), name) ||
			strings.Contains(err.Error(), "gave up") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWaitingStartAnswersHealthChecks: while a start waits for PostgreSQL or NATS it is alive, and /readyz names the missing
// server.
func TestWaitingStartAnswersHealthChecks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set     func(o *Options)
		log     string
		awaited string
	}{
		"postgres": {func(o *Options) { o.DatabaseURL = "postgres://u:secret@127.0.0.1:1/limits" }, "waiting for PostgreSQL", "store"},
		"nats":     {func(o *Options) { o.NATSURL = "nats://127.0.0.1:1" }, "connect to NATS", "nats"},
	} {
		for program, run := range map[string]func(context.Context, Options, *slog.Logger) error{"limiter": Run, "alerter": RunAlerter} {
			t.Run(name+" "+program, func(t *testing.T) {
				t.Parallel()
				o := options(t)
				o.HTTPAddr = freeAddr(t)
				c.set(&o)
				ctx, stop := context.WithCancel(t.Context())
				log, ended := newWatcher(), make(chan error, 1)
				go func() { ended <- run(ctx, o, slog.New(log)) }()
				log.await(t, c.log)
				if status, body := get(t, "http://"+o.HTTPAddr+"/livez"); status != 200 {
					t.Errorf("/livez: %d %s", status, body)
				}
				status, body := get(t, "http://"+o.HTTPAddr+"/readyz")
				if status != 503 || !strings.Contains(body, `"`+c.awaited+`":"not connected yet; see the log"`) {
					t.Errorf("/readyz: %d %s", status, body)
				}
				stop()
				if err := <-ended; err == nil {
					t.Error("it was told to stop before it had started, and says that it had")
				}
			})
		}
	}
}

// freeAddr returns an address on which nobody listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestAlerterThatCannotConsumeIsNotReady, though the store and NATS answer, and has no metric of pending events.
func TestAlerterThatCannotConsumeIsNotReady(t *testing.T) {
	t.Parallel()
	const pending = "\nlimits_alert_events_pending "
	ready := func(t *testing.T, s *started, want int, cause, metric string) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
			status, body := s.get(t, "/readyz")
			_, metrics := s.get(t, "/metrics")
			if status == want && strings.Contains(body, cause) && strings.Contains(metrics, pending) == (metric != "") && strings.Contains(metrics, metric) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("/readyz: %d %s; want %d with %s, and the metric %q", status, body, want, cause, metric)
			}
		}
	}
	refused := func(t *testing.T, breaks, cause, mends string) {
		t.Helper()
		t.Parallel()
		o := options(t)
		o.DatabaseURL, o.NATSURL = testenv.Postgres(t), testenv.NATS(t).ClientURL()
		running(t, Run, o)
		s := running(t, RunAlerter, o)
		ready(t, s, 200, `"alerts":"ok"`, pending+"0\n")
		db := database(t, o.DatabaseURL)
		if _, err := db.Exec(t.Context(), breaks); err != nil {
			t.Fatal(err)
		}
		deny(t, limits.NewClient(s.connect(t), limits.Timeout(patience)), "api:user:7")
		ready(t, s, 503, cause, "")
		if _, err := db.Exec(t.Context(), mends); err != nil {
			t.Fatal(err)
		}
		ready(t, s, 200, `"alerts":"ok"`, pending+"0\n")
	}
	t.Run("the store refuses them", func(t *testing.T) {
		refused(t, `ALTER TABLE alert_groups RENAME TO gone`, `"alert_groups\" does not exist`, `ALTER TABLE gone RENAME TO alert_groups`)
	})
	t.Run("the store has no room for them", func(t *testing.T) {
		refused(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN RAISE 'No space left on device' USING ERRCODE = 'disk_full'; END $$;
			CREATE TRIGGER refuse BEFORE INSERT ON alert_events FOR EACH ROW EXECUTE FUNCTION refuse()`,
			`No space left on device`, `DROP TRIGGER refuse ON alert_events`)
	})
	t.Run("NATS has no JetStream", func(t *testing.T) {
		t.Parallel()
		o := options(t)
		o.DatabaseURL, o.NATSURL = testenv.Postgres(t), testenv.NATSConfig(t, "").ClientURL()
		ready(t, running(t, RunAlerter, o), 503, `"alerts":"look up stream LIMITS`, "")
	})
}
