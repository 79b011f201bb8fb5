package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/policy"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
	"github.com/seed503877ad/limits/internal/testenv"
)

const policyFile = `
attributes: [user, route, team]
policies:
  - name: generations
    match: {route: generate}
    unit: generations
    message: "You've used {used}/{limit} {unit} {window}. \"{name}\" {retry}."
    limits:
      - {name: minute, key: "user:{user}", limit: 2, window: minute}
      - {name: day, key: "user:{user}", limit: 3, window: day}
    tiers: {PRO: {day: {limit: unlimited}}}
  - name: other
    limits: [{name: minute, key: "user:{user}", limit: 9, window: minute}]
  - name: trial
    mode: shadow
    match: {team: "*"}
    limits: [{key: "team:{team}", limit: 1, window: 1h}]
`

func keeper(t *testing.T) *policy.Keeper { return keeperOf(t, policyFile) }

func keeperOf(t *testing.T, text string) *policy.Keeper {
	t.Helper()
	path := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := policy.NewKeeper(t.Context(), path, policy.Options{Warning: 0.1, HashKey: []byte("0123456789abcdef")}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// withPolicies serves the policy file over a real engine.
func withPolicies(t *testing.T) *nats.Conn {
	t.Helper()
	return serveOver(t, keeper(t), sqliteStore(t))
}

func sqliteStore(t *testing.T) engine.Store {
	t.Helper()
	return eachstore.SQLite(t, nil)
}

func postgresStore(t *testing.T) engine.Store {
	t.Helper()
	store := eachstore.Postgres(t, testenv.Postgres(t))
	return store
}

func serveOver(t *testing.T, p Policies, store engine.Store) *nats.Conn {
	t.Helper()
	n := 0
	e, err := engine.New(t.Context(), engine.Config{Store: store, NewID: func() string { n++; return fmt.Sprint(n) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close(context.Background()) })
	_, nc := serve(t, e, func(c *ServiceConfig) { c.Policies = p })
	return nc
}

func decideOver(t *testing.T, nc *nats.Conn, subject, body string) limits.Reply {
	t.Helper()
	m := ask(t, nc, subject, body)
	var r limits.Reply
	if err := json.Unmarshal(m.Data, &r); err != nil || len(m.Header) != 0 {
		t.Fatalf("%s %s: %s %v", subject, body, m.Data, m.Header)
	}
	return r
}

// TestRequestsForMissingPoliciesAreLogged: they pass without a limit, so the log should tell
// whoever forgot --policies.
func TestRequestsForMissingPoliciesAreLogged(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	_, nc := serve(t, &fakeEngine{submit: allowing}, func(c *ServiceConfig) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	for n := range 3 {
		if m := ask(t, nc, limits.SubjectConsume, fmt.Sprintf(`{"attributes":{"user":"%d"}}`, n)); !strings.Contains(string(m.Data), `"allowed":true`) {
			t.Errorf("%s", m.Data)
		}
	}
	if said := log.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "start it with --policies FILE") {
		t.Errorf("said %q", said)
	}
}

// TestStatusOfPolicies has one counter for each limit that applies, also if nothing is used.
func TestStatusOfPolicies(t *testing.T) {
	t.Parallel()
	nc := withPolicies(t)
	for range 2 {
		decideOver(t, nc, limits.SubjectRecord, `{"policy":"generations","attributes":{"user":"7"}}`)
	}
	for body, want := range map[string]string{
		`{"policy":"generations","attributes":{"user":"7"}}`:              "user:7 minute 2/2, user:7 day 2/3",
		`{"policy":"generations","attributes":{"user":"9"}}`:              "user:9 minute 0/2, user:9 day 0/3",
		`{"policy":"generations","attributes":{"user":"9"},"tier":"PRO"}`: "user:9 minute 0/2",
		`{"attributes":{"user":"7","route":"generate"}}`:                  "user:7 minute 2/2, user:7 day 2/3",
		`{"attributes":{"nothing":"matches"}}`:                            "",
		`{"policy":"absent","attributes":{"user":"7"}}`:                   "unknown_policy",
		`{"policy":"generations","attributes":{"route":"needs a user"}}`:  "invalid_attributes",
	} {
		m := ask(t, nc, limits.SubjectStatus, body)
		var got []string
		var status limits.Status
		var failed limits.ErrorBody
		if err := errors.Join(json.Unmarshal(m.Data, &status), json.Unmarshal(m.Data, &failed)); err != nil {
			t.Fatal(err)
		}
		for _, c := range status.Counters {
			got = append(got, fmt.Sprintf("%s %s %d/%d", c.Key, c.Name, c.Used, c.Limit))
		}
		if failed.Error != nil {
			got = append(got, failed.Error.Code)
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: %s, want %s", body, m.Data, want)
		}
	}
}

func TestPoliciesDecide(t *testing.T) {
	t.Parallel()
	nc := withPolicies(t)
	named := `{"policy":"generations","attributes":{"user":"7"}}`
	for i := range 2 {
		if r := decideOver(t, nc, limits.SubjectRecord, named); !r.Allowed || len(r.Limits) != 2 || r.Limits[1].Name != "day" ||
			r.Limits[1].Policy != "generations" || r.Limits[1].Key != "user:7" || r.Remaining != int64(1-i) {
			t.Errorf("%+v", r)
		}
	}
	r := decideOver(t, nc, limits.SubjectCheck, `{"attributes":{"user":"7","route":"generate"}}`)
	if r.Allowed || r.BlockedBy != "minute" || !strings.HasPrefix(r.Message, `You've used 2/2 generations this minute. "minute" `) {
		t.Errorf("%+v", r)
	}
	if r := decideOver(t, nc, limits.SubjectConsume, `{"policy":"other","attributes":{"user":"7"}}`); r.Remaining != 8 {
		t.Errorf("%+v: another policy's counter of the same key and name is charged", r)
	}
	if r := decideOver(t, nc, limits.SubjectConsume, `{"policy":"generations","tier":"PRO","attributes":{"user":"8"}}`); len(r.Limits) != 1 {
		t.Errorf("%+v: a limit that the tier lifts", r)
	}
	var status limits.Status
	if err := json.Unmarshal(ask(t, nc, limits.SubjectStatus, `{"key":"user:7"}`).Data, &status); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range status.Counters {
		got = append(got, c.Policy+"/"+c.Name)
	}
	if fmt.Sprint(got) != "[generations/day generations/minute other/minute]" {
		t.Errorf("status shows %v", got)
	}
	// One counter a page: the next of a page holds a policy's counter too.
	var page limits.List
	for n, after := 0, ""; n < 4; n++ {
		body, _ := json.Marshal(limits.ListRequest{Max: 1, After: after})
		m := ask(t, nc, limits.SubjectList, string(body))
		page = limits.List{}
		if err := json.Unmarshal(m.Data, &page); err != nil || len(page.Counters) != 1 {
			t.Fatalf("page %d behind %q: %s", n, after, m.Data)
		}
		after = page.Next
	}
	if page.Next != "" {
		t.Errorf("the last page has a next %q", page.Next)
	}
}

func TestShadowOnTheWire(t *testing.T) {
	t.Parallel()
	nc := withPolicies(t)
	for i := range 2 {
		r := decideOver(t, nc, limits.SubjectConsume, `{"attributes":{"team":"a"},"id":"`+fmt.Sprint(i)+`"}`)
		if !r.Allowed || r.Shadow != (i == 1) || r.Message != "" || len(r.Limits) != 1 || !r.Limits[0].Shadow || r.Limits[0].Allowed != (i == 0) {
			t.Errorf("%+v", r)
		}
	}
	if r := decideOver(t, nc, limits.SubjectConsume, `{"attributes":{"team":"a"},"id":"1"}`); !r.Shadow {
		t.Errorf("%+v: the repeat has another answer", r)
	}
}

func TestPolicyErrors(t *testing.T) {
	t.Parallel()
	nc := withPolicies(t)
	for body, want := range map[string]string{
		`{"policy":"generation"}`: `404 {"error":{"code":"unknown_policy","field":"policy","message":"unknown policy \"generation\"; limits.admin.policies lists them"}}`,
		`{"policy":"other"}`: `400 {"error":{"code":"invalid_attributes","field":"attributes.user","message":` +
			`"attribute user is missing or empty; the key of the limit needs it (policy other, limit minute)"}}`,
	} {
		m := ask(t, nc, limits.SubjectConsume, body)
		if got := m.Header.Get(micro.ErrorCodeHeader) + " " + string(m.Data); got != want {
			t.Errorf("%s\n got %s\nwant %s", body, got, want)
		}
	}
}

func TestAdminPolicies(t *testing.T) {
	t.Parallel()
	nc := withPolicies(t)
	var names []string
	for after := ""; ; {
		body, _ := json.Marshal(limits.PoliciesRequest{After: after, Max: 2})
		m := ask(t, nc, limits.SubjectPolicies, string(body))
		var p limits.Policies
		if err := json.Unmarshal(m.Data, &p); err != nil || len(p.Hash) != 64 || p.LoadedAt == 0 || p.Error != "" || len(p.Policies) > 2 {
			t.Fatalf("%s %v", m.Data, m.Header)
		}
		for _, i := range p.Policies {
			names = append(names, fmt.Sprint(i.Name, len(i.Limits), i.Tiers))
		}
		if after = p.Next; after == "" {
			break
		}
	}
	if got := strings.Join(names, " "); got != "generations2 [PRO] other1 [] trial1 []" {
		t.Error(got)
	}
	for body, code := range map[string]string{`{"max":101}`: "invalid_max", `{"name":"x"}`: "unknown_field", `{"after":"gone","max":2}`: "invalid_after"} {
		if m := ask(t, nc, limits.SubjectPolicies, body); !strings.Contains(string(m.Data), code) {
			t.Errorf("%s: %s", body, m.Data)
		}
	}
}

// TestAdminPoliciesShowsWholeLimit, with what its tiers and times make of it.
func TestAdminPoliciesShowsWholeLimit(t *testing.T) {
	t.Parallel()
	nc := serveOver(t, keeperOf(t, `policies:
  - name: p
    limits:
      - {name: m, key: "k:{user}", limit: 10, window: 1m, algorithm: token_bucket, burst: 5, consistency: leased}
      - {name: d, key: "k:{user}", limit: 50, window: day, timezone: Europe/Berlin, anchor: first_use}
    tiers: {PRO: {m: {limit: 20, burst: 0}, d: {limit: unlimited}}}
    schedule:
      - {from: "22:00", to: "06:00", days: [sat], timezone: Europe/Berlin, factor: 2}
      - {from: "12:00", to: "13:00", timezone: Europe/Berlin, limits: {d: {limit: 60}}}
`), sqliteStore(t))
	want := `"policies":[{"name":"p","limits":[` +
		`{"name":"m","key":"k:{user}","limit":10,"window":"1m","algorithm":"token_bucket","burst":5,"consistency":"leased"},` +
		`{"name":"d","key":"k:{user}","limit":50,"window":"day","timezone":"Europe/Berlin","anchor":"first_use"}],` +
		`"tiers":["PRO"],"tierLimits":{"PRO":[` +
		`{"name":"m","key":"k:{user}","limit":20,"window":"1m","algorithm":"token_bucket","consistency":"leased"},` +
		`{"name":"d","key":"k:{user}","unlimited":true,"window":"day","timezone":"Europe/Berlin","anchor":"first_use"}]},` +
		`"schedule":[{"from":"22:00","to":"06:00","days":["sat"],"timezone":"Europe/Berlin","factor":2},` +
		`{"from":"12:00","to":"13:00","timezone":"Europe/Berlin","limits":[` +
		`{"name":"d","key":"k:{user}","limit":60,"window":"day","timezone":"Europe/Berlin","anchor":"first_use"}]}]}]}`
	if got := string(ask(t, nc, limits.SubjectPolicies, `{}`).Data); !strings.HasSuffix(got, want) {
		t.Errorf("%s\nwant at the end\n%s", got, want)
	}
}

// TestPolicyPagesFitInAMessage: tiers and times make a policy large. A page ends with the policy with which it has 1000
// limits.
func TestPolicyPagesFitInAMessage(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("policies:\n")
	for p := range 100 { // of 20 limits each
		fmt.Fprintf(&text, "  - {name: p%d, limits: [{name: m, key: %s%d, limit: 1, window: 1m}], tiers: {", p, strings.Repeat("k", 240), p)
		for tier := range 17 {
			fmt.Fprintf(&text, "t%d: {m: {limit: 2}}, ", tier)
		}
		text.WriteString("}, schedule: [{from: \"01:00\", to: \"02:00\", factor: 2}, {from: \"03:00\", to: \"04:00\", factor: 2}]}\n")
	}
	nc := serveOver(t, keeperOf(t, text.String()), sqliteStore(t))
	var pages []int
	for after := ""; len(pages) == 0 || after != ""; {
		var page limits.Policies
		m := ask(t, nc, limits.SubjectPolicies, `{"after":"`+after+`"}`)
		if err := json.Unmarshal(m.Data, &page); err != nil || m.Header != nil {
			t.Fatal(err, m.Header)
		}
		pages, after = append(pages, len(page.Policies)), page.Next
	}
	if !slices.Equal(pages, []int{50, 50}) {
		t.Errorf("pages of %d policies", pages)
	}
}

// TestFirstUseDayIsNotCalledToday, in denials from the store and from memory.
func TestFirstUseDayIsNotCalledToday(t *testing.T) {
	t.Parallel()
	nc := serveOver(t, keeperOf(t, "policies:\n  - name: p\n    message: \"{used} {window}\"\n    limits:\n"+
		"      - {name: h, key: p, limit: 1, window: hour, anchor: first_use}\n"+
		"      - {name: m, key: p, limit: 9, window: month, anchor: first_use}\n"), sqliteStore(t))
	for body, want := range map[string]string{
		`{"key":"a","limit":1,"window":"day","anchor":"first_use"}`: "1 of 1 used in a day; try again in ",
		`{"policy":"p"}`: "1 in an hour",
	} {
		decideOver(t, nc, limits.SubjectConsume, body)
		for range 3 {
			if r := decideOver(t, nc, limits.SubjectConsume, body); r.Allowed || !strings.HasPrefix(r.Message, want) {
				t.Errorf("%s: %q, want %q", body, r.Message, want)
			}
		}
	}
}

// TestIDSurvivesPolicyReload: the same request counts as the same even if its policy has changed.
func TestIDSurvivesPolicyReload(t *testing.T) {
	t.Parallel()
	set := func(limit int) *policy.Keeper {
		return keeperOf(t, fmt.Sprintf("policies:\n  - name: p\n    limits: [{name: l, key: k, limit: %d, window: 1m}]\n", limit))
	}
	d, err := newDecoder(0.1)
	if err != nil {
		t.Fatal(err)
	}
	print := func(k *policy.Keeper, body string) [32]byte {
		d.policies = k
		var r engine.Request
		if err := d.decode(engine.Consume, []byte(body), nil, &r); err != nil {
			t.Fatal(err)
		}
		return r.Fingerprint
	}
	body := `{"policy":"p","id":"x"}`
	if print(set(1), body) != print(set(2), body) {
		t.Error("the id conflicts after a reload")
	}
	if print(set(1), body) == print(set(1), `{"policy":"p","tier":"t","id":"x"}`) {
		t.Error("another tier is the same request")
	}
}

// swappablePolicies are policies that a test replaces while they are used.
type swappablePolicies struct{ atomic.Pointer[policy.Keeper] }

func (c *swappablePolicies) Current() *policy.Set  { return c.Load().Current() }
func (c *swappablePolicies) Report() policy.Report { return c.Load().Report() }

// TestIDIsAnsweredOnceAcrossPolicyChanges, even if the policy has no limit any more, or is gone.
func TestIDIsAnsweredOnceAcrossPolicyChanges(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func(*testing.T) engine.Store{"sqlite": sqliteStore, "postgres": postgresStore} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answersOnce(t, store(t))
		})
	}
}

func answersOnce(t *testing.T, store engine.Store) {
	const (
		one      = `[{name: l, key: "u:{user}", limit: 1, window: 1h}]`
		exempt   = one + `, exempt: [{user: "*"}]`
		otherKey = `[{name: l, key: "u:{user}:{ip}", limit: 1, window: 1h}]`
		body     = `{"policy":"p","attributes":{"user":"7"},"id":%q}`
	)
	named := func(name, limits string) *policy.Keeper {
		return keeperOf(t, "attributes: [user, ip]\npolicies:\n  - {name: "+name+", limits: "+limits+"}\n")
	}
	var policies swappablePolicies
	nc := serveOver(t, &policies, store)
	for i, c := range []struct {
		name string
		file *policy.Keeper
	}{
		{"limits", named("p", one)},
		{"none", named("p", exempt)},
		{"another name", named("q", one)},
		{"another key", named("p", otherKey)},
	} {
		policies.Store(c.file)
		for _, subject := range []string{limits.SubjectConsume, limits.SubjectRecord, limits.SubjectRefund} {
			id := fmt.Sprintf(body, fmt.Sprint(subject, i))
			first := ask(t, nc, subject, id)
			for _, now := range []*policy.Keeper{named("p", one), named("p", exempt), named("gone", one), named("p", otherKey), c.file} {
				policies.Store(now)
				again := ask(t, nc, subject, id)
				if len(first.Header) == 0 && string(again.Data) != string(first.Data) {
					t.Errorf("%s under %s: %s, and then %s", subject, c.name, first.Data, again.Data)
				}
			}
			policies.Store(c.file)
			other := ask(t, nc, subject, strings.Replace(id, `"7"`, `"8"`, 1))
			if code := other.Header.Get(micro.ErrorCodeHeader); len(first.Header) == 0 && code != "409" {
				t.Errorf("%s under %s with another body: %s %s, want 409", subject, c.name, code, other.Data)
			}
			if check := ask(t, nc, limits.SubjectCheck, id); (len(check.Header) == 0) != (len(first.Header) == 0) {
				t.Errorf("a check under %s: %s", c.name, check.Data)
			}
		}
	}
	// A settle finds what had no limits, and has nothing to charge.
	m := ask(t, nc, limits.SubjectSettle, fmt.Sprintf(`{"id":%q,"cost":5}`, limits.SubjectConsume+"1"))
	if !strings.HasPrefix(string(m.Data), `{"allowed":true`) {
		t.Errorf("settle of a consume without limits: %s", m.Data)
	}
}

func TestOverridesMustMatchPolicyFile(t *testing.T) {
	t.Parallel()
	w, nc := oneWorker(t, &fakeEngine{submit: allowing})
	w.svc.cfg.Policies = keeper(t)
	for _, c := range []struct{ body, want string }{
		{`{"policy":"generations","name":"day","subject":"user:7","limit":9,"reason":"r"}`, `{"override":{"policy":"generations"`},
		{`{"policy":"generation","name":"day","subject":"user:7","limit":9,"reason":"r"}`,
			`{"error":{"code":"unknown_policy","field":"policy","message":"unknown policy \"generation\"; the policies are generations, other, trial"}}`},
		{`{"policy":"generations","name":"1d","subject":"user:7","unlimited":true,"reason":"r"}`,
			`{"error":{"code":"unknown_limit","field":"name","message":"unknown limit \"1d\"; policy generations has minute, day"}}`},
		{`{"policy":"trial","name":"1h","subject":"team:*","window":"day","reason":"r"}`, `{"error":{"code":"invalid_algorithm","field":"algorithm",`},
	} {
		if m := ask(t, nc, limits.SubjectOverridesSet, c.body); !strings.HasPrefix(string(m.Data), c.want) {
			t.Errorf("%s\n got %s\nwant %s", c.body, m.Data, c.want)
		}
	}
	// What the file has lost can still be deleted.
	if m := ask(t, nc, limits.SubjectOverridesDelete, `{"policy":"gone","name":"day","subject":"user:7"}`); string(m.Data) != `{"deleted":false}` {
		t.Errorf("delete: %s", m.Data)
	}
}

// TestListedOverridesTellWhichAreUnused: those that would apply if the file had what they are for. Of one that has
// expired this says nothing.
func TestListedOverridesTellWhichAreUnused(t *testing.T) {
	t.Parallel()
	w, nc := oneWorker(t, &fakeEngine{submit: allowing})
	now := time.Now().Add(-time.Hour)
	w.svc.now = func() time.Time { return now }
	const set = `{"policy":%q,"name":"day","subject":"user:7","limit":9,"reason":"r"%s}`
	ends := fmt.Sprintf(`,"expiresAt":%d`, now.UnixMilli()+1)
	for _, body := range []string{fmt.Sprintf(set, "gone", ""), fmt.Sprintf(set, "lost", ends), fmt.Sprintf(set, "generations", "")} {
		if m := ask(t, nc, limits.SubjectOverridesSet, body); len(m.Header) != 0 {
			t.Fatalf("%s: %s", body, m.Data)
		}
	}
	for _, c := range []struct {
		file Policies
		want string
	}{{nil, ""}, {keeper(t), "gone "}} {
		w.svc.cfg.Policies = c.file
		var list limits.OverrideList
		if err := json.Unmarshal(ask(t, nc, limits.SubjectOverridesList, `{}`).Data, &list); err != nil || len(list.Overrides) != 3 {
			t.Fatalf("%+v, %v", list, err)
		}
		unused := ""
		for _, o := range list.Overrides {
			if o.Unused {
				unused += o.Policy + " "
			}
		}
		if unused != c.want {
			t.Errorf("unused: %q, want %q", unused, c.want)
		}
	}
}
