package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const policyFile = `policies:
  - name: chat
    match: {user: "*", route: chat}
    limits:
      - {name: minute, key: "chat:{user}", limit: 5, window: minute}
    tiers:
      pro: {minute: {limit: 20}}
    schedule:
      - {from: "22:00", to: "06:00", factor: 2}
  - name: mail
    mode: shadow
    limits:
      - {key: "mail:{email|lower|hash}", limit: 3, window: 1h}
`

func policies(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPoliciesValidate(t *testing.T) {
	t.Parallel()
	file := policies(t, policyFile)
	limiter(t, "policies", "validate", file).want(t, exitDone, ": valid: 2 policies, 2 limits, hash ", "")
	bad := policies(t, strings.ReplaceAll(strings.Replace(policyFile, "window: 1h", "window: 1x", 1), "mode: ", "mod: "))
	i := limiter(t, "policies", "validate", bad)
	i.want(t, exitError, "", bad+`:11: policies[1].mod: unknown field "mod"`)
	i.want(t, exitError, "", bad+`:13: policies[1].limits[0].window: unknown window "1x"`)
	i.want(t, exitError, "", "2 mistakes")
	limiter(t, "policies", "validate", filepath.Join(t.TempDir(), "none")).want(t, exitError, "", "no such file")
}

func TestPoliciesShow(t *testing.T) {
	t.Parallel()
	file := policies(t, policyFile)
	want := `POLICY  TIER  LIMIT   KEY                      RATE       APPLIES
chat    -     minute  chat:{user}              5/minute   route=chat user=*
chat    pro   minute  chat:{user}              20/minute  route=chat user=*
mail    -     1h      mail:{email|lower|hash}  3/1h       when named (shadow)
`
	if d := cmp.Diff(want, limiter(t, "policies", "show", file).out.String()); d != "" {
		t.Error(d)
	}
	limiter(t, "policies", "show", file, "mail", "--json").want(t, exitDone, `"key": "mail:{email|lower|hash}"`, "")
	limiter(t, "policies", "show", file, "none").want(t, exitError, "", `has no policy "none"`)
}

func TestPoliciesExplain(t *testing.T) {
	t.Parallel()
	file := policies(t, policyFile)
	want := `chat: yes: it matches; tier pro; schedule 22:00–06:00
  minute  40/minute  fixed_window  chat:7
mail: no: it has no match, so it applies only when it is named
`
	i := limiter(t, "policies", "explain", file, "-a", "user=7", "-a", "route=chat", "--tier", "pro", "--at", "2026-03-01T22:30:00Z")
	if d := cmp.Diff(want, i.out.String()); d != "" || i.status != exitDone {
		t.Error(d, i.err.String())
	}
	key := "0123456789abcdef"
	i = limiter(t, "policies", "explain", file, "--policy", "mail", "-a", "email=A@b.example", "--hash-key", key)
	i.want(t, exitDone, "mail:e9926fca69a8040d2588355b026831ba", "")
	limiter(t, "policies", "explain", file, "--policy", "mail").want(t, exitError, "mail: no: the request has no attribute email", "the request is refused")
	limiter(t, "policies", "explain", file, "--policy", "none").want(t, exitError, "", "there is no policy of that name")
	limiter(t, "policies", "explain", file, "--at", "noon").want(t, exitUsage, "", "--at")
	limiter(t, "policies", "explain", file, "-a", "user=7", "--json").want(t, exitDone, `"why": "the request has no attribute route"`, "")
}
