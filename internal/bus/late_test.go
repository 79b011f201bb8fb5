package bus

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/natsconn"
)

// TestARequestThatWaitedTooLongInNATSGoIsRefusedUnread: to read it would make others late, too. Of
// another one the wait counts for the engine.
func TestARequestThatWaitedTooLongInNATSGoIsRefusedUnread(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	late, submitted := true, []time.Duration{}
	e := &fakeEngine{}
	e.submit = func(r *engine.Request) error {
		mu.Lock()
		submitted = append(submitted, r.Waited)
		mu.Unlock()
		return allowing(r)
	}
	before := time.Now()
	e.tooLate = func(received time.Time) bool {
		mu.Lock()
		defer mu.Unlock()
		if received.Before(before) || received.After(time.Now()) {
			t.Errorf("it arrived at %s, now it is %s", received, time.Now())
		}
		return late
	}
	w, nc := oneWorker(t, e)
	key := createKey(t, nc, `{"user":"7"}`).APIKey
	handlers := map[string]natsconn.Handler{limits.SubjectVerify: nil}
	for subject := range engineVerbs {
		handlers[subject] = nil // as while handlers lag
	}
	dialerOf(w.svc.cfg.Conn).handlers.Set(handlers)
	subjects := []string{limits.SubjectVerify, limits.SubjectConsume, limits.SubjectCheck, limits.SubjectRecord, limits.SubjectRefund}
	for _, subject := range subjects {
		if m := ask(t, nc, subject, "{"); m.Header.Get("Nats-Service-Error-Code") != "503" ||
			string(m.Data) != `{"error":{"code":"overloaded","message":"the worker has too many requests waiting; try again soon"}}` {
			t.Errorf("%s: %v %s", subject, m.Header, m.Data)
		}
	}
	mu.Lock()
	late = false
	mu.Unlock()
	for _, subject := range subjects {
		body := `{"key":"k","limit":10,"window":"1m"}`
		if subject == limits.SubjectVerify {
			body = fmt.Sprintf(`{"apiKey":%q}`, key)
		}
		if m := ask(t, nc, subject, body); len(m.Header) > 0 {
			t.Errorf("%s: %v %s", subject, m.Header, m.Data)
		}
	}
	if len(submitted) != len(subjects) || slices.Min(submitted) <= 0 || slices.Max(submitted) > time.Since(before) {
		t.Errorf("%d requests came to the engine, after %v", len(submitted), submitted)
	}
}

// TestALargeAnswerIsNotKeptForTheNextRequest: thousands of requests may wait, each with the space
// for an answer.
func TestALargeAnswerIsNotKeptForTheNextRequest(t *testing.T) {
	t.Parallel()
	s := new(Service)
	for size, kept := range map[int]bool{512: true, maxPooledBody: true, maxPooledBody + 1: false} {
		c := s.newCall().(*call)
		c.body = make([]byte, 0, size)
		c.release()
		if (c.body != nil) != kept {
			t.Errorf("%d bytes: %d are kept", size, cap(c.body))
		}
	}
}

// TestForgettingDoesNotWaitWhileRequestsDo: in a flood requests wait in nats.go, and a broadcast must not wait behind them.
func TestForgettingDoesNotWaitWhileRequestsDo(t *testing.T) {
	t.Parallel()
	const longerThanHandlersMayLag = 100 * time.Millisecond
	entered, proceed, heeded := make(chan bool), make(chan time.Duration), make(chan engine.Forget, 1)
	e := &fakeEngine{forget: func(what engine.Forget) { heeded <- what }}
	e.submit = func(r *engine.Request) error {
		entered <- true
		time.Sleep(<-proceed)
		return allowing(r)
	}
	s, nc := serve(t, e)
	// The server sends it only to those who subscribe to it.
	passed := make(chan *nats.Msg, 1)
	if _, err := s.cfg.Conn.ChanSubscribe(subjectForget, passed); err != nil {
		t.Fatal(err)
	}
	if err := s.cfg.Conn.Flush(); err != nil {
		t.Fatal(err)
	}
	publish := func(subject, body string) {
		if err := nc.PublishRequest(subject, "inbox", []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	publish(limits.SubjectCheck, hot)
	<-entered
	publish(limits.SubjectCheck, hot) // this and the next are read together
	publish(subjectForget, `{"key":"k"}`)
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	proceed <- longerThanHandlersMayLag
	<-entered
	proceed <- longerThanHandlersMayLag
	select {
	case what := <-heeded:
		if what.Key != "k" {
			t.Errorf("%+v", what)
		}
	case <-passed:
		t.Error("nats.go was given it")
	case <-time.After(patience):
		t.Error("it is not heeded")
	}
}
