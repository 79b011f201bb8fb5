package bus

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
)

// TestWhatToForgetIsForgottenBeforeTheRequestsBehindIt: else a worker would still serve, from a lease
// of before a reset, somebody who has seen another worker's answer to it.
func TestWhatToForgetIsForgottenBeforeTheRequestsBehindIt(t *testing.T) {
	t.Parallel()
	const rounds = 2000
	var forgotten, asked, early atomic.Int64
	e := &fakeEngine{forget: func(f engine.Forget) {
		if want := fmt.Sprint("k", forgotten.Add(1)); f != (engine.Forget{Key: want}) {
			t.Errorf("forgot %+v; want the key %s", f, want)
		}
	}}
	e.submit = func(r *engine.Request) error {
		if n := asked.Add(1); forgotten.Load() < n {
			early.Add(1)
		}
		return allowing(r)
	}
	_, nc := serve(t, e, func(c *ServiceConfig) {
		forget := NewForgets(c.Conn, slog.New(slog.DiscardHandler))
		if err := forget.Listen(e.Forget); err != nil {
			t.Fatal(err)
		}
	})
	answers, err := nc.SubscribeSync(nats.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	for i := range rounds {
		_ = nc.Publish(subjectForget, fmt.Appendf(nil, `{"key":"k%d"}`, i+1))
		_ = nc.PublishRequest(limits.SubjectConsume, answers.Subject, []byte(`{"key":"k","limit":10,"window":"1m"}`))
	}
	for range rounds {
		if _, err := answers.NextMsg(patience); err != nil {
			t.Fatal(err)
		}
	}
	if n := early.Load(); n > 0 {
		t.Errorf("%d of %d requests were decided before what was sent ahead of them was forgotten", n, rounds)
	}
}

// TestAnInvalidBroadcastIsLogged also where broadcasts are read before nats.go sees them.
func TestAnInvalidBroadcastIsLogged(t *testing.T) {
	t.Parallel()
	w, nc := oneWorker(t, &fakeEngine{forget: func(engine.Forget) {}})
	if err := NewForgets(w.svc.cfg.Conn, slog.New(slog.NewTextHandler(w.log, nil))).Listen(func(engine.Forget) {}); err != nil {
		t.Fatal(err)
	}
	_ = nc.Publish(subjectForget, []byte(`{}`))
	waitFor(t, "the log tells of it", func() bool { return strings.Contains(w.log.String(), "it does not say what to forget") })
}

// TestBroadcastsSayWhatToForget: counters, or nothing is forgotten.
func TestBroadcastsSayWhatToForget(t *testing.T) {
	t.Parallel()
	for body, valid := range map[string]bool{
		`{"key":"a"}`: true, `{"key":"a","name":"1m"}`: true, `{"key":"a","freed":true}`: true, `{"prefix":"a"}`: true, `{"all":true}`: true,
		`{}`: false, `{"name":"1m"}`: false, `{"prefix":"a","name":"1m"}`: false, `{"freed":true}`: false, `{"all":false}`: false,
	} {
		if _, err := decodeBroadcast([]byte(body), len(body), saysWhat); (err == nil) != valid {
			t.Errorf("%s: %v", body, err)
		}
		if _, err := decodeBroadcast([]byte(body), len(body)-1, saysWhat); err == nil {
			t.Errorf("%s: accepted beyond the bound", body)
		}
	}
}
