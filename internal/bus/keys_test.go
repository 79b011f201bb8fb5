package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
	"github.com/seed503877ad/limits/internal/testenv"
)

// logBuffer is a log that the test can read.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *logBuffer) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *logBuffer) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// worker is a service with its registry and table, put together as the app does.
type worker struct {
	svc   *Service
	table *overrides.Table
	log   *logBuffer
}

// startWorker starts a worker over a database, with the test's engine. If silent, it sends and
// hears no announcements.
func startWorker(t *testing.T, databaseURL, natsURL string, e Decider, silent bool, change ...func(*ServiceConfig)) *worker {
	t.Helper()
	store := eachstore.Postgres(t, databaseURL)
	nc := connect(t, natsURL)
	w := &worker{log: new(logBuffer)}
	log := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ofKeys, ofOverrides := NewAnnouncements(nc, SubjectForgetKey, log), NewAnnouncements(nc, SubjectReadOverrides, log)
	registry, err := keys.New(keys.Config{Store: store, Broadcast: func(id string) { ofKeys.Send(Announcement{id}) }})
	if err != nil {
		t.Fatal(err)
	}
	w.table, err = overrides.New(overrides.Config{Store: store, Logger: log,
		Broadcast: func() { ofOverrides.Send(Announcement{}) }})
	if err != nil {
		t.Fatal(err)
	}
	if !silent {
		for a, apply := range map[*Broadcast[Announcement]]func(Announcement){ofKeys: func(a Announcement) { registry.Forget(a.ID) },
			ofOverrides: func(Announcement) { w.table.Wake() }} {
			if err := a.Listen(apply); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.table.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); w.table.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	cfg := ServiceConfig{Conn: nc, Engine: e, Logger: log, Keys: registry, Overrides: w.table, storeTimeout: patience, scanTimeout: patience}
	for _, f := range change {
		f(&cfg)
	}
	w.svc, err = NewService(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func oneWorker(t *testing.T, e Decider, change ...func(*ServiceConfig)) (*worker, *nats.Conn) {
	t.Helper()
	url := testenv.NATS(t).ClientURL()
	return startWorker(t, testenv.Postgres(t), url, e, false, change...), dial(t, url)
}

func createKey(t *testing.T, nc *nats.Conn, body string) (r limits.CreateKeyReply) {
	t.Helper()
	m := ask(t, nc, limits.SubjectKeysCreate, body)
	if err := json.Unmarshal(m.Data, &r); err != nil || r.APIKey == "" {
		t.Fatalf("create %s: %s %v", body, m.Data, err)
	}
	return r
}

// verify returns the answer as it came.
func verify(t *testing.T, nc *nats.Conn, format string, args ...any) string {
	t.Helper()
	return string(ask(t, nc, limits.SubjectVerify, fmt.Sprintf(format, args...)).Data)
}

func TestKeyLifecycle(t *testing.T) {
	t.Parallel()
	_, nc := oneWorker(t, &fakeEngine{submit: allowing})
	r := createKey(t, nc, `{"user":"7","name":"ci","tier":"pro","attributes":{"plan":"gold"},"expiresAt":4000000000000}`)
	if r.Key.ID == "" || !strings.HasPrefix(r.APIKey, "lim_"+r.Key.ID+"_") || r.Key.CreatedAt == 0 {
		t.Errorf("%+v", r)
	}
	about := fmt.Sprintf(`"key":{"id":%q,"name":"ci"},"user":"7","tier":"pro","attributes":{"plan":"gold"}`, r.Key.ID)
	const decision = `{"allowed":true,"limit":0,"remaining":0,"reset":0,"limits":[]}`
	justNow := fmt.Sprint(time.Now().UnixMilli())
	for _, c := range []struct{ subject, body, want string }{
		{limits.SubjectVerify, `{"apiKey":"` + r.APIKey + `"}`, `{"valid":true,` + about + `,"decision":` + decision + `}`},
		{limits.SubjectVerify, `{"apiKey":"` + r.APIKey[1:] + `"}`, `{"valid":false,"code":"unknown"}`},
		{limits.SubjectVerify, `{"apiKey":""}`, `{"valid":false,"code":"unknown"}`},
		{limits.SubjectKeysExpire, `{"id":"` + r.Key.ID + `","expiresAt":` + justNow + `}`, `"expiresAt":` + justNow + `}}`},
		{limits.SubjectVerify, `{"apiKey":"` + r.APIKey + `"}`, `{"valid":false,"code":"expired",` + about + `}`},
		{limits.SubjectKeysExpire, `{"id":"` + r.Key.ID + `","expiresAt":0}`, `"createdAt":` + fmt.Sprint(r.Key.CreatedAt) + `}}`},
		{limits.SubjectKeysRevoke, `{"id":"` + r.Key.ID + `"}`, `"revokedAt":`},
		{limits.SubjectVerify, `{"apiKey":"` + r.APIKey + `"}`, `{"valid":false,"code":"inactive",` + about + `}`},
		{limits.SubjectKeysList, `{"user":"7"}`, `{"keys":[{"id":"` + r.Key.ID + `","name":"ci","user":"7",`},
		{limits.SubjectKeysList, `{"user":"8"}`, `{"keys":[]}`},
	} {
		if m := ask(t, nc, c.subject, c.body); !strings.Contains(string(m.Data), c.want) {
			t.Errorf("%s\n got %s\nwant %s", c.subject, m.Data, c.want)
		}
	}
	other := createKey(t, nc, `{"user":"7"}`)
	first, second := r.Key.ID, other.Key.ID
	if first > second {
		first, second = second, first
	}
	if m := ask(t, nc, limits.SubjectKeysList, `{"max":1}`); !strings.HasSuffix(string(m.Data), `"next":"`+first+`"}`) {
		t.Errorf("first page %s", m.Data)
	}
	if m := ask(t, nc, limits.SubjectKeysList, `{"max":1,"after":"`+first+`"}`); !strings.Contains(string(m.Data), second) || strings.Contains(string(m.Data), "next") {
		t.Errorf("last page %s", m.Data)
	}
}

// TestVerifyUsesFieldsOfTheKey: the key's user, tier and attributes take precedence over those of
// the request.
func TestVerifyUsesFieldsOfTheKey(t *testing.T) {
	t.Parallel()
	k := keys.Key{ID: "abcdefgh", User: "7", Tier: "pro", Attributes: map[string]string{"plan": "gold"}}
	q := &limits.VerifyRequest{Policy: "p", Tier: "free", Cost: 3, ID: "once",
		Attributes: map[string]string{"plan": "lead", "user": "8", "key": "x", "tier": "free", "path": "/"}}
	got, _ := json.Marshal(asKey(q, &k))
	want := `{"policy":"p","attributes":{"key":"abcdefgh","path":"/","plan":"gold","tier":"pro","user":"7"},"tier":"pro","cost":3,"id":"once"}`
	if string(got) != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	k.Tier = ""
	if r := asKey(q, &k); r.Tier != "free" || r.Attributes["tier"] != "free" {
		t.Errorf("a key without a tier: %q, %q", r.Tier, r.Attributes["tier"])
	}
	q.Attributes = nil
	if _, has := asKey(q, &k).Attributes["tier"]; has {
		t.Error("an attribute tier came out of nothing")
	}
}

// TestVerifyDecides: cost and id reach the engine, and its answers and errors come back.
func TestVerifyDecides(t *testing.T) {
	t.Parallel()
	asked := make(chan *engine.Request, 1)
	var answer engine.Decision
	var fail error
	w, nc := oneWorker(t, &fakeEngine{submit: func(r *engine.Request) error {
		asked <- r
		go r.Done(answer, fail)
		return nil
	}})
	key := createKey(t, nc, `{"user":"7"}`).APIKey
	answer = engine.Decision{Results: []engine.Result{{Key: "a", Name: "1m", Policy: "p", Window: "1m", Limit: 100, Used: 100,
		ResetAt: 1704307200000, RetryAfter: 23000}}}
	got := verify(t, nc, `{"apiKey":%q,"cost":5,"id":"once"}`, key)
	if r := <-asked; r.Verb != engine.Consume || r.Cost != 5 || r.ID != "once" {
		t.Errorf("asked %+v", r)
	}
	var reply limits.VerifyReply
	if err := json.Unmarshal([]byte(got), &reply); err != nil || !reply.Valid || reply.Allowed() || reply.Decision.RetryAfter != 23000 {
		t.Errorf("%s %v", got, err)
	}
	fail = engine.ErrIDConflict
	if got := verify(t, nc, `{"apiKey":%q,"id":"once"}`, key); !strings.Contains(got, `{"error":{"code":"id_conflict"`) {
		t.Error(got)
	}
	if got := verify(t, nc, `{"apiKey":%q,"policy":"nobody's"}`, key); !strings.Contains(got, `{"error":{"code":"unknown_policy"`) {
		t.Error(got)
	}
	// As many attributes as a key may have, beside as many as a request may.
	many := func(prefix string, n int) string {
		m := make(map[string]string, n)
		for i := range n {
			m[fmt.Sprint(prefix, i)] = "v"
		}
		b, _ := json.Marshal(m)
		return string(b)
	}
	<-asked
	fail = nil
	rich := createKey(t, nc, `{"user":"7","attributes":`+many("key", 16)+`}`).APIKey
	if got := verify(t, nc, `{"apiKey":%q,"attributes":`+many("own", 32)+`}`, rich); !strings.Contains(got, `"valid":true`) {
		t.Error(got)
	}
	// All were answered, and are counted so a moment later: the service can stop.
	waitFor(t, "no request is pending", func() bool { return w.svc.pending.Load() == 0 })
}

func TestKeyRequestsAreStrict(t *testing.T) {
	t.Parallel()
	w, nc := oneWorker(t, &fakeEngine{submit: allowing})
	w.svc.now = func() time.Time { return time.UnixMilli(1_700_000_000_000) }
	key := createKey(t, nc, `{"user":"7","expiresAt":1700000000001}`).APIKey
	many := make([]string, limits.MaxKeyAttributes+1)
	for i := range many {
		many[i] = fmt.Sprintf(`"a%d":""`, i)
	}
	for _, c := range []struct{ subject, body, code, field string }{
		{limits.SubjectVerify, `{}`, "invalid_apiKey", "apiKey"},
		{limits.SubjectVerify, `{"apiKey":["` + key + `"]}`, "invalid_apiKey", "apiKey"},
		{limits.SubjectVerify, `{"apiKey":"` + key + `","cost":0}`, "invalid_cost", "cost"},
		{limits.SubjectVerify, `{"apiKey":"` + key + `","key":"k"}`, "unknown_field", "key"},
		{limits.SubjectVerify, `{"apiKey":"` + key + `","apiKey":""}`, "invalid_json", ""},
		{limits.SubjectVerify, `{"apiKey":"` + key, "invalid_json", ""},
		{limits.SubjectVerify, `"` + key + `"`, "invalid_json", ""},
		{limits.SubjectKeysCreate, `{}`, "invalid_user", "user"},
		{limits.SubjectKeysCreate, `{"user":""}`, "invalid_user", "user"},
		{limits.SubjectKeysCreate, `{"user":"7","attributes":{"user":"8"}}`, "invalid_attributes", "attributes.user"},
		{limits.SubjectKeysCreate, `{"user":"7","attributes":{"a":1}}`, "invalid_attributes", "attributes.a"},
		{limits.SubjectKeysCreate, `{"user":"7","attributes":{` + strings.Join(many, ",") + `}}`, "invalid_attributes", "attributes"},
		{limits.SubjectKeysCreate, `{"user":"7","expiresAt":1700000000000}`, "invalid_expiresAt", "expiresAt"},
		{limits.SubjectKeysCreate, `{"user":"7","id":"x"}`, "unknown_field", "id"},
		{limits.SubjectKeysList, `{"max":1001}`, "invalid_max", "max"},
		{limits.SubjectKeysRevoke, `{"id":"` + key + `"}`, "invalid_id", "id"},
		{limits.SubjectKeysRevoke, `"` + key + `"`, "invalid_json", ""},
		{limits.SubjectKeysRevoke, `{"id":"AAAAAAAA"}`, "unknown_key", "id"},
		{limits.SubjectKeysRevoke, `{"id":"AAAAAAAA","expiresAt":1}`, "unknown_field", "expiresAt"},
		{limits.SubjectKeysExpire, `{"id":"AAAAAAAA"}`, "invalid_expiresAt", "expiresAt"},
		{limits.SubjectKeysExpire, `{"id":"AAAAAAAA","expiresAt":0}`, "unknown_key", "id"},
	} {
		m := ask(t, nc, c.subject, c.body)
		var got limits.ErrorBody
		if err := json.Unmarshal(m.Data, &got); err != nil || got.Error == nil || got.Error.Code != c.code || got.Error.Field != c.field {
			t.Errorf("%s %s\n got %s\nwant %s of %s", c.subject, c.body, m.Data, c.code, c.field)
		}
		if secret := key[13:]; strings.Contains(string(m.Data)+fmt.Sprint(m.Header), secret) {
			t.Errorf("%s tells the key: %s %v", c.subject, m.Data, m.Header)
		}
	}
	for _, subject := range []string{limits.SubjectKeysRevoke, limits.SubjectKeysExpire} {
		for body, want := range map[string]string{`{}`: "id is missing; want the 8 letters and digits after the key's prefix", `{"id":7}`: "id must be a string; got a number"} {
			if m := ask(t, nc, subject, body); !strings.Contains(string(m.Data), `"`+want+`"`) {
				t.Errorf("%s %s: %s", subject, body, m.Data)
			}
		}
	}
	if stats := ask(t, nc, "$SRV.STATS.limits", "").Data; strings.Contains(string(stats), key[13:]) {
		t.Errorf("the statistics tell the key: %s", stats)
	}
	if log := w.log.String(); strings.Contains(log, key[13:]) || !strings.Contains(log, "API key created") {
		t.Errorf("log: %s", log)
	}
}

// TestExpiryKeepsTheKey: a time so long ago that the next keys-prune would remove the key for good is a mistake, such as
// seconds in place of milliseconds.
func TestExpiryKeepsTheKey(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	s := &Service{now: func() time.Time { return now }}
	oldest := now.Add(-keys.EndedRetention).UnixMilli()
	for at, ok := range map[int64]bool{
		0: true, 1: false, now.Unix(): false, now.AddDate(-1, 0, 0).UnixMilli(): false, oldest - 1: false,
		oldest: true, now.UnixMilli(): true, now.AddDate(1, 0, 0).UnixMilli(): true,
	} {
		_, got, err := s.decodeExpireKey(fmt.Appendf(nil, `{"id":"AAAAAAAA","expiresAt":%d}`, at))
		if e, _ := errors.AsType[*limits.Error](err); ok && (err != nil || got != at) || !ok && (e == nil || e.Code != "invalid_expiresAt" || e.Field != "expiresAt") {
			t.Errorf("%d: %d, %v; accepted should be %t", at, got, err, ok)
		}
	}
	_, _, err := s.decodeExpireKey([]byte(`{"id":"AAAAAAAA","expiresAt":1795867200}`))
	const want = "expiresAt 1795867200 (1970-01-21T18:51:07Z) is over 30 days ago and would remove the key at the next keys-prune; " +
		"want Unix milliseconds; to end a key, revoke it"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// TestRevocationReachesEveryWorker has two workers over one PostgreSQL. Each is asked many times,
// so that both have cached the key. A second after the revocation no answer may call the key valid,
// whether the announcement was heard or lost.
func TestRevocationReachesEveryWorker(t *testing.T) {
	t.Parallel()
	for name, silent := range map[string]bool{"announced": false, "not announced": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			natsURL, databaseURL := testenv.NATS(t).ClientURL(), testenv.Postgres(t)
			for range 2 {
				startWorker(t, databaseURL, natsURL, &fakeEngine{submit: allowing}, silent)
			}
			nc := dial(t, natsURL)
			r := createKey(t, nc, `{"user":"7"}`)
			for range 50 {
				if got := verify(t, nc, `{"apiKey":%q}`, r.APIKey); !strings.Contains(got, `"valid":true`) {
					t.Fatal(got)
				}
			}
			ask(t, nc, limits.SubjectKeysRevoke, `{"id":"`+r.Key.ID+`"}`)
			revoked := time.Now()
			for denied := 0; denied < 50; denied++ {
				asked := time.Now()
				if got := verify(t, nc, `{"apiKey":%q}`, r.APIKey); !strings.Contains(got, `"code":"inactive"`) {
					denied = -1 // 50 in a row, so that both workers have answered
					if asked.Sub(revoked) > time.Second {
						t.Fatalf("%v after the revocation: %s", asked.Sub(revoked), got)
					}
				}
			}
		})
	}
}

func TestOverridesReachEveryWorker(t *testing.T) {
	t.Parallel()
	for name, silent := range map[string]bool{"announced": false, "not announced": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			natsURL, databaseURL := testenv.NATS(t).ClientURL(), testenv.Postgres(t)
			var workers [2]*worker
			for i := range workers {
				workers[i] = startWorker(t, databaseURL, natsURL, &fakeEngine{submit: allowing}, silent)
			}
			nc := dial(t, natsURL)
			m := ask(t, nc, limits.SubjectOverridesSet, `{"policy":"p","name":"minute","subject":"api:user:*","limit":500,"reason":"launch"}`)
			within1s(t, workers[:], m, true)
			m = ask(t, nc, limits.SubjectOverridesDelete, `{"policy":"p","name":"minute","subject":"api:user:*"}`)
			within1s(t, workers[:], m, false)
		})
	}
}

// within1s waits until each worker's table has taken over a change, and fails if that takes longer
// than a second.
func within1s(t *testing.T, workers []*worker, answer *nats.Msg, want bool) {
	t.Helper()
	if answer.Header.Get(micro.ErrorCodeHeader) != "" {
		t.Fatalf("%s", answer.Data)
	}
	answered := time.Now()
	for i, w := range workers {
		knows := func() bool {
			_, found := w.table.Find("p", "minute", "api:user:7", 0)
			return found == want
		}
		for !knows() {
			if time.Since(answered) > time.Second {
				t.Fatalf("worker %d knows nothing after a second", i)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func TestOverrideRequests(t *testing.T) {
	t.Parallel()
	w, nc := oneWorker(t, &fakeEngine{submit: allowing})
	now := time.UnixMilli(1_700_000_000_000)
	w.svc.now = func() time.Time { return now }
	id := func(subject string) string { return `"policy":"p","name":"n","subject":"` + subject + `"` }
	bad := func(code, field string) string {
		return fmt.Sprintf(`{"error":{"code":%q,"field":%q,"message":"`, code, field)
	}
	for _, c := range []struct{ subject, body, want string }{
		{limits.SubjectOverridesSet, `{` + id("a") + `,"limit":5,"window":"60s","burst":0,"expiresAt":1700000000001,"reason":"r","by":"ann"}`,
			`{"override":{` + id("a") + `,"limit":5,"window":"60s","burst":0,"expiresAt":1700000000001,"reason":"r","by":"ann","setAt":1700000000000}}`},
		{limits.SubjectOverridesSet, `{` + id("b:*") + `,"unlimited":true,"reason":"r"}`, `"unlimited":true,"reason":"r","setAt":`},
		{limits.SubjectOverridesSet, `{` + id("a") + `,"reason":"r"}`, bad("invalid_limit", "limit")},
		{limits.SubjectOverridesSet, `{` + id("a") + `,"limit":0,"reason":"r"}`, bad("invalid_limit", "limit")},
		{limits.SubjectOverridesSet, `{` + id("a") + `,"limit":1}`, bad("invalid_reason", "reason")},
		{limits.SubjectOverridesSet, `{` + id("a") + `,"limit":1,"unlimited":true,"reason":"r"}`, bad("mixed_forms", "unlimited")},
		{limits.SubjectOverridesSet, `{` + id("a") + `,"window":"1x","reason":"r"}`, bad("invalid_window", "window")},
		{limits.SubjectOverridesSet, `{` + id("a") + `,"limit":1,"reason":"r","expiresAt":1700000000000}`, bad("invalid_expiresAt", "expiresAt")},
		{limits.SubjectOverridesSet, `{"policy":"p","name":"n","limit":1,"reason":"r"}`, bad("invalid_subject", "subject")},
		{limits.SubjectOverridesSet, `{` + id("a") + `,"limits":1}`, bad("unknown_field", "limits")},
		{limits.SubjectOverridesDelete, `{"policy":"p"}`, bad("invalid_name", "name")},
		{limits.SubjectOverridesDelete, `{` + id("a") + `,"limit":1}`, bad("unknown_field", "limit")},
		{limits.SubjectOverridesDelete, `{` + id("c") + `}`, `{"deleted":false}`},
		{limits.SubjectOverridesList, `{"after":"x"}`, bad("invalid_after", "after")},
		{limits.SubjectOverridesList, `{"after":"p\nn\na\u0000"}`, bad("invalid_after", "after")},
		{limits.SubjectOverridesList, `{"after":"p\nn\n` + strings.Repeat("s", 509) + `"}`, bad("invalid_after", "after")},
		{limits.SubjectOverridesList, `{"after":"p\nn\n` + strings.Repeat("s", 508) + `"}`, `{"overrides":[]}`},
		{limits.SubjectOverridesList, `{"max":1}`, `"setAt":1700000000000}],"next":"p\nn\na"}`},
		{limits.SubjectOverridesList, `{"after":"p\nn\na"}`, `{"overrides":[{` + id("b:*") + `,"unlimited":true,`},
		{limits.SubjectOverridesList, `{"policy":"q"}`, `{"overrides":[]}`},
		{limits.SubjectOverridesDelete, `{` + id("a") + `}`, `{"deleted":true}`},
	} {
		if m := ask(t, nc, c.subject, c.body); !strings.Contains(string(m.Data), c.want) {
			t.Errorf("%s %s\n got %s\nwant %s", c.subject, c.body, m.Data, c.want)
		}
	}
	for subject, want := range map[string]bool{"a": false, "b:1": true, "c": false} {
		if _, found := w.table.Find("p", "n", subject, now.UnixMilli()); found != want {
			t.Errorf("%s has an override: %t", subject, found)
		}
	}
}

// TestListenerHearsWhatFollows: Listen returns when the server has the subscription, since an
// announcement may overtake what the client has yet to send.
func TestListenerHearsWhatFollows(t *testing.T) {
	t.Parallel()
	nc := connect(t, testenv.NATS(t).ClientURL())
	for range 100 {
		a, heard := NewAnnouncements(nc, SubjectForgetKey, slog.New(slog.DiscardHandler)), make(chan string, 1)
		if err := a.Listen(func(a Announcement) { heard <- a.ID }); err != nil {
			t.Fatal(err)
		}
		a.Send(Announcement{"own"})
		select {
		case <-heard:
		case <-time.After(10 * time.Second):
			t.Fatal("its own announcement was not heard")
		}
		a.Close()
	}
}

// TestStoresAreHeard: with a row of the journal and the longest name of a database, or from an earlier release.
func TestStoresAreHeard(t *testing.T) {
	t.Parallel()
	nc := connect(t, testenv.NATS(t).ClientURL())
	stores, heard := NewStoreStates(nc, slog.New(slog.DiscardHandler)), make(chan StoreState, 2)
	if err := stores.Listen(func(s StoreState) { heard <- s }); err != nil {
		t.Fatal(err)
	}
	defer stores.Close()
	full := StoreState{"postgres " + strings.Repeat(`"`, 63) + ", 4294967295.1790000000.123456", math.MaxInt64, math.MinInt64}
	stores.Send(full)
	waitFor(t, "it is heard", func() bool { return len(heard) > 0 })
	if s := <-heard; s != full {
		t.Errorf("heard %v", s)
	}
	if err := nc.Publish(subjectStore, []byte(`{"id":"sqlite"}`)); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "an earlier release is heard", func() bool { return len(heard) > 0 })
	if s := <-heard; s != (StoreState{ID: "sqlite"}) {
		t.Errorf("heard %v", s)
	}
}

func TestBadAnnouncementsAreIgnored(t *testing.T) {
	t.Parallel()
	nc, log := dial(t, testenv.NATS(t).ClientURL()), new(logBuffer)
	a := NewAnnouncements(nc, SubjectForgetKey, slog.New(slog.NewTextHandler(log, nil)))
	heard := make(chan string, 10)
	if err := a.Listen(func(a Announcement) { heard <- a.ID }); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "x", `{"id":1}`, `{"id":"` + strings.Repeat("x", 300) + `"}`} {
		if err := nc.Publish(SubjectForgetKey, []byte(bad)); err != nil {
			t.Fatal(err)
		}
	}
	a.Send(Announcement{"abcdefgh"})
	waitFor(t, "it is heard", func() bool { return len(heard) > 0 })
	if id := <-heard; id != "abcdefgh" {
		t.Errorf("heard %q", id)
	}
	if n := strings.Count(log.String(), "ignored an invalid broadcast to all workers"); n != 1 { // anybody may send them, any number a second
		t.Errorf("%d lines: %s", n, log)
	}
	a.Close()
}
