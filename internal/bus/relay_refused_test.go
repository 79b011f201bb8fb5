package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
)

// idleRelay is a relay that the test runs step by step, and its log.
func idleRelay(t *testing.T, nc *nats.Conn, box Outbox) (*Relay, *logBuffer) {
	t.Helper()
	log := &logBuffer{}
	r, err := NewRelay(RelayConfig{Conn: nc, Outbox: box, Origin: Origin{"urn:test", "http://h/schemas"}, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return r, log
}

// TestRefusedEventsThatAreGoneAreForgotten: an operator has removed them. Those that are still to be tried again are not.
func TestRefusedEventsThatAreGoneAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, log := idleRelay(t, &nats.Conn{}, &fakeOutbox{})
		if !r.setAside("first", errors.New("too large"), "mend it") {
			t.Fatal("there was no room for the first")
		}
		time.Sleep(refusedRetry)
		if !r.setAside("second", errors.New("too large"), "mend it") {
			t.Fatal("there was no room for the second")
		}
		time.Sleep(refusedRetry)
		r.dropStale(time.Now())
		if _, known := r.setAsideUntil["first"]; !known || len(r.setAsideUntil) != 2 {
			t.Errorf("%v are set aside, want both: the first was due a minute ago", r.setAsideUntil)
		}
		time.Sleep(time.Millisecond)
		r.dropStale(time.Now())
		if _, known := r.setAsideUntil["second"]; !known || len(r.setAsideUntil) != 1 {
			t.Errorf("%v are set aside, want the second", r.setAsideUntil)
		}
		time.Sleep(refusedRetry) // the log waits whether it goes on
		if strings.Contains(log.String(), "no unpublishable event is left") {
			t.Error("the log says that none is left")
		}
		r.dropStale(time.Now())
		time.Sleep(refusedRetry)
		if len(r.setAsideUntil) != 0 || !strings.Contains(log.String(), "no unpublishable event is left") {
			t.Errorf("%v are set aside; the log says %s", r.setAsideUntil, log)
		}
	})
}

// TestNoMoreEventsAreSetAsideThanThereIsRoomFor: the next is a failure that is tried again. One that is known needs no room.
func TestNoMoreEventsAreSetAsideThanThereIsRoomFor(t *testing.T) {
	t.Parallel()
	r, _ := idleRelay(t, &nats.Conn{}, &fakeOutbox{})
	refused := errors.New("too large")
	for n := range maxRefused {
		if !r.setAside(fmt.Sprint(n), refused, "mend it") {
			t.Fatalf("there was no room for %d", n)
		}
	}
	if r.setAside("more", refused, "mend it") || len(r.setAsideUntil) != maxRefused || len(r.unsaved) != maxRefused {
		t.Errorf("%d events are set aside and %d to be marked, want %d", len(r.setAsideUntil), len(r.unsaved), maxRefused)
	}
	if !r.setAside("7", refused, "mend it") || len(r.unsaved) != maxRefused {
		t.Error("an event that is known found no room")
	}
	unknown := exceeded(1)
	unknown.Type = "limits.new"
	if acked, err := r.publish(t.Context(), []engine.Event{unknown}); len(acked) != 0 || err == nil {
		t.Errorf("%q left the outbox: %v; want an error", acked, err)
	}
}

// unmarking is an outbox that cannot mark events until it is mended.
type unmarking struct {
	fakeOutbox
	err    error
	marked []string
}

func (u *unmarking) RefuseEvents(_ context.Context, ids []string) error {
	if u.err == nil {
		u.marked = append(u.marked, ids...)
	}
	return u.err
}

// TestRefusedEventsAreMarkedOnceTheStoreTakesIt: until then each pass tries again, and the log has one line of it in 10 s.
func TestRefusedEventsAreMarkedOnceTheStoreTakesIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		box := &unmarking{err: errors.New("no room")}
		r, log := idleRelay(t, &nats.Conn{}, box)
		r.setAside("a", errors.New("too large"), "mend it")
		for range 6 {
			r.saveRefused(t.Context())
			time.Sleep(logInterval / 3)
		}
		if n := strings.Count(log.String(), `cannot mark unpublishable events; alerts are not resolved meanwhile" events=1 error="no room"`); n != 2 {
			t.Errorf("%d lines in 20 s: %s", n, log)
		}
		box.err = nil
		for range 2 {
			r.saveRefused(t.Context())
		}
		if !slices.Equal(box.marked, []string{"a"}) {
			t.Errorf("marked %q, want a, once", box.marked)
		}
	})
}

// TestWhatCannotBeSentIsTriedOnce: without a connection no event is to blame, and the next would fail too.
func TestWhatCannotBeSentIsTriedOnce(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	nc.Close()
	r, _ := idleRelay(t, nc, &fakeOutbox{})
	acked, err := r.publish(t.Context(), []engine.Event{exceeded(1), exceeded(2)})
	if err == nil || strings.Contains(fmt.Sprint(err), "more)") || len(acked) != 0 || len(r.setAsideUntil) != 0 {
		t.Errorf("%q left the outbox and %v is set aside: %v", acked, r.setAsideUntil, err)
	}
}

func TestOfManyErrorsTheFirstIsTold(t *testing.T) {
	t.Parallel()
	first, second := errors.New("first"), errors.New("second")
	for _, c := range []struct {
		errs []error
		want string
	}{
		{nil, "<nil>"},
		{[]error{first}, "first"},
		{[]error{first, second, second}, "first (and 2 more)"},
	} {
		if got := firstError(c.errs); fmt.Sprint(got) != c.want {
			t.Errorf("%v: %v, want %s", c.errs, got, c.want)
		}
	}
}
