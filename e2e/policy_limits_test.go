package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

const everyKind = `
attributes: [user, route, plan]
policies:
  - {name: sliding, limits: [{name: l, key: "{user}", limit: 37, window: 1h}]}
  - {name: fixed, limits: [{name: l, key: "{user}", limit: 37, window: 366d, algorithm: fixed_window}]}
  - {name: calendar, limits: [{name: l, key: "{user}", limit: 37, window: month, timezone: Pacific/Kiritimati}]}
  - {name: first-use, limits: [{name: l, key: "{user}", limit: 37, window: 1h, algorithm: fixed_window, anchor: first_use}]}
  - {name: bucket, limits: [{name: l, key: "{user}", limit: 30, burst: 7, window: 366d, algorithm: token_bucket}]}
  - {name: leased, limits: [{name: l, key: "{user}", limit: 37, window: 366d, consistency: leased}]}
  - name: tiers
    limits:
      - {name: small, key: "{user}", limit: 5, window: 1h}
      - {name: large, key: "{user}", limit: 50, window: 1d}
    tiers: {PRO: {small: {limit: 37}}}

  # Of the first group the first that matches has 37, of the second 60; the others would admit fewer.
  - {name: a1, group: a, match: {route: "gen*"}, limits: [{name: l, key: "{user}", limit: 37, window: 1h}]}
  - {name: a2, group: a, match: {route: "*"}, limits: [{name: l, key: "{user}", limit: 11, window: 1h}]}
  - {name: b1, group: b, match: {plan: none}, limits: [{name: l, key: "{user}", limit: 12, window: 1h}]}
  - {name: b2, group: b, match: {plan: "*"}, limits: [{name: l, key: "{user}", limit: 60, window: 1d}]}
`

// hundred sends one body a hundred times concurrently, and counts the answers.
func hundred(t *testing.T, conns []*nats.Conn, body string) (allowed, denied int) {
	t.Helper()
	begin := make(chan struct{})
	replies := make(chan limits.Reply, 100)
	var done sync.WaitGroup
	for i := range 100 {
		done.Go(func() {
			<-begin
			r, err := try(conns[i%len(conns)], limits.SubjectConsume, body, patience)
			if err != nil || r.Degraded {
				t.Errorf("%s: %+v, %v", body, r, err)
			}
			replies <- r
		})
	}
	close(begin)
	done.Wait()
	close(replies)
	for r := range replies {
		if r.Allowed {
			allowed++
		} else {
			denied++
		}
	}
	return allowed, denied
}

func TestConcurrentRequestsGetExactlyTheLimit(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env []string) {
		env = append(env, "POLICIES="+yamlFile(t, everyKind))
		if strings.Contains(strings.Join(env, " "), "NATS_URL=") {
			env = append(env, "NATS_URL="+natsWithoutLead(t).ClientURL())
			start(t, env...) // a second worker
		}
		url := start(t, env...).nats
		var conns []*nats.Conn
		for range 10 {
			conns = append(conns, connect(t, url))
		}
		for _, body := range []string{
			`{"policy":"sliding","attributes":{"user":"u"}}`,
			`{"policy":"fixed","attributes":{"user":"u"}}`,
			`{"policy":"calendar","attributes":{"user":"u"}}`,
			`{"policy":"first-use","attributes":{"user":"u"}}`,
			`{"policy":"bucket","attributes":{"user":"u"}}`,
			`{"policy":"leased","attributes":{"user":"u"}}`,
			`{"policy":"tiers","attributes":{"user":"u"},"tier":"PRO"}`,
			`{"attributes":{"user":"u","route":"generate","plan":"free"}}`,
		} {
			if allowed, denied := hundred(t, conns, body); allowed != 37 || denied != 63 {
				t.Errorf("%s: %d allowed, %d denied; want 37 and 63", body, allowed, denied)
			}
		}
		// Each policy has a counter of its own for the key. Together they were charged all that was allowed; a request that
		// several policies allowed together was charged to each.
		if got := used(t, conns[0], "u"); got != 37*10 {
			t.Errorf("%d used, want %d", got, 37*10)
		}
	})
}

func TestShadowPolicyAllowsAndReportsDenials(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env []string) {
		w := start(t, append(env, "POLICIES="+yamlFile(t, `
policies:
  - name: trial
    mode: shadow
    match: {team: "*"}
    limits: [{name: small, key: "team:{team}", limit: 3, window: 1h}]
`))...)
		nc := connect(t, w.nats)
		told, err := nc.SubscribeSync(limits.EventExceeded)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			r := decide(t, nc, limits.SubjectConsume, `{"attributes":{"team":"blue","user":"ann"}}`)
			if !r.Allowed || r.Shadow != (i >= 3) || r.Limits[0].Allowed == r.Shadow {
				t.Errorf("request %d: %+v", i, r)
			}
		}
		msg, err := told.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"key":"team:blue"`, `"name":"small"`, `"policy":"trial"`, `"user":"ann"`} {
			if !strings.Contains(string(msg.Data), want) {
				t.Errorf("event %s without %s", msg.Data, want)
			}
		}
		if got := used(t, nc, "team:blue"); got != 3 {
			t.Errorf("%d used, want 3", got)
		}
	})
}

// admittedNear returns how many of six requests under the policy near are allowed.
func admittedNear(t *testing.T, nc *nats.Conn, user string) (n int) {
	t.Helper()
	for range 6 {
		r := decide(t, nc, limits.SubjectConsume, `{"policy":"near","attributes":{"user":"`+user+`"}}`)
		if r.Allowed {
			n++
		} else if r.BlockedBy != "l" || r.Message != "3 of 3 used" {
			t.Errorf("%+v: a limit that is used up", r)
		}
	}
	return n
}

func TestPolicyOnErrorAppliesWithoutTheStore(t *testing.T) {
	t.Parallel()
	db := testenv.PostgresServer(t).Migrated()
	const limit = `message: "{used} of {limit} used", limits: [{name: l, key: "{user}", limit: 3, window: 1h}]`
	w := start(t, "DATABASE_URL="+db.URL, "POLICIES="+yamlFile(t, fmt.Sprintf(`
policies:
  - {name: open, on_error: allow, match: {kind: "*"}, %[1]s}
  - {name: closed, on_error: deny, match: {kind: strict}, %[1]s}
  - {name: near, on_error: local, %[1]s}
  - {name: trial, on_error: deny, mode: shadow, match: {kind: "*"}, %[1]s}
`, limit)))
	nc := connect(t, w.nats)
	ask := func(body string) limits.Reply { return decide(t, nc, limits.SubjectConsume, body) }
	admitted := func(user string) int { return admittedNear(t, nc, user) }
	if n := admitted("before"); n != 3 {
		t.Errorf("%d admitted with the store, want 3", n)
	}
	db.Kill()
	eventually(t, func() error { // until the worker notices
		if r := ask(`{"policy":"open","attributes":{"user":"first"}}`); !r.Degraded {
			return fmt.Errorf("answered without PostgreSQL: %+v", r)
		}
		return nil
	})
	for body, want := range map[string]bool{
		`{"policy":"open","attributes":{"user":"u"}}`:            true,
		`{"policy":"closed","attributes":{"user":"u"}}`:          false,
		`{"attributes":{"user":"u","kind":"usual"}}`:             true,  // a policy in shadow never refuses
		`{"attributes":{"user":"u","kind":"strict"}}`:            false, // the strictest of the policies that match
		`{"key":"inline","limit":1,"window":"1h"}`:               true,
		`{"attributes":{"user":"u","unlike":"any other match"}}`: true,
	} {
		r := ask(body)
		if none := strings.Contains(body, "unlike"); r.Allowed != want || r.Degraded == none {
			t.Errorf("%s: %+v; want allowed %t", body, r, want)
		}
		if !want && (r.BlockedBy != "" || r.Message != "the store is unavailable; try again in 1s") {
			t.Errorf("%s: %+v; want that no limit blocks", body, r)
		}
	}
	if n := admitted("meanwhile"); n != 3 {
		t.Errorf("%d admitted locally, want 3", n)
	}
	db.Start()
	eventually(t, func() error {
		if r := ask(`{"policy":"closed","attributes":{"user":"after"}}`); !r.Allowed || r.Degraded {
			return fmt.Errorf("PostgreSQL is back: %+v", r)
		}
		return nil
	})
	if r := ask(`{"policy":"near","attributes":{"user":"before"}}`); r.Allowed || r.Degraded {
		t.Errorf("what was charged before is forgotten: %+v", r)
	}
}
