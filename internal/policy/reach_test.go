package policy

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// group returns a file of policies in one group.
func group(policies ...string) string {
	var b strings.Builder
	b.WriteString("policies:\n")
	for i, p := range policies {
		fmt.Fprintf(&b, "  - {name: p%d, group: g, %s}\n", i, p)
	}
	return b.String()
}

// keyed returns the limits of a policy with the given keys.
func keyed(keys ...string) string {
	var all []string
	for i, key := range keys {
		all = append(all, fmt.Sprintf("{name: l%d, key: %q, limit: 1, window: 1m}", i, key))
	}
	return "limits: [" + strings.Join(all, ", ") + "]"
}

// TestUnreachablePoliciesAreReported: exactly the policies that never apply are reported.
func TestUnreachablePoliciesAreReported(t *testing.T) {
	t.Parallel()
	user, anonymous := `match: {user: "*"}, `+keyed("u:{user}"), `match: {user: "*"}, `+keyed("anonymous")
	for name, c := range map[string]struct {
		policies []string
		never    bool // the last one
	}{
		"the key needs what may be empty":               {[]string{user, anonymous}, false},
		"of other patterns too":                         {[]string{user, `match: {user: ["**", bob]}, ` + keyed("anonymous")}, false},
		"and another limit does not":                    {[]string{`match: {user: "*"}, ` + keyed("all", "u:{user}"), anonymous}, false},
		"both keys need it":                             {[]string{user, user}, true},
		"the later key needs it":                        {[]string{anonymous, user}, true},
		"no key needs it":                               {[]string{anonymous, anonymous}, true},
		"no pattern fits the empty text":                {[]string{user, `match: {user: ["b*", bob]}, ` + keyed("anonymous")}, true},
		"one pattern fits it":                           {[]string{user, `match: {user: ["b*", "*"]}, ` + keyed("anonymous")}, false},
		"in a tier the later key does not":              {[]string{user, `match: {user: "*"}, limits: [{name: l, key: "u:{user}", limit: 1, window: 1m}], tiers: {t: {l: {limit: unlimited}}}`}, false},
		"an attribute that only the key has":            {[]string{`match: {ip: "*"}, ` + keyed("{ip}"), `match: {user: bob}, ` + keyed("{ip}")}, true},
		"the address in its short form is another text": {[]string{`match: {ip: "2001:db8:0:*"}, ` + keyed("k"), `match: {ip: "2001:db8:0::1"}, ` + keyed("k")}, false},
		"the address in its short form fits too":        {[]string{`match: {ip: "2001:db8:*"}, ` + keyed("k"), `match: {ip: "2001:db8:0::1"}, ` + keyed("k")}, true},
		"a network in another":                          {[]string{`match: {ip: 10.0.0.0/8}, ` + keyed("{ip}"), `match: {ip: [10.1.0.0/16, "::ffff:10.2.0.1"]}, ` + keyed("{ip}")}, true},
		"what is a network of ip alone":                 {[]string{`match: {net: 10.0.0.0/8}, ` + keyed("k"), `match: {net: 10.0.0.0/8}, ` + keyed("k")}, true},
		"a wider network":                               {[]string{`match: {ip: 10.0.0.0/16}, ` + keyed("{ip}"), `match: {ip: 10.0.0.0/8}, ` + keyed("{ip}")}, false},
		"the same network":                              {[]string{`match: {ip: 10.0.0.0/8}, ` + keyed("{ip}"), `match: {ip: [10.0.0.0/8]}, ` + keyed("{ip}")}, true},
		"a network that is only a text":                 {[]string{`match: {ip: "10.0.0.0/*"}, ` + keyed("{ip}"), `match: {ip: 10.0.0.0/8}, ` + keyed("{ip}")}, false},
		"what an exempt request lacks":                  {[]string{`match: {user: "*"}, ` + keyed("{ip}"), `match: {user: "*"}, exempt: {user: bob}, ` + keyed("{ip}")}, false},
		"what an exempt request has by its match":       {[]string{user, `match: {user: "b*"}, exempt: {user: bob}, ` + keyed("anonymous")}, true},
	} {
		_, err := Parse("f", []byte(group(c.policies...)), options)
		if never := err != nil && strings.Contains(err.Error(), "never applies"); never != c.never || !never && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSatisfiableExemptionIsAccepted, however overlapping patterns are written.
func TestSatisfiableExemptionIsAccepted(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{{"key", `"k*"`}, {`"k*"`, "key"}, {`"k*"`, `"*y"`}, {"key", "[jwt, key]"}, {"[jwt, key]", `"k*"`}} {
		text := fmt.Sprintf("policies: [{name: p, match: {auth: %s}, exempt: {auth: %s, user: bob}, %s}]", c[0], c[1], keyed("k"))
		if _, err := Parse("f", []byte(text), options); err != nil {
			t.Error(err)
		}
	}
}

// TestFaultyPolicyIsNotReportedUnreachable, since that may be a consequence of the mistake.
func TestFaultyPolicyIsNotReportedUnreachable(t *testing.T) {
	t.Parallel()
	user := `match: {user: "*"}, ` + keyed("u:{user}")
	_, err := Parse("f", []byte(group(user, user+`, warning: 2`)), options)
	if err == nil || !strings.Contains(err.Error(), "2 is out of range") || strings.Contains(err.Error(), "never applies") {
		t.Error(err)
	}
}

// TestReportedPoliciesAreUnreachable: no request reaches a policy that is reported as unreachable.
func TestReportedPoliciesAreUnreachable(t *testing.T) {
	t.Parallel()
	attributes := []string{"user", "ip", "route"}
	words := []string{`"*"`, `"a*"`, "a", "ab"}
	patterns := map[string][]string{"user": words, "route": words, "ip": {`"*"`, `"10.*"`, `"10.0.0.0/*"`, "10.0.0.0/8", "10.1.0.0/16", "10.1.0.1"}}
	someWords := []string{"", "a", "ab", "b"}
	values := map[string][]string{"user": someWords, "route": someWords, "ip": {"", "10.0.0.1", "10.1.0.1", "11.0.0.1"}}
	var requests []map[string]string
	for _, a := range attributes {
		for _, r := range append(requests, map[string]string{}) {
			for _, v := range values[a] {
				with := maps.Clone(r)
				with[a] = v
				requests = append(requests, with)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		condition := func(least int) string {
			var all []string
			for _, a := range rapid.SliceOfNDistinct(rapid.SampledFrom(attributes), least, 2, rapid.ID).Draw(t, "attributes") {
				all = append(all, a+": ["+strings.Join(rapid.SliceOfNDistinct(rapid.SampledFrom(patterns[a]), 1, 2, rapid.ID).Draw(t, "patterns"), ", ")+"]")
			}
			return "{" + strings.Join(all, ", ") + "}"
		}
		draw := func() string {
			p := "match: " + condition(1)
			if rapid.IntRange(0, 3).Draw(t, "exempt") == 0 {
				p += ", exempt: " + condition(1)
			}
			var keys []string
			for range rapid.IntRange(1, 2).Draw(t, "limits") {
				keys = append(keys, rapid.SampledFrom([]string{"k", "{user}", "{route}", "{user}:{route}"}).Draw(t, "key"))
			}
			p += ", " + keyed(keys...)
			if rapid.Bool().Draw(t, "tier") {
				p += ", tiers: {t: {l0: {limit: unlimited}}}"
			}
			return p
		}
		text := group(draw(), draw())
		_, err := Parse("f", []byte(text), options)
		if err == nil || !strings.Contains(err.Error(), "policies[1]: never applies") {
			return
		}
		// Without the group the file is valid, so that it can be compiled and resolved.
		s, err := Parse("f", []byte(strings.ReplaceAll(text, "group: g, ", "")), options)
		if err != nil {
			return
		}
		for _, attributes := range requests {
			for _, tier := range []string{"", "t"} {
				r := resolver{Question: &Question{Tier: tier, Attributes: attributes, Now: noon}, set: s}
				takes := func(p *policy) bool { v := r.judge(p); return v == applies || v == exempted }
				if takes(s.policies[1]) && !takes(s.policies[0]) {
					t.Fatalf("%s\nthe second takes %v in tier %q", text, attributes, tier)
				}
			}
		}
	})
}
