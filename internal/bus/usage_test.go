package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/usage"
)

// fakeUsage records what it gets, and answers with a row of each kind.
type fakeUsage struct {
	logged    chan usage.Request
	malformed chan struct{}
	top       usage.TopQuery
	log       usage.LogQuery
}

func newFakeUsage() *fakeUsage {
	return &fakeUsage{logged: make(chan usage.Request, 10), malformed: make(chan struct{}, 10)}
}

func (f *fakeUsage) serve(c *ServiceConfig) { c.UsageLog, c.Usage = f, f }

func (f *fakeUsage) Log(r usage.Request) { f.logged <- r }
func (f *fakeUsage) Malformed()          { f.malformed <- struct{}{} }

func (f *fakeUsage) TopUsage(_ context.Context, q usage.TopQuery) ([]usage.Top, error) {
	f.top = q
	return []usage.Top{{ID: usage.ID{Key: "k", Policy: "p", User: "u"}, Allowed: 1, Denied: 2, Cost: 3, Peak: 4}, {}}, nil
}

func (f *fakeUsage) Traffic(_ context.Context, q usage.LogQuery) ([]usage.Traffic, error) {
	f.log = q
	return []usage.Traffic{{Key: "k", User: "u", Requests: 1, Errors: 2}}, nil
}

func (f *fakeUsage) SlowestEndpoints(_ context.Context, q usage.LogQuery) ([]usage.Endpoint, error) {
	f.log = q
	return []usage.Endpoint{{Endpoint: "/a", Method: "GET", Requests: 1, Mean: 2.5, P95: 3, Max: 4}}, nil
}

func (f *fakeUsage) EndpointErrors(_ context.Context, q usage.LogQuery) ([]usage.Failure, error) {
	f.log = q
	if q.Prefix == "nobody" {
		return nil, nil
	}
	return []usage.Failure{{Endpoint: "/a", Method: "GET", Status: 500, Requests: 1}}, nil
}

func TestSettleReply(t *testing.T) {
	t.Parallel()
	var failure error
	_, nc := serve(t, &fakeEngine{submit: func(r *engine.Request) error {
		r.Done(engine.Decision{Allowed: true, Results: []engine.Result{
			{Key: r.ConsumeID(), Name: "1m", Window: "1m", Limit: 10, Remaining: 3, Allowed: true},
		}}, failure)
		return nil
	}})
	for _, c := range []struct {
		body, code, field string
		err               error
	}{
		{body: `{"id":"a","cost":0}`},
		{body: `{"id":"a","cost":-0}`},
		{body: `{"id":"a"}`, code: "invalid_cost", field: "cost"},
		{body: `{"cost":1}`, code: "invalid_id", field: "id"},
		{body: `{"id":"","cost":1}`, code: "invalid_id", field: "id"},
		{body: `{"id":"a\nb","cost":1}`, code: "invalid_id", field: "id"},
		{body: `{"id":"a","cost":-1}`, code: "invalid_cost", field: "cost"},
		{body: `{"id":"a","cost":1000000001}`, code: "invalid_cost", field: "cost"},
		{body: `{"id":"a","cost":1,"key":"k"}`, code: "unknown_field", field: "key"},
		{`{"id":"a","cost":1}`, "unknown_id", "id", engine.ErrUnknownID},
		{`{"id":"a","cost":1}`, "nothing_to_settle", "id", engine.ErrNothingToSettle},
		{`{"id":"a","cost":1}`, "id_conflict", "cost", engine.ErrIDConflict},
		{`{"id":"a","cost":1}`, "unavailable", "", engine.ErrUnavailable},
	} {
		failure = c.err
		m := ask(t, nc, limits.SubjectSettle, c.body)
		want := `{"allowed":true,"key":"a","name":"1m","limit":10,"remaining":3,"reset":0}`
		if c.code != "" {
			want = fmt.Sprintf(`{"error":{"code":%q,`, c.code)
			if c.field != "" {
				want += fmt.Sprintf(`"field":%q,`, c.field)
			}
		}
		if !strings.HasPrefix(string(m.Data), want) {
			t.Errorf("%s, %v\n got %s\nwant %s", c.body, c.err, m.Data, want)
		}
		if named := strings.Contains(string(m.Data), `id \"a\"`); (c.field == "id" || c.field == "cost") && c.err != nil && !named {
			t.Errorf("%s, %v: the error does not name the id: %s", c.body, c.err, m.Data)
		}
	}
	failure = engine.ErrUnknownID
	m := ask(t, nc, limits.SubjectSettle, `{"id":"a","cost":1}`)
	if m.Header.Get(micro.ErrorCodeHeader) != "404" {
		t.Errorf("unknown id: %v", m.Header)
	}
	for cause, named := range map[string]bool{"no consume or verify": true, "not decided yet": true, "settle again a little later": true,
		"without the store": true, "10 minutes": true, "no limit applied": false} { // without limits it is found, and settles as allowed
		if strings.Contains(string(m.Data), cause) != named {
			t.Errorf("unknown id, %q: want %t in %s", cause, named, m.Data)
		}
	}
}

func TestUsageQuestions(t *testing.T) {
	t.Parallel()
	f := newFakeUsage()
	_, nc := serve(t, &fakeEngine{submit: allowing}, f.serve)
	for _, c := range []struct{ subject, body, want string }{
		{limits.SubjectTop, `{"since":5,"until":7,"by":"used","policy":"p","prefix":"k","user":"u","max":9}`,
			`{"since":0,"until":60000,"rows":[{"key":"k","policy":"p","user":"u","allowed":1,"denied":2,"cost":3,"peak":4},` +
				`{"key":"","allowed":0,"denied":0,"cost":0,"peak":0}]}`},
		{limits.SubjectUsageReport, `{"report":"traffic","since":5,"until":7}`,
			`{"since":5,"until":7,"traffic":[{"key":"k","user":"u","requests":1,"errors":2}]}`},
		{limits.SubjectUsageReport, `{"report":"slowest","since":5,"until":7}`,
			`{"since":5,"until":7,"slowest":[{"endpoint":"/a","method":"GET","requests":1,"mean":2.5,"p95":3,"max":4}]}`},
		{limits.SubjectUsageReport, `{"report":"errors","since":5,"until":7,"prefix":"nobody"}`, `{"since":5,"until":7,"errors":[]}`},
		{limits.SubjectUsageReport, `{"report":"errors","since":5,"until":7,"prefix":"x","max":3}`,
			`{"since":5,"until":7,"errors":[{"endpoint":"/a","method":"GET","status":500,"requests":1}]}`},
		{limits.SubjectTop, `{"by":"loved"}`,
			`{"error":{"code":"invalid_by","field":"by","message":"unknown by \"loved\"; want denied, used, allowed"}}`},
		{limits.SubjectTop, `{"period":"day"}`, `{"error":{"code":"invalid_period"`},
		{limits.SubjectTop, `{"period":"1h","since":5}`, `{"error":{"code":"mixed_forms"`},
		{limits.SubjectTop, `{"until":5}`, `{"error":{"code":"invalid_since"`},
		{limits.SubjectTop, `{"since":7,"until":7}`, `{"error":{"code":"invalid_until"`},
		{limits.SubjectTop, `{"max":1001}`, `{"error":{"code":"invalid_max"`},
		{limits.SubjectTop, `{"key":"k"}`, `{"error":{"code":"unknown_field"`},
		{limits.SubjectUsageReport, `{}`, `{"error":{"code":"invalid_report"`},
		{limits.SubjectUsageReport, `{"report":"all"}`,
			`{"error":{"code":"invalid_report","field":"report","message":"unknown report \"all\"; want traffic, slowest, errors"}}`},
		{limits.SubjectUsageReport, `{"report":"errors","user":"u"}`, `{"error":{"code":"unknown_field"`},
	} {
		if m := ask(t, nc, c.subject, c.body); !strings.HasPrefix(string(m.Data), c.want) {
			t.Errorf("%s %s\n got %s\nwant %s", c.subject, c.body, m.Data, c.want)
		}
	}
	if diff := cmp.Diff(usage.TopQuery{By: "used", Since: 0, Until: 60_000, Policy: "p", User: "u", Prefix: "k", Max: 9}, f.top); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(usage.LogQuery{Since: 5, Until: 7, Prefix: "x", Max: 3}, f.log); diff != "" {
		t.Error(diff)
	}
	ask(t, nc, limits.SubjectTop, `{}`)
	if got := f.top; got.By != "denied" || got.Max != 20 || (got.Until-1)/60_000*60_000-got.Since != time.Hour.Milliseconds() {
		t.Errorf("unless said: %+v", got)
	}
}

// TestTopCountsWholeMinutes: usage is kept by the minute, so a period has those in which it begins and ends, and the answer
// says so.
func TestTopCountsWholeMinutes(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 5, 17, 12, 0, 0, 0, time.UTC)
	now := noon.Add(5 * time.Second)
	at := func(d time.Duration) int64 { return noon.Add(d).UnixMilli() }
	for body, want := range map[string][2]int64{
		`{"period":"30s"}`: {at(-time.Minute), at(5*time.Second) + 1},
		`{"period":"5s"}`:  {at(0), at(5*time.Second) + 1},
		`{"period":"1m"}`:  {at(-time.Minute), at(5*time.Second) + 1},
		fmt.Sprintf(`{"since":%d,"until":%d}`, at(-time.Hour), at(-time.Minute)):     {at(-time.Hour), at(-time.Minute)},
		fmt.Sprintf(`{"since":%d,"until":%d}`, at(-time.Hour)-1, at(-time.Minute)+1): {at(-61 * time.Minute), at(0)},
		fmt.Sprintf(`{"since":%d,"until":%d}`, at(-time.Hour), at(time.Second)):      {at(-time.Hour), at(5*time.Second) + 1},
		fmt.Sprintf(`{"since":%d,"until":%d}`, at(10*time.Second), at(time.Hour)+1):  {at(0), at(time.Hour) + 1},
	} {
		q, err := decodeTop([]byte(body), now)
		if got := [2]int64{q.Since, q.Until}; err != nil || got != want {
			t.Errorf("%s: %v, %v; want %v", body, got, err, want)
		}
	}
}

func TestRequestLog(t *testing.T) {
	t.Parallel()
	f := newFakeUsage()
	_, nc := serve(t, &fakeEngine{submit: allowing}, f.serve)
	now := time.Now().UnixMilli()
	for _, bad := range []string{
		``, `[]`, `{}`, `{"key":"k","endpoint":"/a","method":"GET","status":200}`,
		`{"key":"","endpoint":"/a","method":"GET","status":200,"millis":5}`,
		`{"key":"k","endpoint":"/a","method":"GET","status":99,"millis":5}`,
		`{"key":"k","endpoint":"/a","method":"GET","status":200,"millis":-5}`,
		`{"key":"k","endpoint":"/a","method":"GET","status":200,"millis":5,"at":1}`,
		`{"key":"k","endpoint":"/a","method":"GET","status":200,"millis":5,"body":"x"}`,
		fmt.Sprintf(`{"key":"k","endpoint":%q,"method":"GET","status":200,"millis":5}`, strings.Repeat("a", 257)),
	} {
		if err := nc.Publish(limits.SubjectUsage, []byte(bad)); err != nil {
			t.Fatal(err)
		}
		<-f.malformed
	}
	// A reply subject changes nothing: it is never answered.
	good := fmt.Sprintf(`{"key":"k","user":"u","endpoint":"/a","method":"GET","status":200,"millis":5,"at":%d}`, now-1000)
	if err := nc.PublishRequest(limits.SubjectUsage, "_INBOX.x", []byte(good)); err != nil {
		t.Fatal(err)
	}
	want := usage.Request{At: now - 1000, Key: "k", User: "u", Endpoint: "/a", Method: "GET", Status: 200, Millis: 5}
	if diff := cmp.Diff(want, <-f.logged); diff != "" {
		t.Error(diff)
	}
	for _, at := range []string{``, `,"at":0`} {
		if err := nc.Publish(limits.SubjectUsage, []byte(`{"key":"k","endpoint":"/a","method":"GET","status":200,"millis":5`+at+`}`)); err != nil {
			t.Fatal(err)
		}
		if got := <-f.logged; got.At < now || got.At > time.Now().UnixMilli() {
			t.Errorf("%q: at %d", at, got.At)
		}
	}
}

// TestManyLinesInOneMessage: each counts by itself. The log says what is wrong with the first bad one, and, at the latest when
// the service stops, how many others there were.
func TestManyLinesInOneMessage(t *testing.T) {
	t.Parallel()
	f, log := newFakeUsage(), new(logBuffer)
	s, nc := serve(t, &fakeEngine{submit: allowing}, f.serve, func(c *ServiceConfig) {
		c.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	line := func(key string) string {
		return `{"key":"` + key + `","endpoint":"/a","method":"GET","status":200,"millis":5}`
	}
	for _, c := range []struct {
		body      string
		logged    []string
		malformed int
	}{
		{" [" + line("a") + "," + line("b") + "]", []string{"a", "b"}, 0},
		{"[" + line("") + "," + line("c") + ",7,[" + line("x") + "]," + line("d") + "]", []string{"c", "d"}, 3},
		{"[" + line("x") + "," + line("x"), nil, 1},
		{"[" + line("x") + "] []", nil, 1},
		{"[" + strings.Repeat(line("x")+",", 300) + line("x") + "]", nil, 1},
		{"[" + strings.Repeat("0,", 8000) + line("x") + "]", nil, 1},
		{"[" + strings.Repeat(" ", limits.MaxRequestBytes-2-len(line("f"))) + line("f") + "]", []string{"f"}, 0},
		{"[" + strings.Repeat(" ", limits.MaxRequestBytes-1-len(line("x"))) + line("x") + "]", nil, 1},
		{"[" + strings.TrimSuffix(strings.Repeat(`{"key":"k","endpoint":"e","method":"G","status":200,"millis":0},`, 255), ",") + "]", slices.Repeat([]string{"k"}, 255), 0},
		{line("e"), []string{"e"}, 0},
	} {
		if err := nc.Publish(limits.SubjectUsage, []byte(c.body)); err != nil {
			t.Fatal(err)
		}
		for range c.malformed {
			<-f.malformed
		}
		for _, key := range c.logged {
			if r := <-f.logged; r.Key != key {
				t.Errorf("%.100s: %+v, want key %s", c.body, r, key)
			}
		}
	}
	if n := len(f.logged) + len(f.malformed); n > 0 {
		t.Errorf("%d more", n)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	const said = `level=WARN msg="ignored invalid lines for the request log" error=`
	lines := strings.Split(log.String(), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], said+`"key is empty`) || !strings.HasSuffix(lines[0], "lines=1") ||
		!strings.Contains(lines[1], said+`"the request must be a JSON object; got a number`) || !strings.HasSuffix(lines[1], "lines=7") {
		t.Errorf("log: %s", log)
	}
}

// TestFirstMissingFieldIsNamed: the same line gets the same error each time.
func TestFirstMissingFieldIsNamed(t *testing.T) {
	body := ""
	for _, c := range []struct{ missing, member string }{
		{"key", `"key":"k"`}, {"endpoint", `"endpoint":"/a"`}, {"method", `"method":"GET"`}, {"status", `"status":200`}, {"millis", ""},
	} {
		for range 10 {
			if _, err := decodeLogEntry([]byte("{"+body+"}"), time.Now()); err == nil || wireError(err, nil).Field != c.missing {
				t.Errorf("{%s}: %v, want that %s is missing", body, err, c.missing)
			}
		}
		body = strings.TrimPrefix(body+","+c.member, ",")
	}
}

func FuzzLogEntry(f *testing.F) {
	f.Add([]byte(`{"key":"k","user":"u","endpoint":"/a","method":"GET","status":200,"millis":5,"at":1700000000000}`))
	f.Add([]byte(`{"key":"k"`))
	now := time.UnixMilli(1_700_000_000_000)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeLogEntry(data, now)
		if err != nil {
			if e := wireError(err, nil); e.Status != 400 && e.Status != 413 {
				t.Errorf("%v", err)
			}
			return
		}
		if r.Key == "" || len(r.Key) > 256 || len(r.User) > 256 || len(r.Endpoint) > 256 || len(r.Method) > 16 ||
			r.Status < 100 || r.Status > 599 || r.Millis < 0 || now.Sub(time.UnixMilli(r.At)).Abs() > 24*time.Hour {
			t.Errorf("%+v", r)
		}
	})
}

// TestLogLinesAreOfTheLastDays: the oldest and the latest time are taken, and none beyond them.
func TestLogLinesAreOfTheLastDays(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000)
	oldest, latest := now.Add(-limits.MaxLogAge).UnixMilli(), now.Add(limits.MaxLogAhead).UnixMilli()
	for at, want := range map[int64]int64{0: now.UnixMilli(), oldest: oldest, latest: latest, oldest - 1: -1, latest + 1: -1} {
		r, err := decodeLogEntry(fmt.Appendf(nil, `{"key":"k","endpoint":"e","method":"GET","status":200,"millis":1,"at":%d}`, at), now)
		if (err == nil) != (want >= 0) || err == nil && r.At != want {
			t.Errorf("at %d: %d, %v", at, r.At, err)
		}
	}
}

// TestClientsRefuseInvalidLogLines: such a line gets no answer, so the client has to say what is
// wrong.
func TestClientsRefuseInvalidLogLines(t *testing.T) {
	t.Parallel()
	_, nc := serve(t, &fakeEngine{submit: allowing})
	long := strings.Repeat("x", limits.MaxKeyBytes+1)
	now := time.Now()
	for name, change := range map[string]func(*limits.LogEntry){
		"as it is":  func(*limits.LogEntry) {},
		"no key":    func(e *limits.LogEntry) { e.Key = "" },
		"long key":  func(e *limits.LogEntry) { e.Key = long },
		"full key":  func(e *limits.LogEntry) { e.Key = long[1:] },
		"odd key":   func(e *limits.LogEntry) { e.Key = "a\u202fb" },
		"long user": func(e *limits.LogEntry) { e.User = long }, "odd user": func(e *limits.LogEntry) { e.User = "a\n" },
		"no endpoint":   func(e *limits.LogEntry) { e.Endpoint = "" },
		"long endpoint": func(e *limits.LogEntry) { e.Endpoint = long },
		"no method":     func(e *limits.LogEntry) { e.Method = "" },
		"long method":   func(e *limits.LogEntry) { e.Method = strings.Repeat("X", limits.MaxMethodBytes+1) },
		"no status":     func(e *limits.LogEntry) { e.Status = 0 },
		"low status":    func(e *limits.LogEntry) { e.Status = 99 },
		"high status":   func(e *limits.LogEntry) { e.Status = 600 },
		"early millis":  func(e *limits.LogEntry) { e.Millis = -1 },
		"late millis":   func(e *limits.LogEntry) { e.Millis = limits.MaxMillis + 1 },
		"most millis":   func(e *limits.LogEntry) { e.Millis = limits.MaxMillis },
		"at in seconds": func(e *limits.LogEntry) { e.At = now.Unix() },
		"at yesterday":  func(e *limits.LogEntry) { e.At = now.Add(-limits.MaxLogAge - time.Minute).UnixMilli() },
		"at tomorrow":   func(e *limits.LogEntry) { e.At = now.Add(limits.MaxLogAhead + time.Minute).UnixMilli() },
		"at just now":   func(e *limits.LogEntry) { e.At = now.Add(-time.Second).UnixMilli() },
	} {
		entry := limits.LogEntry{Key: "k", User: "u", Endpoint: "/", Method: "GET", Status: 200, Millis: 1}
		change(&entry)
		line, err := json.Marshal(entry)
		if err != nil {
			t.Fatal(err)
		}
		_, dropped := decodeLogEntry(line, now)
		refused := limits.NewClient(nc).LogRequest(entry)
		want, _ := errors.AsType[*limits.Error](dropped)
		got, _ := errors.AsType[*limits.Error](refused)
		if (want == nil) != (got == nil) || want != nil && (got.Status != want.Status || got.Code != want.Code || got.Field != want.Field) {
			t.Errorf("%s: the client says %v, and the service %v", name, refused, dropped)
		}
	}
}

// TestReportsLeaveRoomForAdministration: while as many reports wait as may, more are refused at once, and an API key can be
// revoked.
func TestReportsLeaveRoomForAdministration(t *testing.T) {
	t.Parallel()
	f := newFakeUsage()
	s, nc := serve(t, &fakeEngine{}, f.serve)
	for range cap(s.reportSlots) {
		s.reportSlots <- struct{}{}
	}
	for subject, refused := range map[string]bool{limits.SubjectTop: true, limits.SubjectUsageReport: true, limits.SubjectList: false, limits.SubjectReset: false} {
		if m := ask(t, nc, subject, `{}`); (m.Header.Get(micro.ErrorCodeHeader) == "503") != refused {
			t.Errorf("%s: %s %s", subject, m.Header, m.Data)
		}
	}
	waitFor(t, "a stop would wait for none of them", func() bool { return s.pending.Load() == 0 })
}
