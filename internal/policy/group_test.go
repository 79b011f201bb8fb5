package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPolicyWithoutItsKeyLeavesTheGroupToTheNext: a request that lacks an attribute of the first policy's key has the limits
// of the next one that matches.
func TestPolicyWithoutItsKeyLeavesTheGroupToTheNext(t *testing.T) {
	t.Parallel()
	s := parse(t, `policies:
  - {name: known, group: g, match: {route: "*"}, limits: [{name: l, key: "u:{user}", limit: 5, window: 1m}]}
  - {name: anonymous, group: g, match: {route: "*"}, limits: [{name: l, key: "ip:{ip}", limit: 1, window: 1m}]}
`)
	for user, want := range map[string]string{"ann": "known/l u:ann", "": "anonymous/l ip:203.0.113.9"} {
		q := Question{Now: noon, Attributes: map[string]string{"route": "x", "user": user, "ip": "203.0.113.9"}}
		r, err := s.Resolve(q)
		if d := cmp.Diff([]string{want}, names(r.Limits)); err != nil || d != "" {
			t.Errorf("user %q: %v %s", user, err, d)
		}
	}
}

// TestShadowTakesNoRequestFromEnforced policies of its group, which are chosen as if it were not there. It is itself chosen
// as if all were enforced.
func TestShadowTakesNoRequestFromEnforced(t *testing.T) {
	t.Parallel()
	const limits = `limits: [{name: l, key: "k:{user}", limit: 5, window: 1m}]`
	file := func(modes ...string) string {
		text := "policies:\n"
		for i, mode := range modes {
			text += fmt.Sprintf("  - {name: p%d, mode: %s, group: g, match: {route: \"*%s*\"}, %s}\n", i, mode, strings.Repeat("x", len(modes)-i), limits)
		}
		return text
	}
	for _, c := range []struct {
		modes, want []string
	}{
		{[]string{"shadow", "enforce"}, []string{"p0/l k:ann", "p1/l k:ann"}},
		{[]string{"enforce", "shadow"}, []string{"p0/l k:ann"}},
		{[]string{"shadow", "shadow", "enforce"}, []string{"p0/l k:ann", "p2/l k:ann"}},
		{[]string{"shadow", "enforce", "enforce", "shadow"}, []string{"p0/l k:ann", "p1/l k:ann"}},
	} {
		q := Question{Now: noon, Attributes: map[string]string{"route": "xxxx", "user": "ann"}}
		s := parse(t, file(c.modes...))
		r, err := s.Resolve(q)
		if d := cmp.Diff(c.want, names(r.Limits)); err != nil || d != "" {
			t.Errorf("%s: %v %s", c.modes, err, d)
		}
		for i, p := range s.Explain(q).Policies {
			if want := slices.Contains(c.want, fmt.Sprintf("p%d/l k:ann", i)); p.Applies != want {
				t.Errorf("%s: explained %+v", c.modes, p)
			}
		}
	}
	// So an enforced policy can be reached behind one in shadow that matches everything.
	parse(t, `policies:
  - {name: new, mode: shadow, group: g, match: {route: "*"}, limits: [{name: l, key: all, limit: 5, window: 1m}]}
  - {name: old, group: g, match: {route: "*"}, limits: [{name: l, key: all, limit: 3, window: 1m}]}
`)
}

// TestShadowIsNeverLeased, whatever the file says.
func TestShadowIsNeverLeased(t *testing.T) {
	t.Parallel()
	for mode, leased := range map[string]bool{"enforce": true, "shadow": false} {
		s := parse(t, "policies: [{name: p, mode: "+mode+", limits: [{name: l, key: k, limit: 5, window: 1m, consistency: leased}]}]")
		if r, err := s.Resolve(Question{Policy: "p", Now: noon}); err != nil || len(r.Limits) != 1 || r.Limits[0].Leased != leased {
			t.Errorf("mode %s: %+v, %v", mode, r.Limits, err)
		}
	}
}

// TestShadowRefusesNothing that would be decided without it: if there are too many limits with it, or its key cannot be made,
// a policy in shadow is left out, as Explain says.
func TestShadowRefusesNothing(t *testing.T) {
	t.Parallel()
	policies := func(mode, key string, count int) string {
		text := fmt.Sprintf("  - {name: %s%d, mode: %s, match: {route: x}, limits: [", mode, count, mode)
		for i := range count {
			text += fmt.Sprintf("{name: l%d, key: %q, limit: 5, window: 1m},", i, key)
		}
		return text + "]}\n"
	}
	for name, c := range map[string]struct {
		file string
		want int
		left map[string]string
	}{
		"room for all": {policies("shadow", "k", 1) + policies("enforce", "k", 15), 16, nil},
		"too many before": {policies("shadow", "k", 2) + policies("enforce", "k", 15), 15,
			map[string]string{"shadow2": "it is in shadow and left out: the matching policies have more than 16 limits in total"}},
		"too many behind": {policies("enforce", "k", 15) + policies("shadow", "k", 2) + policies("shadow", "k", 1), 16,
			map[string]string{"shadow2": "it is in shadow and left out: the matching policies have more than 16 limits in total"}},
		"no key": {policies("enforce", "k", 1) + policies("shadow", "{ip}", 1), 1,
			map[string]string{"shadow1": "it is in shadow and left out: attribute ip is not an IP address; want one such as 203.0.113.9 or 2001:db8::1, or a /64 " +
				"(policy shadow1, limit l0)"}},
	} {
		s := parse(t, "policies:\n"+c.file)
		q := Question{Now: noon, Attributes: map[string]string{"route": "x", "ip": "nonsense"}}
		r, err := s.Resolve(q)
		if err != nil || len(r.Limits) != c.want {
			t.Errorf("%s: %d limits, %v", name, len(r.Limits), err)
		}
		e := s.Explain(q)
		for _, p := range e.Policies {
			if why := c.left[p.Policy]; p.Applies != (why == "") || why != "" && p.Why != why {
				t.Errorf("%s: %s: %q; want %q", name, p.Policy, p.Why, why)
			}
		}
		if e.Error != "" {
			t.Errorf("%s: explained with the error %q", name, e.Error)
		}
	}
}
