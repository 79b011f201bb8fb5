package policy

import (
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
