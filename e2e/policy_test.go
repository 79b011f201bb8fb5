package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// within is how soon every worker must apply a revoked key or an override.
const within = time.Second

// yamlFile writes a file into a new folder.
func yamlFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "limits.yaml")
	replace(t, path, text)
	return path
}

// replace replaces a file atomically, as a careful deployment does.
func replace(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// apart starts two workers on one database, each with a NATS server of its own. So a test can send a request to one of them,
// and they learn of each other's changes only through the store, which is slower than by broadcast.
func apart(t *testing.T, policies string) (a, b *nats.Conn) {
	t.Helper()
	env := []string{"DATABASE_URL=" + testenv.Postgres(t), "POLICIES=" + yamlFile(t, policies)}
	return connect(t, start(t, env...).nats), connect(t, start(t, env...).nats)
}

// admin sends a request for a change, which must succeed, and returns the time of the answer.
func admin(t testing.TB, nc *nats.Conn, subject, body string) (*nats.Msg, time.Time) {
	t.Helper()
	msg := request(t, nc, subject, body)
	if code := msg.Header.Get("Nats-Service-Error-Code"); code != "" {
		t.Fatalf("%s %s: error %s %s", subject, body, code, msg.Data)
	}
	return msg, time.Now()
}

// changes sends requests until the answer has changed, and checks that the last request with an old answer was sent within
// the allowed time. So a slow machine does not fail the test.
func changes(t testing.TB, what string, since time.Time, ask func() (changed bool)) {
	t.Helper()
	for {
		asked := time.Now()
		if ask() {
			return
		}
		if late := asked.Sub(since); late > within {
			t.Fatalf("%s: not known to the other worker %s after the answer", what, late)
		}
	}
}

func TestAnOverrideReachesEveryWorkerWithinASecond(t *testing.T) {
	t.Parallel()
	a, b := apart(t, `
policies:
  - name: api
    match: {user: "*"}
    limits: [{name: hourly, key: "api:{user}", limit: 5, window: 1h}]
`)
	limit := func(nc *nats.Conn) int64 {
		return decide(t, nc, limits.SubjectCheck, `{"attributes":{"user":"7"}}`).Limit
	}
	becomes := func(want int64) func() bool { return func() bool { return limit(b) == want } }
	if limit(a) != 5 || limit(b) != 5 {
		t.Fatal("the policy is not in force")
	}
	set := func(subject, more string) time.Time {
		_, at := admin(t, a, limits.SubjectOverridesSet, fmt.Sprintf(`{"policy":"api","name":"hourly","subject":%q,"reason":"test",%s}`, subject, more))
		return at
	}
	changes(t, "override of all", set("api:*", `"limit":50`), becomes(50))
	changes(t, "override of one", set("api:7", `"limit":70`), becomes(70))
	_, at := admin(t, a, limits.SubjectOverridesDelete, `{"policy":"api","name":"hourly","subject":"api:7"}`)
	changes(t, "deleted override", at, becomes(50))

	ends := time.Now().Add(1500 * time.Millisecond)
	set("api:7", fmt.Sprintf(`"limit":90,"expiresAt":%d`, ends.UnixMilli()))
	if limit(a) != 90 {
		t.Error("the override is not in force where it was set")
	}
	eventually(t, func() error {
		asked := time.Now()
		switch got := limit(b); {
		case got == 50 && asked.After(ends):
			return nil
		case got == 90 && asked.After(ends):
			t.Fatalf("in force %s after its end", asked.Sub(ends))
		}
		return fmt.Errorf("still before its end")
	})
	if msg := request(t, a, limits.SubjectOverridesSet, `{"policy":"app","name":"hourly","subject":"api:7","limit":1,"reason":"typo"}`); !strings.Contains(string(msg.Data), "the policies are api") {
		t.Errorf("override of no policy: %s", msg.Data)
	}
}

func TestARevokedKeyIsRefusedByEveryWorkerWithinASecond(t *testing.T) {
	t.Parallel()
	a, b := apart(t, `
policies:
  - name: reports
    match: {user: "*", path: "/v1/reports*"}
    limits: [{name: monthly, key: "quota:{user}", limit: 5, window: month}]
    tiers: {pro: {monthly: {limit: 7}}}
`)
	create := func(more string) (key limits.CreateKeyReply) {
		msg, _ := admin(t, a, limits.SubjectKeysCreate, `{"user":"ann","tier":"pro"`+more+`}`)
		if err := json.Unmarshal(msg.Data, &key); err != nil {
			t.Fatal(err)
		}
		return key
	}
	verify := func(nc *nats.Conn, key string) (r limits.VerifyReply) {
		msg := request(t, nc, limits.SubjectVerify, fmt.Sprintf(`{"apiKey":%q,"attributes":{"path":"/v1/reports/9","user":"eve"},"cost":2}`, key))
		if err := json.Unmarshal(msg.Data, &r); err != nil || msg.Header.Get("Nats-Service-Error-Code") != "" {
			t.Fatalf("verify: %s %v", msg.Data, err)
		}
		return r
	}
	key := create("")
	for want := int64(5); want > 0; want -= 2 {
		r := verify(b, key.APIKey)
		if !r.Allowed() || r.User != "ann" || r.Tier != "pro" || r.Decision.Key != "quota:ann" || r.Decision.Limit != 7 || r.Decision.Remaining != want {
			t.Errorf("%+v %+v; want %d remaining", r, r.Decision, want)
		}
	}
	if r := verify(a, key.APIKey); r.Allowed() || !r.Valid || r.Code != "" || r.Decision.BlockedBy != "monthly" {
		t.Errorf("past its limit: %+v", r)
	}
	_, at := admin(t, a, limits.SubjectKeysRevoke, fmt.Sprintf(`{"id":%q}`, key.Key.ID))
	var last limits.VerifyReply
	changes(t, "revoked key", at, func() bool { last = verify(b, key.APIKey); return !last.Valid })
	if last.Code != limits.KeyInactive || last.Decision != nil {
		t.Errorf("revoked: %+v", last)
	}

	key = create("")
	verify(b, key.APIKey)
	_, at = admin(t, a, limits.SubjectKeysExpire, fmt.Sprintf(`{"id":%q,"expiresAt":%d}`, key.Key.ID, time.Now().UnixMilli()-1))
	changes(t, "expired key", at, func() bool { last = verify(b, key.APIKey); return !last.Valid })
	if last.Code != limits.KeyExpired {
		t.Errorf("expired: %+v", last)
	}
	// A key that was never made, well-formed except for its checksum, and one that is not well-formed.
	for _, wrong := range []string{key.APIKey[:len(key.APIKey)-1] + "?", "nonsense"} {
		if r := verify(b, wrong); r.Valid || r.Code != limits.KeyUnknown || r.Key != nil || r.User != "" {
			t.Errorf("unknown: %+v", r)
		}
	}
	if got := used(t, b, "quota:ann"); got != 6 {
		t.Errorf("%d used by ann, want 6: a key that is not valid charges nothing", got)
	}
	if got := used(t, b, "quota:eve"); got != 0 {
		t.Errorf("%d used by eve, whom the request and not the key named", got)
	}
}

// version returns a policy file whose two limits together identify its version.
func version(n int) string {
	return fmt.Sprintf(`
policies:
  - name: pair
    match: {user: "*"}
    limits:
      - {name: small, key: "pair:{user}", limit: %d, window: 1h}
      - {name: large, key: "pair:{user}", limit: %d, window: 1d}
`, 1_000_000+n, 2_000_000+n)
}

func TestPolicyReloadsUnderLoadAreAtomic(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env []string) {
		path := yamlFile(t, version(0))
		w := start(t, append(env, "POLICIES="+path)...)
		var asked atomic.Int64
		stop := make(chan struct{})
		var clients sync.WaitGroup
		defer clients.Wait()
		defer close(stop)
		for i := range 6 {
			nc := connect(t, w.nats)
			clients.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					r, err := try(nc, limits.SubjectConsume, fmt.Sprintf(`{"attributes":{"user":"%d"}}`, (i+n)%3), patience)
					if err != nil || len(r.Limits) != 2 || r.Limits[1].Limit-r.Limits[0].Limit != 1_000_000 {
						t.Errorf("a request answered by half a file: %+v, %v", r, err)
						return
					}
					asked.Add(1)
				}
			})
		}
		nc := connect(t, w.nats)
		inForce := func(n int) {
			eventually(t, func() error {
				if r := decide(t, nc, limits.SubjectCheck, `{"policy":"pair","attributes":{"user":"x"}}`); r.Limits[0].Limit != int64(1_000_000+n) {
					return fmt.Errorf("version %d is not in force: %+v", n, r)
				}
				return nil
			})
		}
		for n := 1; n <= 30; n++ {
			replace(t, path, version(n%2))
			if n%3 != 0 { // for the others only the watch of the file causes the reload
				signal(t, w, syscall.SIGHUP)
			}
			inForce(n % 2)
		}
		replace(t, path, version(1)+"  - nmae: other\n")
		eventually(t, func() error {
			var p limits.Policies
			if err := json.Unmarshal(request(t, nc, limits.SubjectPolicies, `{}`).Data, &p); err != nil || !strings.Contains(p.Error, "limits.yaml:8") {
				return fmt.Errorf("the broken file is not reported: %+v, %v", p, err)
			}
			return nil
		})
		inForce(0)
		replace(t, path, version(1))
		inForce(1)
		if asked.Load() < 100 {
			t.Errorf("%d requests: too few to test anything", asked.Load())
		}
	})
}
