package httplimit_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/httplimit"
	"github.com/seed503877ad/limits/internal/app/apptest"
)

// keyed is a limiter of this test, with a limit for each key.
type keyed struct {
	client *limits.Client
	hangUp func()
	store  string // path of its file
}

func startKeyed(t *testing.T) *keyed {
	t.Helper()
	dir := t.TempDir()
	nc := apptest.Serve(t, dir, `policies: [{name: rate, match: {route: "*"}, limits: [{name: hour, key: "rate:{key}:{route}", limit: 2, window: 1h}]}]`)
	return &keyed{limits.NewClient(nc, limits.Timeout(patient)), nc.Close, filepath.Join(dir, "data", "limits.db")}
}

func (k *keyed) key(t *testing.T, user string) *limits.CreateKeyReply {
	t.Helper()
	made, err := k.client.CreateKey(t.Context(), limits.CreateKeyRequest{User: user, Tier: "pro"})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// config accepts keys as bearer tokens or in X-API-Key.
func (k *keyed) config(t *testing.T) httplimit.Config {
	return httplimit.Config{
		APIKey:     httplimit.Or(httplimit.Bearer(), httplimit.Header("X-API-Key")),
		Attributes: map[string]httplimit.Attribute{"route": httplimit.Path()},
		Deadline:   patient,
		OnDenied:   func(r *http.Request, _ *limits.Reply) { t.Errorf("denied: %v", r.URL) },
		OnError:    func(_ *http.Request, err error) { t.Error(err) },
	}
}

func TestKeyIsVerifiedAndLimitedInOneRequest(t *testing.T) {
	t.Parallel()
	k := startKeyed(t)
	made := k.key(t, "7")
	config, denied := k.config(t), ""
	config.OnDenied = func(r *http.Request, _ *limits.Reply) {
		if key, ok := httplimit.KeyFrom(r.Context()); ok {
			denied += key.User
		}
	}
	h := httplimit.Middleware(k.client, config)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		key, ok := httplimit.KeyFrom(r.Context())
		if !ok || key.User != "7" || key.Tier != "pro" || key.Key.ID != made.Key.ID {
			t.Errorf("the handler sees %+v", key)
		}
		if reply, ok := httplimit.ReplyFrom(r.Context()); !ok || reply.Limit != 2 {
			t.Errorf("the handler sees %+v", reply)
		}
	}))
	for i, want := range []int{200, 200, 429} {
		w := get(h, header([]string{"Authorization", "X-API-Key"}[i%2], []string{"bearer  ", ""}[i%2]+made.APIKey))
		if w.Code != want || w.Header().Get("RateLimit-Policy") != `"rate/hour";q=2;w=3600` {
			t.Errorf("request %d: %d %v, want %d and the window", i, w.Code, w.Header(), want)
		}
		if want == 429 && (w.Header().Get("Retry-After") == "" || w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Cache-Control") != "no-store") {
			t.Errorf("denial: headers %v", w.Header())
		}
	}
	if denied != "7" {
		t.Errorf("denials of %q, want one of 7", denied)
	}
}

func TestRequestWithoutValidKeyIsRefused(t *testing.T) {
	t.Parallel()
	k := startKeyed(t)
	h := httplimit.Middleware(k.client, k.config(t))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Error("handled") }))
	revoked, expired := k.key(t, "7"), k.key(t, "7")
	if _, err := k.client.RevokeKey(t.Context(), revoked.Key.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := k.client.ExpireKey(t.Context(), expired.Key.ID, time.Now().Add(-time.Second).UnixMilli()); err != nil {
		t.Fatal(err)
	}
	const invalid = `Bearer error="invalid_token", error_description="`
	for name, c := range map[string]struct{ key, challenge, detail string }{
		"none":       {"", "Bearer", "The request has no API key"},
		"a guess":    {"a guess", invalid, "The API key is unknown"},
		"long":       {strings.Repeat("long", 5000), invalid, "The API key is unknown"},
		"no text":    {"\xff\x00", invalid, "The API key is unknown"},
		"revoked":    {revoked.APIKey, invalid, "The API key was revoked"},
		"expired":    {expired.APIKey, invalid, "The API key has expired"},
		"of another": {strings.Replace(revoked.APIKey, "lim_", "lin_", 1), invalid, "The API key is unknown"},
	} {
		w := get(h, header("Authorization", "Bearer "+c.key))
		challenge := c.challenge
		if challenge == invalid {
			challenge += c.detail + `"`
		}
		if w.Code != 401 || w.Header().Get("WWW-Authenticate") != challenge || w.Header().Get("Content-Type") != "application/problem+json" ||
			!strings.Contains(w.Body.String(), c.detail) || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %v %s", name, w.Code, w.Header(), w.Body)
		}
	}
	if w := get(h, header("Authorization", "Basic "+revoked.APIKey)); w.Code != 401 || w.Header().Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("another scheme: %d %v", w.Code, w.Header())
	}
}

// TestKeysWhileLimiterIsDown: the limits may fail open, but the verification of keys must not.
func TestKeysWhileLimiterIsDown(t *testing.T) {
	t.Parallel()
	k := startKeyed(t)
	known, revoked, unseen := k.key(t, "7"), k.key(t, "8"), k.key(t, "9")
	config, failed := k.config(t), 0
	config.OnError = func(*http.Request, error) { failed++ }
	user := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, _ := httplimit.KeyFrom(r.Context())
		w.Header().Set("User", key.User)
	})
	open := httplimit.Middleware(k.client, config)(user)
	config.FailClosed = true
	closed := httplimit.Middleware(k.client, config)(user)
	with := func(key *limits.CreateKeyReply) func(*http.Request) { return header("X-API-Key", key.APIKey) }
	if got := statuses(1, open, with(known)) + " " + statuses(1, open, with(revoked)) + " " + statuses(1, closed, with(known)); got != "200 200 200" {
		t.Fatalf("statuses %s", got)
	}
	if _, err := k.client.RevokeKey(t.Context(), revoked.Key.ID); err != nil {
		t.Fatal(err)
	}
	if got := statuses(1, open, with(revoked)); got != "401" || failed != 0 {
		t.Fatalf("revoked: %s, %d failures", got, failed)
	}
	k.hangUp()
	if w := get(open, with(known)); w.Code != 200 || w.Header().Get("User") != "7" || w.Header().Get("RateLimit") != "" {
		t.Errorf("a key that was valid: %d %v, want it to pass without a decision", w.Code, w.Header())
	}
	if got := statuses(1, open, with(revoked)) + " " + statuses(1, open, with(unseen)) + " " + statuses(1, open) + " " + statuses(1, closed, with(known)); got != "503 503 401 503" {
		t.Errorf("one that is revoked, one that was not seen, none, and with FailClosed: %s", got)
	}
	if failed != 4 {
		t.Errorf("%d failures are reported, want 4", failed)
	}
}

// TestLimitsHoldWhileKeysCannotBeRead: a key that was valid before passes, but no more often than its limits allow.
func TestLimitsHoldWhileKeysCannotBeRead(t *testing.T) {
	t.Parallel()
	k := startKeyed(t)
	known, unseen := k.key(t, "7"), k.key(t, "8")
	attributes := map[string]string{}
	for i := range limits.MaxKeyAttributes {
		attributes[fmt.Sprint("key", i)] = "x"
	}
	large, err := k.client.CreateKey(t.Context(), limits.CreateKeyRequest{User: "9", Attributes: attributes})
	if err != nil {
		t.Fatal(err)
	}
	config, last := k.config(t), &limits.VerifyReply{}
	config.OnError, config.OnDenied = func(*http.Request, error) {}, nil
	for i := range limits.MaxAttributes - limits.MaxKeyAttributes {
		config.Attributes[fmt.Sprint("request", i)] = httplimit.Text("x")
	}
	h := httplimit.Middleware(k.client, config)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { last, _ = httplimit.KeyFrom(r.Context()) }))
	with := func(key *limits.CreateKeyReply) func(*http.Request) { return header("X-API-Key", key.APIKey) }
	if got := statuses(1, h, with(known)) + " " + statuses(1, h, with(large)); got != "200 200" {
		t.Fatal(got)
	}
	store, err := sql.Open("sqlite", k.store)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if _, err := store.ExecContext(t.Context(), "ALTER TABLE api_keys RENAME TO lost"); err != nil {
		t.Fatal(err)
	}
	for { // the limiter remembers a key for a second
		if _, err := k.client.VerifyKey(t.Context(), limits.VerifyRequest{APIKey: known.APIKey, Attributes: map[string]string{"route": "/other"}}); err != nil {
			break
		}
	}
	if got := statuses(3, h, with(known)) + " " + statuses(1, h, with(unseen)); got != "200 429 429 503" {
		t.Errorf("statuses %s", got)
	}
	seen := last
	if got := statuses(1, h, with(large)); got != "200" {
		t.Errorf("a key and a request with more attributes together than one request may have: %s", got)
	}
	if seen.User != "7" || seen.Tier != "pro" || !seen.Allowed() || seen.Decision.Degraded || seen.Decision.Limit != 2 {
		t.Errorf("the handler sees %+v, decision %+v", seen, seen.Decision)
	}
}

// TestKeyFromReturnsCopy: each request has its own copy, even while the limiter is down, and
// Allowed says that it passed.
func TestKeyFromReturnsCopy(t *testing.T) {
	t.Parallel()
	k := startKeyed(t)
	made, err := k.client.CreateKey(t.Context(), limits.CreateKeyRequest{User: "7", Name: "shop", Attributes: map[string]string{"plan": "free"}})
	if err != nil {
		t.Fatal(err)
	}
	config, handled := k.config(t), 0
	config.OnError = func(*http.Request, error) {}
	h := httplimit.Middleware(k.client, config)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		key, _ := httplimit.KeyFrom(r.Context())
		if handled++; !key.Allowed() || key.Decision.Degraded != (handled > 1) || key.Key.Name != "shop" || len(key.Attributes) != 1 {
			t.Errorf("request %d sees %+v, key %+v, decision %+v", handled, key, key.Key, key.Decision)
		}
		key.Valid, key.Key.Name, key.Attributes["region"] = false, "changed", "eu"
	}))
	get(h, header("X-API-Key", made.APIKey))
	k.hangUp()
	for range 2 {
		get(h, header("X-API-Key", made.APIKey))
	}
	if handled != 3 {
		t.Errorf("%d requests are handled, want 3", handled)
	}
}

// TestForeignAnswerDoesNotVerifyKey: handlers may rely on the fields of a valid key.
func TestForeignAnswerDoesNotVerifyKey(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{`{"valid":true}`, `{"valid":true,"user":"7","decision":{"allowed":true}}`, `{"valid":true,"key":{"id":"a"}}`,
		`{"valid":true,"key":{"id":"a"},"decision":{}}`, `{}`, `null`} {
		url, _ := silentService(t, limits.SubjectVerify, answer)
		h := httplimit.Middleware(dial(t, url), httplimit.Config{
			APIKey: httplimit.Bearer(), Deadline: patient, OnError: func(*http.Request, error) {},
		})(hello)
		if got := statuses(1, h, header("Authorization", "Bearer a")); got != "503" {
			t.Errorf("%s: status %s, want 503", answer, got)
		}
	}
}

// TestOverlongAttributeIsRefusedWithKey: a request with an attribute that is too long is refused
// even if the limits fail open, and even with a key that was valid.
func TestOverlongAttributeIsRefusedWithKey(t *testing.T) {
	t.Parallel()
	k := startKeyed(t)
	config, made := k.config(t), k.key(t, "7")
	config.OnError = func(*http.Request, error) {}
	h := httplimit.Middleware(k.client, config)(hello)
	for path, want := range map[string]int{"/": 200, "/" + strings.Repeat("long", 100): 400, "/" + strings.Repeat("long", 5000): 400} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
		r.Header.Set("X-API-Key", made.APIKey)
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("a path of %d bytes: %d, want %d", len(path), w.Code, want)
		}
	}
}

// TestAttributesWithoutValueAreLeftOutWithKey, even if none has one: the key has attributes of its own.
func TestAttributesWithoutValueAreLeftOutWithKey(t *testing.T) {
	t.Parallel()
	url, requests := silentService(t, limits.SubjectVerify, `{"valid":false,"code":"unknown"}`)
	get(httplimit.Middleware(dial(t, url), httplimit.Config{APIKey: httplimit.Header("X-API-Key"), Deadline: patient,
		Attributes: map[string]httplimit.Attribute{"route": httplimit.Header("X-Route")}})(hello), header("X-API-Key", "k"))
	if request := <-requests; strings.Contains(request, "route") {
		t.Error(request)
	}
}
