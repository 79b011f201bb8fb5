package main

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestNamesThatNobodyKnowsAreNoted: a mistyped one would look like a quiet time.
func TestNamesThatNobodyKnowsAreNoted(t *testing.T) {
	t.Parallel()
	s := serve(t, "--policies", written(t, "limits.yaml", policyFile))
	for _, c := range []struct{ verb, out, note string }{
		{"alerts dead --channel pager", "no dead letters\n", "note: unknown channel \"pager\"; they are nats, log\n"},
		{"alerts list --policy caht", "no alerts\n", "note: unknown policy \"caht\"; they are chat, mail\n"},
		{"alerts list --policy chat --user 7 --rule none", "no alerts\n", ""},
		{"alerts list", "no alerts\n", ""},
		{"alerts dead --channel log", "no dead letters\n", ""},
		{"alerts silence --policy caht --for 1h --reason r", "silence ", "note: unknown policy \"caht\"; they are chat, mail\n"},
		{"alerts silence --policy chat --for 1h --reason r", "silence ", ""},
		{"alerts silence --policy ch* --for 1h --reason r", "silence ", ""},
		{"top --policy caht", "nothing denied", "note: unknown policy \"caht\"; they are chat, mail\n"},
		{"top --policy mail", "nothing denied", ""},
		{"overrides list --policy caht", "no overrides\n", "note: unknown policy \"caht\"; they are chat, mail\n"},
		{"overrides list --policy caht --json", `"overrides":[]`, ""},
		{"overrides list --policy chat", "no overrides\n", ""},
	} {
		i := s.limiter(t, c.verb)
		if i.want(t, exitDone, c.out, c.note); i.err.String() != c.note {
			t.Errorf("%s: it notes %q, want %q", c.verb, i.err.String(), c.note)
		}
	}
}

// TestNamesAreNotedAsFarAsTheyAreKnown: rules only by their alerts, and of many names the first.
func TestNamesAreNotedAsFarAsTheyAreKnown(t *testing.T) {
	t.Parallel()
	var alerts, policies string
	url := testenv.NATS(t).ClientURL()
	respondAt(t, url, limits.SubjectAlertsList, func(request string) *nats.Msg {
		if strings.Contains(request, `"max":50`) { // what the verb lists
			return text(`{"alerts":[]}`)("")
		}
		return text(alerts)("")
	})
	respondAt(t, url, limits.SubjectPolicies, func(request string) *nats.Msg {
		if strings.Contains(request, `"after":"q"`) {
			return text(`{"policies":[{"name":"last"}` + strings.Repeat(`,{"name":"r"}`, 9) + `]}`)("")
		}
		return text(policies)("")
	})
	const some = `{"alerts":[{"rule":"logins"},{"rule":"de\nnials"},{"rule":"logins"}]}`
	many := `{"policies":[{"name":"p"}` + strings.Repeat(`,{"name":"q"}`, 15) + `],"next":"q"}`
	for _, c := range []struct{ alerts, policies, flags, note string }{
		{some, many, "--rule login", "note: none of the last alerts is of a rule \"login\"; they are of de\uFFFDnials, logins\n"},
		{some, many, "--rule logins", ""},
		{`{"alerts":[]}`, many, "--rule login", ""},
		{some, many, "--policy none", "note: unknown policy \"none\"; they are p" + strings.Repeat(", q", 15) + ", last, r, r, r and 6 more\n"},
		{some, many, "--policy last", ""},
		{some, `{"policies":[]}`, "--policy none", "note: unknown policy \"none\"; there is none\n"},
		{some, `{"error":{"code":"unavailable"}}`, "--policy none", ""},
	} {
		alerts, policies = c.alerts, c.policies
		i := limiter(t, append(strings.Fields("alerts list "+c.flags), "--nats-url", url)...)
		if i.want(t, exitDone, "no alerts\n", c.note); i.err.String() != c.note {
			t.Errorf("%s: it notes %q, want %q", c.flags, i.err.String(), c.note)
		}
	}
}
