package limits_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// lines returns the messages that are sent to the request log.
func lines(t *testing.T, nc *nats.Conn) (next func() string) {
	t.Helper()
	sub, err := nc.SubscribeSync(limits.SubjectUsage)
	if err != nil {
		t.Fatal(err)
	}
	return func() string {
		t.Helper()
		m, err := sub.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return string(m.Data)
	}
}

// TestOversizedLogLineDoesNotDropOthers: the other lines are sent.
func TestOversizedLogLineDoesNotDropOthers(t *testing.T) {
	t.Parallel()
	nc := testenv.Connect(t, testenv.NATSConfig(t, "max_payload: 1024").ClientURL())
	next := lines(t, nc)
	line := limits.LogEntry{Key: "a", Endpoint: "/", Method: "GET", Status: 200}
	large, last := line, line
	large.Key, last.Key = strings.Repeat("<", 256), "b" // six bytes each
	err := limits.NewClient(nc).LogRequest(line, large, last)
	if e, ok := errors.AsType[*limits.Error](err); !ok || e.Status != 413 || e.Code != limits.CodeTooLarge {
		t.Errorf("%v, want 413 too_large", err)
	}
	for _, key := range []string{"a", "b"} {
		if got := next(); !strings.Contains(got, `"key":"`+key+`"`) {
			t.Errorf("got %s, want the line of %s", got, key)
		}
	}
}

func TestLogRequestSendsManyLinesAtOnce(t *testing.T) {
	t.Parallel()
	nc := connect(t)
	c, next := limits.NewClient(nc), lines(t, nc)
	entry := func(key string) limits.LogEntry {
		return limits.LogEntry{Key: key, Endpoint: "/", Method: "GET", Status: 200, Millis: 12}
	}
	if err := errors.Join(c.LogRequest(), c.LogRequest(entry("a")), c.LogRequest(entry("b"), entry("c"))); err != nil {
		t.Fatal(err)
	}
	const line = `{"key":"%s","endpoint":"/","method":"GET","status":200,"millis":12}`
	if got, want := next(), fmt.Sprintf(line, "a"); got != want {
		t.Errorf("one line: %s, want %s", got, want)
	}
	if got, want := next(), fmt.Sprintf("["+line+","+line+"]", "b", "c"); got != want {
		t.Errorf("two lines: %s, want %s", got, want)
	}

	var sent, got []string
	var many []limits.LogEntry
	for i := range 1000 {
		many = append(many, entry(fmt.Sprintf("%d%s", i, strings.Repeat("k", i%250))))
		sent = append(sent, many[i].Key)
	}
	if err := c.LogRequest(many...); err != nil {
		t.Fatal(err)
	}
	messages := 0
	for ; len(got) < len(sent); messages++ {
		data := next()
		if len(data) > limits.MaxRequestBytes {
			t.Fatalf("a message of %d bytes, which the service drops", len(data))
		}
		var some []limits.LogEntry
		if err := json.Unmarshal([]byte(data), &some); err != nil {
			t.Fatal(err)
		}
		for _, e := range some {
			got = append(got, e.Key)
		}
	}
	if !slices.Equal(got, sent) || messages > 20 {
		t.Errorf("%d lines in %d messages; want all, in their order, in as few as they fit", len(got), messages)
	}
}

// TestLogLinesOfAnOutageHaveTheTimeOfTheRequest, and not that of their arrival.
func TestLogLinesOfAnOutageHaveTheTimeOfTheRequest(t *testing.T) {
	t.Parallel()
	s := serveNATS(t, server.RANDOM_PORT)
	lost := make(chan struct{}, 1)
	nc := testenv.Connect(t, s.ClientURL(), limits.Reconnect(), nats.DisconnectErrHandler(func(*nats.Conn, error) { lost <- struct{}{} }))
	next := lines(t, nc)
	port := s.Addr().(*net.TCPAddr).Port
	s.Shutdown()
	<-lost
	now, earlier := limits.LogEntry{Key: "k", Endpoint: "/", Method: "GET", Status: 200}, time.Now().Add(-time.Hour).UnixMilli()
	then := now
	then.At = earlier
	began := time.Now().UnixMilli()
	if err := limits.NewClient(nc).LogRequest(now, then); err != nil {
		t.Fatal(err)
	}
	ended := time.Now().UnixMilli()
	serveNATS(t, port)
	var got []limits.LogEntry
	if err := json.Unmarshal([]byte(next()), &got); err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	if at := got[0].At; at < began || at > ended {
		t.Errorf("at %d, want %d to %d", at, began, ended)
	}
	if got[1].At != earlier {
		t.Errorf("at %d, want %d as given", got[1].At, earlier)
	}
}

// TestInvalidLogLineDoesNotDropOthers: an invalid method of one client must not keep the lines of
// others out of the log.
func TestInvalidLogLineDoesNotDropOthers(t *testing.T) {
	t.Parallel()
	nc := connect(t)
	next := lines(t, nc)
	good := limits.LogEntry{Key: "k", Endpoint: "/", Method: "GET", Status: 200}
	bad := good
	bad.Method = strings.Repeat("X", limits.MaxMethodBytes+1)
	err := limits.NewClient(nc).LogRequest(good, bad, good)
	if e, ok := errors.AsType[*limits.Error](err); !ok || e.Status != 400 || e.Code != "invalid_method" || e.Field != "[1].method" {
		t.Errorf("error %v, want 400 invalid_method of [1].method", err)
	}
	if got := next(); strings.Count(got, `"key"`) != 2 {
		t.Errorf("sent %s, want the other two", got)
	}
}

// TestDoRejectsUsageSubject at once. Otherwise Do would wait for its whole timeout.
func TestDoRejectsUsageSubject(t *testing.T) {
	t.Parallel()
	nc := connect(t)
	if _, err := nc.Subscribe(limits.SubjectUsage, func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	_, err := patient(nc).Do(t.Context(), limits.SubjectUsage, []byte("{}"))
	if e, ok := errors.AsType[*limits.Error](err); !ok || e.Status != 400 || !strings.Contains(e.Message, "LogRequest") || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want 400 with the way out", err)
	}
}
