package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed503877ad/limits"
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

// written writes a file into a new folder.
func written(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPoliciesValidate(t *testing.T) {
	t.Parallel()
	file := written(t, "limits.yaml", policyFile)
	limiter(t, "policies", "validate", file).want(t, exitDone, ": valid: 2 policies, 2 limits, hash ", "")
	bad := written(t, "limits.yaml", strings.ReplaceAll(strings.Replace(policyFile, "window: 1h", "window: 1x", 1), "mode: ", "mod: "))
	i := limiter(t, "policies", "validate", bad)
	i.want(t, exitError, "", bad+`:11: policies[1].mod: unknown field "mod"`)
	i.want(t, exitError, "", bad+`:13: policies[1].limits[0].window: invalid window "1x"`)
	i.want(t, exitError, "", "2 mistakes")
	for n, want := range map[int]string{100: "limits.yaml: 100 mistakes\n", 200: "limits.yaml:100: there are more mistakes; fix these first\n" +
		"limiter: %s: more than 100 mistakes\n"} {
		var wrong strings.Builder
		for i := range n {
			fmt.Fprintf(&wrong, "x%d: 1\n", i)
		}
		bad := written(t, "limits.yaml", wrong.String())
		limiter(t, "policies", "validate", bad).want(t, exitError, "", strings.ReplaceAll(want, "%s", bad))
	}
	limiter(t, "policies", "validate", filepath.Join(t.TempDir(), "none")).want(t, exitError, "", "no such file")
}

func TestPoliciesShow(t *testing.T) {
	t.Parallel()
	file := written(t, "limits.yaml", policyFile)
	want := `POLICY  TIER  LIMIT   KEY                      RATE       APPLIES
chat    -     minute  chat:{user}              5/minute   route=chat user=*
chat    pro   minute  chat:{user}              20/minute  route=chat user=*
chat    *     *       *                        ×2         22:00 to 06:00
mail    -     1h      mail:{email|lower|hash}  3/1h       when named (shadow)
`
	if d := cmp.Diff(want, limiter(t, "policies", "show", file).out.String()); d != "" {
		t.Error(d)
	}
	all := written(t, "limits.yaml", `policies:
  - name: p
    match: {user: "*"}
    exempt: [{auth: session}, {ip: ["10.*", "::1"], route: ping}]
    limits:
      - {name: m, key: k, limit: 10, window: 1m, algorithm: token_bucket, burst: 5, consistency: leased}
      - {name: d, key: k, limit: 50, window: day, timezone: Europe/Berlin, anchor: first_use}
      - {name: plain, key: k, limit: 9, window: 1h, algorithm: sliding_window, consistency: exact}
    tiers: {PRO: {m: {burst: 50}, d: {limit: unlimited}}}
    schedule:
      - {from: "22:00", to: "06:00", days: [sat, sun], timezone: Europe/Berlin, factor: 0.5, limits: {m: {limit: 8}}}
`)
	want = `POLICY  TIER  LIMIT  KEY  RATE                            APPLIES
p       -     m      k    10/1m +5 token_bucket leased    user=* unless auth=session or ip=10.*|::1 route=ping
p       -     d      k    50/day Europe/Berlin first_use  user=* unless auth=session or ip=10.*|::1 route=ping
p       -     plain  k    9/1h                            user=* unless auth=session or ip=10.*|::1 route=ping
p       PRO   m      k    10/1m +50 token_bucket leased   user=* unless auth=session or ip=10.*|::1 route=ping
p       PRO   d      k    unlimited                       user=* unless auth=session or ip=10.*|::1 route=ping
p       -     m      k    8/1m +5 token_bucket leased     22:00 to 06:00 sat sun Europe/Berlin
p       *     *      *    ×0.5                            22:00 to 06:00 sat sun Europe/Berlin
`
	if d := cmp.Diff(want, limiter(t, "policies", "show", all).out.String()); d != "" {
		t.Error(d)
	}
	limiter(t, "policies", "show", file, "mail", "--json").want(t, exitDone, `"key": "mail:{email|lower|hash}"`, "")
	limiter(t, "policies", "show", file, "none").want(t, exitError, "", `has no policy "none"`)
}

func TestPoliciesExplain(t *testing.T) {
	t.Parallel()
	file := written(t, "limits.yaml", policyFile)
	want := `chat: yes: it matches; tier pro; schedule 22:00–06:00
  minute  40/minute  fixed_window  chat:7
mail: no: it has no match, so it applies only to requests that name it
`
	i := limiter(t, "policies", "explain", file, "-a", "user=7", "-a", "route=chat", "--tier", "pro", "--at", "2026-03-01T22:30:00Z")
	if d := cmp.Diff(want, i.out.String()); d != "" || i.status != exitDone {
		t.Error(d, i.err.String())
	}
	key := "0123456789abcdef"
	i = limiter(t, "policies", "explain", file, "--policy", "mail", "-a", "email=A@b.example", "--hash-key", key)
	i.want(t, exitDone, "mail:e9926fca69a8040d2588355b026831ba", "")
	limiter(t, "policies", "explain", file, "--policy", "mail", "-a", "email=A@b.example").want(t, exitDone, "mail: yes", "pass its --hash-key")
	limiter(t, "policies", "explain", file, "--policy", "mail").want(t, exitError, "mail: no: attribute email is missing or empty", "the request is refused")
	limiter(t, "policies", "explain", file, "--policy", "none").want(t, exitError, "", "unknown policy \"none\"; the policies are ")
	limiter(t, "policies", "explain", file, "--tier", "PRO", "-a", "user=7", "-a", "route=chat").want(t, exitDone, "chat: yes: it matches",
		"note: chat has no tier \"PRO\" (it has pro), so its limits without a tier apply\n")
	limiter(t, "policies", "explain", file, "--tier", "x", "--policy", "mail", "-a", "email=a", "--hash-key", key).want(t, exitDone, "mail: yes", "")
	limiter(t, "policies", "explain", file, "--hash-key", key[1:]).want(t, exitUsage, "", "--hash-key: 15 bytes is too short; want 16 or more")
	limiter(t, "policies", "explain", file, "--at", "noon").want(t, exitUsage, "", `--at: "noon" is not a time; want one such as 2027-01-31`)
	limiter(t, "policies", "explain", file, "--policy", "mail", "-a", "email=a", "--hash-key", key, "--at", "2026-03-01").want(t, exitDone, "mail: yes", "")
	limiter(t, "policies", "explain", file, "-a", "user=7", "--json").want(t, exitDone, `"why": "the request has no attribute route"`, "")
}

// TestExamplesOfPoliciesExplain runs the examples of --help on the file of docs/policies.md, except the one that needs a service.
func TestExamplesOfPoliciesExplain(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(doc), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	file, ran := written(t, "limits.yaml", text), 0
	for line := range strings.Lines((*policiesExplainCmd)(nil).Help()) {
		if args := strings.Fields(line); len(args) > 3 && args[0] == "limiter" && !slices.Contains(args, "--overrides") {
			args[3] = file
			if i := limiter(t, args[1:]...); i.status != exitDone {
				t.Errorf("%s: %s", line, i.err.String())
			}
			ran++
		}
	}
	if ran != 2 {
		t.Errorf("%d examples, want 2", ran)
	}
	limiter(t, "policies", "explain", file, "--policy", "signup", "-a", "ip=bad", "-a", "email=a@b.example").want(t, exitError,
		"\n  ip  refused: attribute ip ", "the request is refused: attribute ip ")
}

// TestQuotaFromOverridesOnly: an unlimited limit has a key that can be overridden, and without an override there is no limit.
func TestQuotaFromOverridesOnly(t *testing.T) {
	t.Parallel()
	file := written(t, "limits.yaml", "policies:\n  - name: quota\n    match: {user: \"*\"}\n"+
		"    limits: [{key: \"q:{user}\", limit: unlimited, window: 30d}]\n")
	limiter(t, "policies", "validate", file).want(t, exitDone, ": valid: 1 policy, 1 limit, hash ", "")
	limiter(t, "policies", "show", file).want(t, exitDone, "quota   -     30d    q:{user}  unlimited  user=*\n", "")
	explain := "policies explain " + file + " -a user="
	s := serve(t, "--policies", file)
	s.limiter(t, "overrides set quota 30d q:7 --limit 2 --reason r").want(t, exitDone, "limit 2, until it is deleted", "")
	s.limiter(t, "consume -a user=7 --cost 2").want(t, exitDone, "q:7  30d   2/30d  0 ", "")
	s.limiter(t, "consume -a user=7").want(t, exitDenied, "denied: 2 of 2 used in 30d", "")
	s.limiter(t, "consume -a user=8 --cost 1000").want(t, exitDone, "allowed: no limit applies\n", "")
	s.limiter(t, explain+"7").want(t, exitDone, "  30d  unlimited  q:7\n", "")
	s.limiter(t, explain+"7 --overrides").want(t, exitDone, "  30d  2/30d  sliding_window  q:7  (override for q:7: r)\n", "")
	s.limiter(t, explain+"8 --overrides").want(t, exitDone, "  30d  unlimited  q:8\n", "")
}

// TestServicePolicies sends requests that name no limit to the real service.
func TestServicePolicies(t *testing.T) {
	t.Parallel()
	file := written(t, "limits.yaml", strings.Replace(policyFile[:strings.Index(policyFile, "    schedule:")], "window: minute", "window: 60m", 1))
	s := serve(t, "--policies", file)
	const ask = " -a user=7 -a route=chat"
	s.limiter(t, "consume --cost 5"+ask).want(t, exitDone, "chat:7  minute  5/60m  0 ", "")
	s.limiter(t, "check"+ask).want(t, exitDenied, "denied: 5 of 5 used in 60m", "")
	s.limiter(t, "check --tier pro"+ask).want(t, exitDone, "20/60m  15 ", "")
	s.limiter(t, "refund --policy chat -a user=7").want(t, exitDone, "5/60m  1 ", "")
	s.limiter(t, "record --policy chat -a user=7 --cost 3").want(t, exitDenied, "past the limit: 7 of 5 used in 60m\n", "")
	s.limiter(t, "consume -a user=7 -a route=mail").want(t, exitDone, "allowed: no limit applies\n", "")
	s.limiter(t, "consume --policy nope").want(t, exitError, "", `unknown policy "nope"; limits.admin.policies lists them (404 unknown_policy);`+
		" see limiter policies show FILE, or: nats request limits.admin.policies '{}'\n")
	s.limiter(t, "consume --policy chat -a route=chat").want(t, exitUsage, "", "400 invalid_attributes")

	s.limiter(t, "consume --cost 5 --id estimate --policy chat -a user=9").want(t, exitDone, "5/60m  0 ", "")
	s.limiter(t, "settle estimate --cost 2").want(t, exitDone, "chat:9  minute  5/60m  3 ", "")
	s.limiter(t, "reset chat:9").want(t, exitDone, "reset 1 counter\n", "")

	// A counter is shown by the name of its limit, not by its stored name.
	s.limiter(t, "consume --policy chat -a user=8")
	s.limiter(t, "show chat:8").want(t, exitDone, "\nminute  5/60m  1     4 ", "")
	s.limiter(t, "list --max 1").want(t, exitDone, `more: --after=$'chat:7\nchat\x1fminute'`+"\n", "")
	limiter(t, "list", "--after", "chat:7\nchat\x1fminute", "--nats-url", s.nats).want(t, exitDone, "\nchat:8  minute  5/60m", "")
	s.limiter(t, "reset --prefix chat: --yes").want(t, exitDone, "reset 2 counters\n", "")

	const set = "overrides set chat minute chat:7 --reason r "
	s.limiter(t, set+"--burst 5").want(t, exitUsage, "", "burst needs algorithm token_bucket")
	s.limiter(t, strings.Replace(set, "minute", "day", 1)+"--limit 9").want(t, exitError, "", "policy chat has minute (404 unknown_limit)")
	s.limiter(t, strings.Replace(set, "chat", "char", 1)+"--limit 9").want(t, exitError, "", "the policies are chat (404 unknown_policy)")
	s.limiter(t, set+"--limit 9").want(t, exitDone, "limit 9, until it is deleted", "")
	s.limiter(t, "consume --cost 9"+ask).want(t, exitDone, "9/60m  0 ", "")

	explain := "policies explain " + file + ask
	s.limiter(t, explain).want(t, exitDone, "  minute  5/60m  sliding_window  chat:7\n", "")
	s.limiter(t, explain+" --overrides").want(t, exitDone, "  minute  9/60m  sliding_window  chat:7  (override for chat:7: r)\n", "")
}

// TestExplainRefusesWhatTheServiceRefuses, with the same words.
func TestExplainRefusesWhatTheServiceRefuses(t *testing.T) {
	t.Parallel()
	file := written(t, "limits.yaml", policyFile)
	s := serve(t, "--policies", file)
	many := []string{"-a", "user=7", "-a", "route=chat"}
	for n := range limits.MaxAttributes - 2 {
		many = append(many, "-a", fmt.Sprintf("a%d=x", n))
	}
	for _, c := range []struct {
		about string
		args  []string
		taken bool
	}{
		{"a value of 256 bytes", []string{"-a", "user=" + strings.Repeat("x", limits.MaxAttributeBytes)}, true},
		{"a longer value", []string{"-a", "user=" + strings.Repeat("x", limits.MaxAttributeBytes+1)}, false},
		{"a value that is not printable", []string{"-a", "user=a\tb"}, false},
		{"a name of 64 bytes", []string{"-a", strings.Repeat("x", limits.MaxNameBytes) + "=7"}, true},
		{"a longer name", []string{"-a", strings.Repeat("x", limits.MaxNameBytes+1) + "=7"}, false},
		{"a name that is not printable", []string{"-a", "a\u200bb=7"}, false},
		{"32 attributes", many, true},
		{"33 attributes", append(many[:len(many):len(many)], "-a", "one=more"), false},
		{"a tier of 64 bytes", []string{"-a", "user=7", "--tier", strings.Repeat("x", limits.MaxNameBytes)}, true},
		{"a longer tier", []string{"-a", "user=7", "--tier", strings.Repeat("x", limits.MaxNameBytes+1)}, false},
		{"a tier that is not printable", []string{"-a", "user=7", "--tier", "pro\u00a0"}, false},
		{"a longer policy", []string{"--policy", strings.Repeat("x", limits.MaxNameBytes+1)}, false},
	} {
		explained := limiter(t, append([]string{"policies", "explain", file}, c.args...)...)
		asked := limiter(t, append([]string{"check", "--nats-url", s.nats}, c.args...)...)
		if c.taken {
			if explained.status != exitDone || asked.status != exitDone {
				t.Errorf("%s: explain says %s, the service %s", c.about, explained.err.String(), asked.err.String())
			}
			continue
		}
		said, _, refused := strings.Cut(strings.TrimPrefix(asked.err.String(), "limiter: "), " (400 invalid_")
		if want := "limiter: the request is refused: " + said + "\n"; !refused || !strings.HasSuffix(explained.err.String(), want) || explained.status != exitError {
			t.Errorf("%s: explain says %s, the service %s", c.about, explained.err.String(), asked.err.String())
		}
	}
}

// TestBurstOverrideIsShown in the output of explain.
func TestBurstOverrideIsShown(t *testing.T) {
	t.Parallel()
	file := written(t, "limits.yaml", `policies: [{name: p, limits: [{name: m, key: "k:{user}", limit: 10, window: 1m, algorithm: token_bucket, burst: 5}]}]`)
	s := serve(t, "--policies", file)
	s.limiter(t, "overrides set p m k:7 --burst 50 --reason r").want(t, exitDone, "burst 50", "")
	explain := "policies explain " + file + " --policy p -a user=7"
	s.limiter(t, explain).want(t, exitDone, "  m  10/1m +5  token_bucket  k:7\n", "")
	s.limiter(t, explain+" --overrides").want(t, exitDone, "  m  10/1m +50  token_bucket  k:7  (override for k:7: r)\n", "")
}
