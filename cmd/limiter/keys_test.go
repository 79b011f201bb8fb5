package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestServiceKeys(t *testing.T) {
	s := serve(t, "--key-prefix", "acme")
	made := s.limiter(t, "keys create --user 7 --tier pro --name ci --expires 36500d -a plan=gold -a q=a=b;c")
	made.want(t, exitDone, "acme_", "of user 7, expires: 2126-02-05 12:00:00. It is shown only once:")
	text := made.out.String()
	id := strings.Split(text, "_")[1]
	s.limiter(t, "keys list").want(t, exitDone, id+"  7     pro   ", "")
	s.limiter(t, "keys list --user 7 --max 1").want(t, exitDone, "plan=gold q=a=b;c", "")
	s.limiter(t, "keys list --user 8").want(t, exitDone, "no API keys\n", "")
	s.limiter(t, "keys list --json").want(t, exitDone, `{"keys":[{"id":"`+id+`"`, "")

	verify := func(key string, args ...string) *invocation {
		i := &invocation{stdin: key}
		return i.run(t, append([]string{"verify", "--nats-url", s.nats}, args...)...)
	}
	s.limiter(t, "keys expire "+id+" --never").want(t, exitDone, "API key "+id+" of user 7: expires never\n", "")
	verify(text).want(t, exitDone, "valid\nkey "+id+", user 7, tier pro, attributes plan=gold q=a=b;c\nallowed: no limit applies\n", "")
	verify(text, "--json", "-a", "path=/").want(t, exitDone, `"decision":{"allowed":true`, "")
	verify(text, "--policy", "nobody's").want(t, exitError, "", "404 unknown_policy")
	verify("lim_nonsense").want(t, exitDenied, "not valid: unknown\n", "")
	verify("").want(t, exitError, "", "set LIMITS_API_KEY")

	s.limiter(t, "keys expire "+id+" --at 2020-01-31").want(t, exitUsage, "", "would remove the key at the next keys-prune")
	ended := time.Now().Add(-time.Hour).Truncate(time.Second)
	s.limiter(t, "keys expire "+id+" --at "+ended.Format(time.RFC3339)).want(t, exitDone, "expires "+ended.In(noon.Location()).Format(time.DateTime)+"\n", "")
	verify(text).want(t, exitDenied, "not valid: expired\nkey "+id+", user 7", "")
	s.limiter(t, "keys revoke "+id).want(t, exitDone, "API key "+id+" of user 7: revoked at ", "")
	verify(text).want(t, exitDenied, "not valid: inactive\n", "")
	s.limiter(t, "keys expire "+id+" --never").want(t, exitDone, "expires never, but was revoked ", "")
	s.limiter(t, "keys list").want(t, exitDone, "revoked", "")
	s.limiter(t, "keys revoke AAAAAAAA").want(t, exitError, "", `no API key with id "AAAAAAAA"`)
	s.limiter(t, "keys revoke "+strings.TrimSpace(text)).want(t, exitUsage, "", "id is not that of an API key")

	s.stop()
	if log := s.err.String(); strings.Contains(log, strings.Split(text, "_")[2]) || !strings.Contains(log, "API key revoked") {
		t.Errorf("log: %s", log)
	}
}

func TestVerifyReadsTheEnvironment(t *testing.T) {
	s := serve(t)
	t.Setenv("LIMITS_API_KEY", strings.TrimSpace(s.limiter(t, "keys create --user 7").out.String()))
	s.limiter(t, "verify").want(t, exitDone, "user 7", "")
	t.Setenv("LIMITS_API_KEY", os.Getenv("LIMITS_API_KEY")+"\n") // as from the file that keys create was written to
	s.limiter(t, "verify").want(t, exitDone, "user 7", "")
}

func TestServiceOverrides(t *testing.T) {
	s := serve(t)
	s.limiter(t, "overrides list").want(t, exitDone, "no overrides\n", "")
	s.limiter(t, "overrides set api minute api:user:7 --limit 500 --burst 0 --until 4000-01-02T00:00:00Z --reason import --by ann").
		want(t, exitDone, "minute of api for api:user:7: limit 500 burst 0, until 4000-01-02 01:00:00\n", "")
	s.limiter(t, "overrides set api minute api:user:* --unlimited --reason test").want(t, exitDone, "unlimited, until it is deleted\n", "")
	s.limiter(t, "overrides set api minute a --limit 1 --reason late --for 2h").want(t, exitUsage, "", "invalid_expiresAt") // 2h from March 2026
	s.limiter(t, "overrides set api minute a --window 1x --reason r").want(t, exitUsage, "", "invalid_window")
	s.limiter(t, "overrides list --policy api").want(t, exitDone, "api     minute  api:user:7  limit 500 burst 0  4000-01-02 01:00:00  ann", "")
	s.limiter(t, "overrides list --json").want(t, exitDone, `"subject":"api:user:*","unlimited":true`, "")
	s.limiter(t, "overrides delete api minute api:user:7").want(t, exitDone, "deleted the override of minute of api for api:user:7\n", "")
	s.limiter(t, "overrides delete api minute api:user:7").want(t, exitError, "", "not found: minute of api for api:user:7")
}

// TestUserNameIsKnownWithoutUSER, a variable that is missing under cron and in containers.
func TestUserNameIsKnownWithoutUSER(t *testing.T) {
	t.Setenv("USER", "")
	account, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	url := respond(t, limits.SubjectOverridesSet, func(request string) *nats.Msg {
		got = request
		return &nats.Msg{Data: []byte(`{"override":{}}`)}
	})
	for flag, want := range map[string]string{"": account.Username, " --by ann": "ann"} {
		limiter(t, strings.Fields("overrides set p n s --unlimited --reason r --nats-url "+url+flag)...).want(t, exitDone, "until it is deleted", "")
		if !strings.Contains(got, fmt.Sprintf(`"by":%q`, want)) {
			t.Errorf("%q asks %s, want by %s", flag, got, want)
		}
	}
}

func TestWrongUsageOfKeysAndOverrides(t *testing.T) {
	for args, message := range map[string]string{
		"keys create":                                                           "--user",
		"keys create --user 7 --expires soon":                                   "is not a duration above 0",
		"keys create --user 7 --expires=-1h":                                    "is not a duration above 0",
		"keys create --user 7 --expires 99999d":                                 "is not a duration above 0",
		"keys list --max 1001":                                                  "--max: 1001 is not between 1 and 1000",
		"keys expire AAAAAAAA":                                                  "one of --at, --in and --never is required",
		"keys expire AAAAAAAA --in 1d --never":                                  "can't be used together",
		"keys expire AAAAAAAA --at tomorrow":                                    "is not a time",
		"overrides set p n s --reason r":                                        "--limit, --window, --burst or --unlimited is required",
		"overrides set p n s --limit 1":                                         "--reason",
		"overrides set p n s --reason r --limit 1 --unlimited":                  "--unlimited cannot be combined with",
		"overrides set p n --reason r --limit 1":                                "<subject>",
		"overrides set p n s --reason r --limit 0":                              "--limit: 0 is below 1",
		"overrides set p n s --reason r --limit 0 --burst 5":                    "--limit: 0 is below 1",
		"overrides set p n s --reason r --limit=-1 --window 1h":                 "--limit: -1 is below 1",
		"overrides set p n s --reason r --limit 0 --unlimited":                  "--unlimited cannot be combined with",
		"overrides set p n s --reason r --limit unlimited":                      `--limit: "unlimited" is not a number; want one such as 500, or --unlimited`,
		"overrides set p n s --reason r --limit 010":                            `--limit: "010" is not a whole number in plain decimal digits, or is too large; want one such as 500`,
		"overrides set p n s --reason r --limit 1 --until 2020-01-31T00:00:00Z": "--until: 2020-01-31 01:00:00 is not in the future; it is now 2026-03-01 12:00:00",
		"alerts silence --user 7 --reason r --until 2020-01-31T00:00:00Z":       "--until: 2020-01-31 01:00:00 is not in the future; it is now 2026-03-01 12:00:00",
		"verify --cost 0":                                                       "--cost: 0 is below 1",
		"verify --timeout 0s":                                                   "--timeout: 0s is not above 0",
		"overrides list --max=-1":                                               "--max: -1 is not between 1 and 1000",
		"verify lim_00000000_000000000000000000000000000_000000":                "unexpected argument",
	} {
		limiter(t, strings.Fields(args)...).want(t, exitUsage, "", message)
	}
}

func TestSpanFlag(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"30d": 30 * 24 * time.Hour, "2w": 14 * 24 * time.Hour, "1h30m": 90 * time.Minute, "36500d": 36500 * 24 * time.Hour,
		"36501d": 0, "5215w": 0, "d": 0, "-1d": 0, "1.5d": 0, "": 0, "0s": 0,
	} {
		var f spanFlag
		if err := f.UnmarshalText([]byte(text)); (err == nil) != (want != 0) || time.Duration(f) != want {
			t.Errorf("%q is %v, %v; want %v", text, time.Duration(f), err, want)
		}
	}
}

// The size of 1,000 items is not known before. A page that is too large for NATS is requested again, smaller.
func TestTooLargePagesAreRequestedSmaller(t *testing.T) {
	var asked []int
	item := `{"key":"k","id":"k","policy":"k"}`
	url := respond(t, "limits.admin.>", func(request string) *nats.Msg {
		var r struct{ Max int }
		if err := json.Unmarshal([]byte(request), &r); err != nil {
			t.Error(err)
		}
		if asked = append(asked, r.Max); r.Max > 300 {
			return &nats.Msg{Data: []byte(`{"error":{"code":"too_large","message":"ask for fewer at a time with max"}}`),
				Header: nats.Header{"Nats-Service-Error-Code": {"413"}}}
		}
		next := `,"next":"k"}`
		if strings.Contains(request, `"after"`) {
			next = "}"
		}
		return text(`{"counters":[` + item + `],"keys":[` + item + `],"overrides":[` + item + `]` + next)("")
	})
	for _, args := range []string{"list", "keys list", "overrides list"} {
		asked = nil
		i := limiter(t, append(strings.Fields(args), "--json", "--nats-url", url)...)
		i.want(t, exitDone, item, "")
		if lines := strings.Count(i.out.String(), "\n"); lines != 2 || strings.Contains(i.out.String(), "too_large") ||
			!slices.Equal(asked, []int{1000, 500, 250, 250}) {
			t.Errorf("%s: asked for %v, printed %s", args, asked, i.out.String())
		}
		i = limiter(t, append(strings.Fields(args), "--nats-url", url)...)
		i.want(t, exitDone, "k", "")
		// With --max the error is shown.
		i = limiter(t, append(strings.Fields(args), "--max", "301", "--nats-url", url)...)
		i.want(t, exitError, "", "ask for fewer at a time with max (413 too_large)")
	}
}

// TestServiceListsManyKeys: they are more than fit into a NATS message.
func TestServiceListsManyKeys(t *testing.T) {
	s := serve(t)
	nc := testenv.Connect(t, s.nats)
	request := limits.CreateKeyRequest{User: "7", Attributes: map[string]string{}}
	for i := range limits.MaxKeyAttributes {
		request.Attributes[fmt.Sprint("a", i)] = strings.Repeat("x", limits.MaxAttributeBytes)
	}
	const many = 300
	for range many {
		if _, err := limits.NewClient(nc, limits.Timeout(time.Minute)).CreateKey(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	i := s.limiter(t, "keys list --timeout 1m")
	i.want(t, exitDone, "a15=xxx", "")
	if rows := strings.Count(i.out.String(), "a15="); rows != many {
		t.Errorf("%d keys are listed, want %d", rows, many)
	}
}
