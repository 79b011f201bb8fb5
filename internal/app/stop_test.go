package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits/internal/testenv"
)

// TestHangingPartDoesNotBlockTheStop: the other parts are stopped, and the error names it.
func TestHangingPartDoesNotBlockTheStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release, stopped := make(chan struct{}), false
		defer close(release)
		l := &limiter{}
		l.onStop("store", func(context.Context) error { stopped = true; return nil })
		l.background("part that hangs", func(context.Context) { <-release })
		l.background("part that ends", func(ctx context.Context) { <-ctx.Done() })
		began := time.Now()
		err := l.stop()
		if took := time.Since(began); took != drainTimeout || !stopped {
			t.Errorf("the stop took %s, and stopped the part before: %v", took, stopped)
		}
		if !errors.Is(err, context.DeadlineExceeded) || strings.Count(err.Error(), "stop ") != 1 ||
			!strings.Contains(err.Error(), "part that hangs") {
			t.Errorf("%v does not name the part", err)
		}
	})
}

// TestStopIsBoundedWhenAllPartsHang: a supervisor kills the process after 30 s, and what was lost must be logged by then.
func TestStopIsBoundedWhenAllPartsHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &limiter{}
		var had []time.Duration
		for range 6 {
			l.onStop("part that hangs", func(ctx context.Context) error {
				began := time.Now()
				<-ctx.Done()
				had = append(had, time.Since(began))
				return ctx.Err()
			})
		}
		began := time.Now()
		err := l.stop()
		if took := time.Since(began); took > stopTimeout+4*minStopTimeout || strings.Count(err.Error(), "stop part that hangs") != 6 {
			t.Errorf("the stop took %s: %v", took, err)
		}
		for _, d := range had {
			if d < minStopTimeout {
				t.Errorf("a part had %s", d)
			}
		}
	})
}

// TestOverduePartIsLogged: the stop waits for SQLite as long as it takes, but not for PostgreSQL.
func TestOverduePartIsLogged(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]string{"sqlite": "WARN still stopping", "postgres": "WARN the store was not closed"} {
		synctest.Test(t, func(t *testing.T) {
			log, hanging := newWatcher(), &hangingStore{end: make(chan struct{})}
			l := &limiter{log: slog.New(log), store: hanging}
			if kind == "postgres" {
				l.DatabaseURL = "postgres://"
			}
			l.onStop("store", l.closeStore)
			stopped := make(chan error, 1)
			go func() { stopped <- l.stop() }()
			time.Sleep(time.Minute)
			synctest.Wait()
			if waits := len(stopped) == 0; waits != (kind == "sqlite") || !strings.Contains(log.String(), want) {
				t.Errorf("with %s, it waits: %v\n%s", kind, waits, log)
			}
			close(hanging.end)
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		})
	}
}

// hangingStore closes only when end is closed.
type hangingStore struct {
	store
	end chan struct{}
}

func (s *hangingStore) Close() { <-s.end }

// TestNotReadyBeforeAnyPartStops: load balancers stop using the worker first.
func TestNotReadyBeforeAnyPartStops(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := &limiter{Options: options(t), log: slog.New(slog.DiscardHandler)}
	var body string
	err := l.run(ctx, l.startWeb, func(context.Context) error {
		l.onStop("the part that stops first", func(context.Context) error {
			_, body = get(t, "http://"+l.web.Addr()+"/readyz")
			return nil
		})
		cancel()
		return nil
	})
	if err != nil || !strings.Contains(body, `"worker":"draining"`) {
		t.Errorf("/readyz: %s, %v", body, err)
	}
}

// stopSteps records in which order a service is stopped.
type stopSteps []string

func (s *stopSteps) HandOver(context.Context)   { *s = append(*s, "hand over") }
func (s *stopSteps) Stop(context.Context) error { *s = append(*s, "stop"); return nil }

// TestMessagesOfOthersAreHeardUntilAnotherWorkerDecides, and no longer: the service waits until its connection has no
// subscription.
func TestMessagesOfOthersAreHeardUntilAnotherWorkerDecides(t *testing.T) {
	t.Parallel()
	l, steps := &limiter{}, stopSteps{}
	for _, what := range []string{"broadcasts", "announcements"} {
		l.unsubscribes = append(l.unsubscribes, func() { steps = append(steps, what) })
	}
	if err := l.stopService(t.Context(), &steps); err != nil || !slices.Equal(steps, stopSteps{"hand over", "broadcasts", "announcements", "stop"}) {
		t.Errorf("%q, %v", steps, err)
	}
}

// TestLimiterEndsWhenNATSConnectionIsClosed, so that a supervisor restarts it: over websockets nats.go sees all errors of
// the server, and gives up after some.
func TestLimiterEndsWhenNATSConnectionIsClosed(t *testing.T) {
	t.Parallel()
	var of server.Options
	s := testenv.NATS(t, func(o *server.Options) {
		o.Websocket.Host, o.Websocket.Port, o.Websocket.NoTLS = "127.0.0.1", server.RANDOM_PORT, true
		of = *o
	})
	o := options(t)
	o.NATSURL = s.WebsocketURL()
	l := startOne(t, o, Run)
	defer l.stop()
	smaller := of.Clone()
	smaller.MaxPayload = 1024
	if err := s.ReloadOptions(smaller); err != nil {
		t.Fatal(err)
	}
	nc := testenv.Connect(t, s.ClientURL())
	if err := nc.PublishRequest("$SRV.INFO.limits", nats.NewInbox(), nil); err != nil { // whose answer is longer
		t.Fatal(err)
	}
	select {
	case err := <-l.ended:
		if err == nil || !strings.Contains(err.Error(), "the NATS connection for requests was closed for good: nats: Maximum Payload Violation") {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Errorf("it goes on\n%s", l.log)
	}
}
