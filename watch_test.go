package limits_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

const exceededEvent = `{"specversion":"1.0","id":"e-1","source":"//limits.example","type":"limits.exceeded",` +
	`"subject":"api:user:7","time":"2024-01-03T18:40:00.5Z","datacontenttype":"application/json","sampledrate":3,` +
	`"data":{"key":"api:user:7","name":"1m","limit":5,"window":"1m","reset":1704307260000,"retryAfter":9000,"denied":3}}`

func TestParseEvent(t *testing.T) {
	e, err := limits.ParseEvent([]byte(exceededEvent))
	if err != nil {
		t.Fatal(err)
	}
	want := limits.Event{
		ID: "e-1", Type: limits.EventExceeded, Source: "//limits.example", Subject: "api:user:7",
		Time: time.Date(2024, 1, 3, 18, 40, 0, 500_000_000, time.UTC),
		Data: &limits.Exceeded{Key: "api:user:7", Name: "1m", Limit: 5, Window: "1m", Reset: 1704307260000,
			RetryAfter: 9000, Denied: 3},
		Raw: []byte(exceededEvent),
	}
	if d := cmp.Diff(want, e); d != "" {
		t.Error(d)
	}
}

func TestParseReport(t *testing.T) {
	e, err := limits.ParseEvent([]byte(`{"specversion":"1.0","id":"report-2026-05-17","type":"limits.report","data":{` +
		`"date":"2026-05-17","since":1,"until":2,"used":[{"key":"k","allowed":1,"denied":0,"cost":9,"peak":1}],"denied":[]}}`))
	want := &limits.Report{Date: "2026-05-17", Since: 1, Until: 2,
		Used: []limits.TopRow{{Key: "k", Allowed: 1, Cost: 9, Peak: 1}}, Denied: []limits.TopRow{}}
	if d := cmp.Diff(any(want), e.Data); err != nil || d != "" {
		t.Errorf("%v %s", err, d)
	}
}

func TestParseEventAboutAlerts(t *testing.T) {
	for event, want := range map[string]any{
		`"alerts.raised","data":{"alert":"a","rule":"r"}`:       &limits.AlertRaised{Alert: "a", Rule: "r"},
		`"alerts.resolved","data":{"alert":"a","resolvedAt":5}`: &limits.AlertResolved{AlertRaised: limits.AlertRaised{Alert: "a"}, ResolvedAt: 5},
		`"alerts.digest","data":{"digest":"d","alerts":3}`:      &limits.AlertDigest{Digest: "d", Alerts: 3},
		`"alerts.test","data":{"channel":"c"}`:                  &limits.AlertTest{Channel: "c"},
	} {
		e, err := limits.ParseEvent([]byte(`{"specversion":"1.0","id":"1","type":` + event + `}`))
		if d := cmp.Diff(want, e.Data); err != nil || d != "" {
			t.Error(err, d)
		}
	}
}

func TestParseEventOfOtherTypes(t *testing.T) {
	e, err := limits.ParseEvent([]byte(`{"specversion":"1.0","id":"1","type":"limits.other","data":{"n":1}}`))
	if raw, ok := e.Data.(json.RawMessage); err != nil || !ok || string(raw) != `{"n":1}` {
		t.Errorf("data %s, error %v", raw, err)
	}
	bad := []string{
		"", "[]", `{"id":"1","type":"limits.warning","data":{}}`,
		`{"specversion":"1.0","type":"limits.warning","data":{}}`,
		`{"specversion":"1.0","id":"1","type":"limits.warning"}`,
		`{"specversion":"1.0","id":"1","type":"limits.warning","data":{"limit":"ten"}}`,
		`{"specversion":"1.0","id":"1","type":"limits.report","data":{"used":1}}`,
	}
	for _, raw := range bad {
		if _, err := limits.ParseEvent([]byte(raw)); err == nil {
			t.Errorf("parsed %q", raw)
		}
	}
}

func TestWatch(t *testing.T) {
	nc := connect(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := patient(nc).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, nc, limits.EventExceeded, exceededEvent)
	publish(t, nc, limits.EventWarning, "nonsense")
	publish(t, nc, limits.EventWarning, `{"specversion":"1.0","id":"e-2","type":"limits.warning","data":{"remaining":1}}`)
	var got []string
	for e, err := range events {
		if err != nil {
			got = append(got, "error")
			continue
		}
		got = append(got, fmt.Sprintf("%s %T", e.ID, e.Data))
		if e.ID == "e-2" {
			cancel()
		}
	}
	// Two subscriptions: order holds within a type only.
	want := map[string]bool{"e-1 *limits.Exceeded": true, "error": true, "e-2 *limits.Warning": true}
	for _, g := range got {
		delete(want, g)
	}
	delete(want, "e-1 *limits.Exceeded") // may come after e-2
	if len(want) != 0 {
		t.Errorf("got %v, missing %v", got, want)
	}
	waitFor(t, func() bool { return nc.NumSubscriptions() == 0 })
}

func TestWatchOfOneType(t *testing.T) {
	nc := connect(t)
	events, err := patient(nc).Watch(t.Context(), limits.EventExceeded)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, nc, limits.EventWarning, `{"specversion":"1.0","id":"w","type":"limits.warning","data":{}}`)
	publish(t, nc, limits.EventExceeded, exceededEvent)
	for e, err := range events {
		if err != nil || e.ID != "e-1" {
			t.Errorf("event %+v, error %v", e, err)
		}
		break
	}
	if n := nc.NumSubscriptions(); n != 0 {
		t.Errorf("%d subscriptions left after the loop", n)
	}
}

func TestWatchGivesAnEventOnce(t *testing.T) {
	nc := connect(t)
	for types, subscriptions := range map[string]int{
		"alerts.test alerts.*": 1, "alerts.* alerts.test alerts.*": 1, "limits.warning limits.warning": 1, "alerts.> alerts.*": 1,
		"alerts.raised alerts.test": 2, "limits.warning alerts.*": 2, "alerts.*.* alerts.*": 2,
	} {
		events, err := patient(nc).Watch(t.Context(), strings.Fields(types)...)
		if err != nil {
			t.Fatal(err)
		}
		if n := nc.NumSubscriptions(); n != subscriptions {
			t.Errorf("%s: %d subscriptions, want %d", types, n, subscriptions)
		}
		for _, id := range []string{"1", "2"} {
			for _, event := range []string{limits.EventWarning, limits.EventAlertTest} {
				publish(t, nc, event, `{"specversion":"1.0","id":"`+event+id+`","type":"`+event+`","data":{}}`)
			}
		}
		first := ""
		for e, err := range events {
			if err != nil || e.ID == first {
				t.Errorf("%s: %s after %s, error %v", types, e.ID, first, err)
			}
			if first != "" {
				break
			}
			first = e.ID
		}
	}
}

// TestWatchIsNoListenerForRequests: a wildcard that matches requests selects the events that it matches.
func TestWatchIsNoListenerForRequests(t *testing.T) {
	t.Parallel()
	nc := connect(t)
	for types, subscriptions := range map[string]int{
		"limits.*": 3, "limits.>": 3, "*.exceeded": 1, "*.*": 7, ">": 7, "limits.* limits.warning alerts.*": 4, "limits.* *.*": 7,
	} {
		before := nc.NumSubscriptions()
		if _, err := patient(nc).Watch(t.Context(), strings.Fields(types)...); err != nil {
			t.Fatal(err)
		}
		if n := nc.NumSubscriptions() - before; n != subscriptions {
			t.Errorf("%s: %d subscriptions, want %d", types, n, subscriptions)
		}
	}
	_, err := patient(nc).Consume(t.Context(), limits.Per("k", 1, "1h"))
	if e, ok := errors.AsType[*limits.Error](err); !ok || e.Status != 503 || e.Code != limits.CodeUnavailable {
		t.Errorf("without a limiter: %v", err)
	}
}

func TestWatchOfRequestsFails(t *testing.T) {
	t.Parallel()
	nc := connect(t)
	for _, subject := range []string{limits.SubjectConsume, limits.SubjectUsage, limits.SubjectKeysExpire, "limits.admin.*", "limits.admin.>", "*.verify"} {
		_, err := patient(nc).Watch(t.Context(), limits.EventWarning, subject)
		if e, ok := errors.AsType[*limits.Error](err); !ok || e.Status != 400 || !strings.HasPrefix(e.Message, "watch "+subject+": ") ||
			!strings.Contains(e.Message, limits.EventAlertResolved) {
			t.Errorf("%s: %v", subject, err)
		}
	}
	if n := nc.NumSubscriptions(); n != 0 {
		t.Errorf("%d subscriptions left", n)
	}
}

// TestWatchOfAMalformedTypeFails: after > nothing may follow.
func TestWatchOfAMalformedTypeFails(t *testing.T) {
	t.Parallel()
	nc := connect(t)
	for _, malformed := range []string{"limits.>.x", ">.x", "limits..>"} {
		if _, err := patient(nc).Watch(t.Context(), malformed); err == nil {
			t.Errorf("watching %s", malformed)
		}
	}
}

func TestWatchOfAllLimitsYieldsEventsOnly(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := patient(testenv.Connect(t, natsURL))
	events, err := client.Watch(ctx, "limits.*")
	if err != nil {
		t.Fatal(err)
	}
	key := fmt.Sprintf("watch:%d", time.Now().UnixNano()) // new, even if the test runs again
	for range 3 {
		if _, err := client.Consume(ctx, limits.Per(key, 1, "1h")); err != nil {
			t.Fatal(err)
		}
	}
	for e, err := range events {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == limits.EventExceeded && e.Subject == key {
			return
		}
	}
	t.Error("no event")
}

func TestWatchReportsLostEvents(t *testing.T) {
	nc := connect(t)
	nc.SetErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
	events, err := patient(nc).Watch(t.Context(), limits.EventExceeded)
	if err != nil {
		t.Fatal(err)
	}
	for range 5000 {
		publish(t, nc, limits.EventExceeded, exceededEvent)
	}
	if err := nc.Flush(); err != nil { // the pong comes after the events
		t.Fatal(err)
	}
	for _, err := range events {
		if !errors.Is(err, nats.ErrSlowConsumer) {
			t.Errorf("first turn: %v, want what was lost", err)
		}
		break
	}
}

// asUserWho connects as a user with these permissions.
func asUserWho(t *testing.T, permissions string) *nats.Conn {
	t.Helper()
	s := testenv.NATSConfig(t, "authorization { users: [ { user: u, password: p, permissions: {"+permissions+"} } ] }")
	return testenv.Connect(t, s.ClientURL(), nats.UserInfo("u", "p"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
}

func TestWatchWithoutPermissionFails(t *testing.T) {
	nc := asUserWho(t, `subscribe: ["_INBOX.>", "limits.warning"]`)
	c := patient(nc)
	for range 2 {
		if _, err := c.Watch(t.Context()); !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), "watch limits.exceeded: ") {
			t.Errorf("watched with %v", err)
		}
	}
	if n := nc.NumSubscriptions(); n != 0 {
		t.Errorf("%d subscriptions left", n)
	}
	// An earlier refusal must not be reported for this watch.
	if _, err := c.Watch(t.Context(), limits.EventWarning); err != nil {
		t.Error(err)
	}
}

func TestRefusedRequestReportsPermissionError(t *testing.T) {
	t.Parallel()
	for permissions, refused := range map[string]string{
		`publish: ["limits.check"]`: `Publish to "limits.status"`,
		`subscribe: ["x"]`:          `Subscription to "_INBOX.`,
		`publish: {deny: ["x"]}`:    "",
	} {
		nc := asUserWho(t, permissions)
		if _, err := nc.SubscribeSync(limits.SubjectStatus); err != nil { // never answers
			t.Fatal(err)
		}
		publish(t, nc, "x", "") // may be refused, but is not the reason
		var err error
		for timeout := 100 * time.Millisecond; timeout < time.Minute; timeout *= 3 { // on a busy machine the refusal may be late
			_, err = limits.NewClient(nc, limits.Timeout(timeout)).Do(t.Context(), limits.SubjectStatus, nil)
			if refused == "" || strings.Contains(fmt.Sprint(err), refused) {
				break
			}
		}
		if got := errors.Is(err, nats.ErrPermissionViolation); got != (refused != "") || !strings.Contains(fmt.Sprint(err), refused) {
			t.Errorf("%s: %v", permissions, err)
		}
	}
}

func TestWatchEndsWithTheConnection(t *testing.T) {
	nc := connect(t)
	events, err := patient(nc).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(10*time.Millisecond, nc.Close)
	var last error
	for _, last = range events {
	}
	if !errors.Is(last, nats.ErrConnectionClosed) {
		t.Errorf("ended with %v", last)
	}
	if _, err := patient(nc).Watch(t.Context()); err == nil {
		t.Error("watched over a closed connection")
	}
}

// TestWatchSurvivesDisconnectWhileStarting: nats.go restores the connection with the
// subscriptions.
func TestWatchSurvivesDisconnectWhileStarting(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for breaks := true; ; breaks = false {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, `INFO {"server_id":"x","version":"2.11.0","proto":1,"max_payload":1048576}`+"\r\n")
			pings := 0
			for lines := bufio.NewScanner(conn); (!breaks || pings < 2) && lines.Scan(); {
				if lines.Text() != "PING" {
					continue
				}
				if pings++; !breaks || pings < 2 { // the first one is part of connecting
					fmt.Fprint(conn, "PONG\r\n")
				}
			}
			conn.Close()
		}
	}()
	nc, err := nats.Connect("nats://"+l.Addr().String(), limits.Reconnect())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := patient(nc).Watch(t.Context()); err != nil {
		t.Error(err)
	}
	if nc.Stats().Reconnects != 1 {
		t.Error("the connection has not broken")
	}
}

func publish(t *testing.T, nc *nats.Conn, subject, data string) {
	t.Helper()
	if err := nc.Publish(subject, []byte(data)); err != nil {
		t.Fatal(err)
	}
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("timed out after a minute")
		}
	}
}

// heap returns how much memory is in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A watch that has ended is not retained by its context.
func TestEndedWatchIsReleased(t *testing.T) {
	nc := connect(t)
	client := patient(nc)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := heap()
	const watches = 300 // each with room for 4096 pointers
	for range watches {
		events, err := client.Watch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		publish(t, nc, limits.EventExceeded, exceededEvent)
		for range events {
			break
		}
	}
	if after := heap(); after > before+watches*4096*8/2 {
		t.Errorf("%d MB after %d watches", (after-before)>>20, watches)
	}
}
