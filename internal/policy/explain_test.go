package policy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	e := full(t).Explain(Question{Tier: "PRO", Now: noon, Attributes: map[string]string{"user": "7", "endpoint": "/bulk-enrich", "route": "chat-x"}})
	var got []string
	for _, p := range e.Policies {
		got = append(got, p.Policy+": "+p.Why)
	}
	want := []string{"chat: it matches", "enrichment: it matches", "api: an earlier policy of group quota took the request",
		"open: it has no match, so it applies only to requests that name it", `trial: route "chat-x" matches none of chat`}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	limits := []ExplainedLimit{{Name: "minute", Key: "gen:7", Limit: 20, Window: "minute", Algorithm: "fixed_window"},
		{Name: "day", Key: "gen:7", Limit: 500, Window: "day", Algorithm: "fixed_window"}}
	if d := cmp.Diff(limits, e.Policies[0].Limits); d != "" || e.Policies[0].Tier != "PRO" || e.Policies[4].Mode != "shadow" {
		t.Error(d, e.Policies[0].Tier, e.Policies[4].Mode)
	}
	if e := full(t).Explain(Question{Policy: "chat", Tier: "GOLD", Now: noon, Attributes: map[string]string{"user": "7"}}); e.Policies[0].Tier != "" {
		t.Errorf("the policy is shown with tier %s, which it does not have", e.Policies[0].Tier)
	}
	if e := full(t).Explain(Question{Policy: "cha"}); e.Error != `unknown policy "cha"; the policies are chat, enrichment, api, open, trial` {
		t.Error(e.Error)
	}
	for _, c := range []struct{ policy, user, want string }{
		{"", "7", "trial: the request has no attribute route"},
		{"trial", "7", "trial: attribute route is missing or empty; the key of limit burst needs it"},
		{"chat", "7", "chat: the request names it"},
	} {
		e := full(t).Explain(Question{Policy: c.policy, Now: noon, Attributes: map[string]string{"user": c.user}})
		last := e.Policies[len(e.Policies)-1]
		if got := last.Policy + ": " + last.Why; got != c.want {
			t.Errorf("asked for %q: %q, want %q", c.policy, got, c.want)
		}
	}
}

// TestExplainShowsWholeLimit: of the defaults it shows only the algorithm.
func TestExplainShowsWholeLimit(t *testing.T) {
	t.Parallel()
	s := parse(t, `policies: [{name: p, limits: [
  {name: bucket, key: k, limit: 10, window: 1m, algorithm: token_bucket, burst: 5, consistency: leased},
  {name: first, key: k, limit: 10, window: day, timezone: Europe/Berlin, anchor: first_use},
  {name: plain, key: k, limit: 10, window: day, timezone: UTC, anchor: aligned, consistency: exact}]}]`)
	want := []ExplainedLimit{
		{Name: "bucket", Key: "k", Limit: 10, Window: "1m", Algorithm: "token_bucket", Burst: 5, Consistency: "leased"},
		{Name: "first", Key: "k", Limit: 10, Window: "day", Algorithm: "fixed_window", Timezone: "Europe/Berlin", Anchor: "first_use"},
		{Name: "plain", Key: "k", Limit: 10, Window: "day", Algorithm: "fixed_window"},
	}
	if d := cmp.Diff(want, s.Explain(Question{Policy: "p", Now: noon}).Policies[0].Limits); d != "" {
		t.Error(d)
	}
}

// TestExplainShowsErrorOfKey: a limit whose key is in error is not shown as unlimited.
func TestExplainShowsErrorOfKey(t *testing.T) {
	t.Parallel()
	s := parse(t, "policies: [{name: p, limits: [{name: all, key: all, limit: 9, window: 1m}, {name: ip, key: \"ip:{ip}\", limit: 5, window: 1m}]}]")
	e := s.Explain(Question{Policy: "p", Attributes: map[string]string{"ip": "bad"}, Now: noon})
	limits := []ExplainedLimit{{Name: "all", Key: "all", Limit: 9, Window: "1m", Algorithm: "sliding_window"}, {Name: "ip", Error: e.Error}}
	if d := cmp.Diff(limits, e.Policies[0].Limits); d != "" || e.Error == "" {
		t.Error(d, e.Error)
	}
}
