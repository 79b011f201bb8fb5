package limits_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestClientWaitsForALimiterThatTakesOver: one of several limiters decides, and when it dies, none does for a moment.
func TestClientWaitsForALimiterThatTakesOver(t *testing.T) {
	nc := connect(t)
	var e *limits.Error
	came := false
	for range 10 { // a busy machine may be late for longer than a client waits
		answers := make(chan *nats.Subscription, 1)
		time.AfterFunc(15*time.Millisecond, func() {
			sub, err := nc.Subscribe(limits.SubjectConsume, func(m *nats.Msg) { _ = m.Respond([]byte(`{"allowed":true}`)) })
			if err != nil {
				t.Error(err)
			}
			answers <- sub
		})
		r, err := limits.NewClient(nc).Consume(t.Context(), limits.Per("k", 1, "1m"))
		if err := (<-answers).Unsubscribe(); err != nil {
			t.Fatal(err)
		}
		if came = err == nil && r.Allowed; came {
			break
		}
	}
	if !came {
		t.Error("the request is not sent again")
	}
	// If there is no limiter, only the first request waits.
	c := limits.NewClient(nc)
	sent := nc.Stats().OutMsgs
	for range 1000 {
		if _, err := c.Check(t.Context(), limits.Per("k", 1, "1m")); !errors.As(err, &e) || e.Status != 503 {
			t.Fatalf("got %v, want 503", err)
		}
	}
	if n := nc.Stats().OutMsgs - sent; n > 2000 { // 5000 if each request were repeated
		t.Errorf("1000 checks without a limiter sent %d messages", n)
	}
	c, sent = limits.NewClient(nc), nc.Stats().OutMsgs
	for range 1000 { // with less time than all pauses take, as in a middleware
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err := c.Check(ctx, limits.Per("k", 1, "1m")); err == nil {
			t.Fatal("a decision without a limiter")
		}
		cancel()
	}
	if n := nc.Stats().OutMsgs - sent; n > 2000 { // 3000 if each request were repeated
		t.Errorf("1000 checks with little time sent %d messages", n)
	}
	var err error
	for range 100 { // a busy machine may be late
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond) // no time for a pause
		_, err = limits.NewClient(nc).Check(ctx, limits.Per("k", 1, "1m"))
		if cancel(); errors.As(err, &e) {
			break
		}
	}
	if !errors.As(err, &e) || e.Status != 503 {
		t.Errorf("got %v, want 503", err)
	}
}

// TestUnheardRequestIsNotBuffered: the NATS server may stop while a client waits for a limiter,
// for example if it is embedded in the limiter. If that happens just after the client has looked,
// nats.go buffers a request all the same, which a busy machine may meet once.
func TestUnheardRequestIsNotBuffered(t *testing.T) {
	t.Parallel()
	const attempts = 3
	for range attempts {
		if !unheardRequestComesLate(t) {
			return
		}
	}
	t.Errorf("%d of %d requests came after their callers were told that nobody heard them", attempts, attempts)
}

func unheardRequestComesLate(t *testing.T) bool {
	s := serveNATS(t, server.RANDOM_PORT)
	port := s.Addr().(*net.TCPAddr).Port
	back := make(chan struct{})
	nc := testenv.Connect(t, s.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.ReconnectHandler(func(*nats.Conn) { close(back) }))
	time.AfterFunc(5*time.Millisecond, s.Shutdown)
	if _, err := limits.NewClient(nc).Consume(t.Context(), limits.Per("k", 1, "1m")); err == nil {
		t.Fatal("a decision without a limiter")
	}
	s.WaitForShutdown()
	late := make(chan struct{}, 1)
	again := serveNATS(t, port)
	listener := testenv.Connect(t, again.ClientURL())
	if _, err := listener.Subscribe(limits.SubjectConsume, func(*nats.Msg) { late <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	if err := listener.Flush(); err != nil {
		t.Fatal(err)
	}
	<-back
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := listener.Flush(); err != nil {
		t.Fatal(err)
	}
	return len(late) > 0
}
