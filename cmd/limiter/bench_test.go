package main

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// bench runs a short bench against url and reads its result.
func bench(t *testing.T, url string, args ...string) (*invocation, benchResult) {
	t.Helper()
	args = append([]string{"bench", "--nats-url", url, "--json", "--quiet", "--warmup", "10ms", "--duration", "200ms",
		"--connections", "3", "--in-flight", "8", "--keys", "3"}, args...)
	i := limiter(t, args...)
	var r benchResult
	if err := json.Unmarshal([]byte(i.out.String()), &r); err != nil && i.status == exitDone {
		t.Fatalf("result %q: %v", i.out.String(), err)
	}
	return i, r
}

func TestBench(t *testing.T) {
	seen := map[string]bool{}
	url := respond(t, limits.SubjectConsume, func(request string) *nats.Msg {
		var r limits.Request
		if err := json.Unmarshal([]byte(request), &r); err != nil || r.Limit != 7 || r.Window != "1m" ||
			r.Algorithm != limits.FixedWindow || r.Consistency != limits.Leased {
			t.Errorf("request %s, error %v", request, err)
		}
		seen[r.Key] = true
		if strings.HasSuffix(r.Key, "1") {
			return text(`{"allowed":false,"retryAfter":5,"degraded":true}`)("")
		}
		return text(`{"allowed":true}`)("")
	})
	i, r := bench(t, url, "--limit", "7", "--window", "1m", "--algorithm", "fixed_window", "--consistency", "leased")
	i.want(t, exitDone, "{", "")
	if r.Allowed == 0 || r.Denied == 0 || r.Degraded != r.Denied || r.Checks != r.Allowed+r.Denied || len(r.Errors) != 0 {
		t.Errorf("counts %+v", r)
	}
	if r.Seconds < 0.2 || r.PerSecond <= 0 || r.Connections != 3 || r.InFlight != 8 {
		t.Errorf("frame %+v", r)
	}
	l := r.Latency
	if l.P50 < 1 || l.P50 > l.P90 || l.P90 > l.P99 || l.P99 > l.P999 || l.P999 > l.Max {
		t.Errorf("latency %+v", l)
	}
	if len(seen) != 3 || !seen["bench:0000000002"] {
		t.Errorf("%d keys seen, want 3", len(seen))
	}
}

func TestBenchBoundsRequestsInFlight(t *testing.T) {
	var waiting, most atomic.Int64
	url := respond(t, limits.SubjectCheck, text("{}"))
	nc := testenv.Connect(t, url)
	slow := func(m *nats.Msg) {
		most.Store(max(most.Load(), waiting.Add(1)))
		time.AfterFunc(5*time.Millisecond, func() {
			waiting.Add(-1)
			_ = m.Respond([]byte(`{"allowed":true}`))
		})
	}
	if _, err := nc.Subscribe("slow", slow); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	_, r := bench(t, url, "--subject", "slow", "--keys", "1")
	if most.Load() != 8 {
		t.Errorf("%d in flight, want 8", most.Load())
	}
	if r.Latency.P50 < 5000 {
		t.Errorf("p50 %d µs, though each answer takes 5 ms", r.Latency.P50)
	}
}

func TestBenchCountsErrorsByCode(t *testing.T) {
	n := 0
	url := respond(t, limits.SubjectConsume, func(string) *nats.Msg {
		switch n++; n % 4 {
		case 2:
			return &nats.Msg{Data: []byte(`{"error":{"code":"overloaded","message":"full"}}`), Header: nats.Header{"Nats-Service-Error-Code": {"503"}}}
		case 3:
			return text("nonsense")("")
		}
		return text(`{"allowed":true}`)("")
	})
	_, r := bench(t, url)
	if r.Allowed == 0 || r.Errors["overloaded"] == 0 || r.Errors["unreadable_answer"] == 0 {
		t.Errorf("result %+v", r)
	}
}

// The service stops answering after a while. The bench still ends, and reports what was lost.
func TestBenchNeverHangs(t *testing.T) {
	s := respond(t, "unused", text(""))
	nc := testenv.Connect(t, s)
	began, asked := time.Now(), 0 // a subscription's messages come one at a time
	_, err := nc.Subscribe(limits.SubjectConsume, func(m *nats.Msg) {
		if asked++; asked <= 20 {
			_ = m.Respond([]byte(`{"allowed":true}`))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	i, r := bench(t, s, "--warmup", "0s", "--duration", "1s")
	if took := time.Since(began); took > 2*answerTimeout {
		t.Errorf("took %v", took)
	}
	if i.status != exitDone || r.Allowed == 0 || r.Errors["no_answer"] != 8 {
		t.Errorf("exit status %d, result %+v", i.status, r)
	}
}

func TestBenchReportsInvalidRequestAtOnce(t *testing.T) {
	url := respond(t, limits.SubjectConsume, func(string) *nats.Msg {
		return &nats.Msg{Data: []byte(`{"error":{"code":"invalid_window","message":"no"}}`), Header: nats.Header{"Nats-Service-Error-Code": {"400"}}}
	})
	limiter(t, "bench", "--nats-url", url, "--window", "1x").want(t, exitUsage, "", "limiter: no (400 invalid_window)")
}

// A bench that is interrupted before it measures says so, and reports no zeros.
func TestBenchInterruptedWhileWarmingUp(t *testing.T) {
	t.Parallel()
	url := respond(t, limits.SubjectConsume, text(`{"allowed":true}`))
	ctx, interrupt := context.WithCancel(t.Context())
	i := &invocation{ctx: ctx}
	ended := i.start(t, "checks/s", "bench", "--nats-url", url, "--warmup", "1h", "--connections", "1", "--in-flight", "1")
	interrupt()
	<-ended
	i.want(t, exitError, "", "limiter: bench: interrupted while warming up; nothing was measured\n")
}

// A role that may subscribe only to its own inbox gets its answers.
func TestBenchUsesInboxPrefix(t *testing.T) {
	t.Parallel()
	at := testenv.NATSConfig(t, `authorization { users: [
		{ user: worker, password: secret }
		{ user: check, password: secret, permissions: { publish: ["limits.consume"], subscribe: ["_INBOX_check.>"] } }
	] }`).Addr().String()
	respondAt(t, "nats://worker:secret@"+at, limits.SubjectConsume, text(`{"allowed":true}`))
	_, r := bench(t, "nats://check:secret@"+at, "--nats-inbox-prefix", "_INBOX_check")
	if r.Allowed == 0 || len(r.Errors) != 0 {
		t.Errorf("result %+v", r)
	}
}

func TestBenchTextOutput(t *testing.T) {
	url := respond(t, limits.SubjectConsume, text(`{"allowed":true}`))
	i := limiter(t, "bench", "--nats-url", url, "--warmup", "0s", "--duration", "1200ms", "--connections", "1", "--in-flight", "2", "--keys", "1")
	i.want(t, exitDone, "consume, sliding_window, 2 in flight over 1 connection, 1 key, ", "of 1.2s: ")
	for _, word := range []string{" s\nchecks/s", "allowed", "denied", "degraded", "errors ", "p50", "p90", "p99", "p99.9", "max", " ms\n"} {
		i.want(t, exitDone, word, "checks/s\n")
	}
}

func TestErrorsByCode(t *testing.T) {
	if got := errorsByCode(map[string]int64{"overloaded": 12, "no_answer": 1}); got != "1 no_answer, 12 overloaded" {
		t.Errorf("got %q", got)
	}
}
