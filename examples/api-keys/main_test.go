package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/examples/internal/exampletest"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const secret = "the secret of the sessions"

// site is the example's server with a limiter of its own.
type site struct {
	url     string
	limiter *limits.Client
	hangUp  func() // cuts the server off from its limiter
}

func serve(t *testing.T, store, policies string) *site {
	t.Helper()
	natsURL := exampletest.Start(t, store, policies)
	nc := testenv.Connect(t, natsURL)
	program := &server{
		limiter:       limits.NewClient(nc, limits.Timeout(exampletest.Patience)),
		deadline:      exampletest.Patience, // a busy machine must not fail the test
		sessionSecret: []byte(secret),
	}
	web := httptest.NewServer(program.handler())
	t.Cleanup(web.Close)
	return &site{web.URL, limits.NewClient(testenv.Connect(t, natsURL)), nc.Close}
}

// key creates an API key. Its id is also the key of its rate limit and of the log.
func (s *site) key(t *testing.T, user string) (apiKey, id string) {
	t.Helper()
	made, err := s.limiter.CreateKey(t.Context(), limits.CreateKeyRequest{User: user})
	if err != nil {
		t.Fatal(err)
	}
	return made.APIKey, made.Key.ID
}

type answer = exampletest.Answer

func (s *site) send(t *testing.T, endpoint, body string, headers ...string) answer {
	t.Helper()
	method, path, _ := strings.Cut(endpoint, " ")
	req, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return exampletest.Send(t, http.DefaultClient, req)
}

func (s *site) want(t *testing.T, status int, body, endpoint string, headers ...string) answer {
	t.Helper()
	a := s.send(t, endpoint, "", headers...)
	if a.Status != status || !strings.Contains(a.Body, body) {
		t.Errorf("%s: %+v; want %d with %s", endpoint, a, status, body)
	}
	return a
}

// TestCredentials checks which requests get in.
func TestCredentials(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := serve(t, store, "policies.yaml")
		const contact = "GET /v1/contacts/7"
		s.want(t, 401, `The request has no API key`, contact)
		s.want(t, 401, `The API key is unknown`, contact, "X-API-Key", "a guess")
		s.want(t, 401, `The API key is unknown`, contact, "X-API-Key", strings.Repeat("long", 5000))

		revoked, id := s.key(t, "7")
		s.want(t, 200, "", contact, "X-API-Key", revoked)
		if _, err := s.limiter.RevokeKey(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		s.want(t, 401, `The API key was revoked`, contact, "X-API-Key", revoked)
		expired, id := s.key(t, "7")
		if _, err := s.limiter.ExpireKey(t.Context(), id, time.Now().Add(-time.Second).UnixMilli()); err != nil {
			t.Fatal(err)
		}
		s.want(t, 401, `The API key has expired`, contact, "X-API-Key", expired)

		for range 3 {
			if a := s.want(t, 200, "", contact, "Authorization", session(secret, "7", time.Hour)); a.Header.Get("X-RateLimit-Limit") != "" {
				t.Errorf("a session was limited: %+v", a)
			}
		}
		bearer := session(secret, "7", time.Hour)
		for _, scheme := range []string{"bearer ", "BEARER ", "Bearer   "} { // RFC 9110: neither case nor the number of spaces matters
			s.want(t, 200, "", contact, "Authorization", scheme+strings.TrimPrefix(bearer, "Bearer "))
		}
		s.want(t, 401, "session", contact, "Authorization", session("another secret", "7", time.Hour))
		s.want(t, 401, "session", contact, "Authorization", session(secret, "7", -time.Second))
		s.want(t, 401, "session", contact, "Authorization", session(secret, "", time.Hour))
		s.want(t, 401, `The API key is unknown`, contact, "Authorization", session(secret, "7", time.Hour), "X-API-Key", "a guess")
	})
}

// session is the header of a session: a JSON Web Token.
func session(secret, user string, lasts time.Duration) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." +
		base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"sub":%q,"exp":%d}`, user, time.Now().Add(lasts).Unix()))
	return "Bearer " + text + "." + base64.RawURLEncoding.EncodeToString(signature(text, []byte(secret)))
}

// TestRate checks the limit of a key: 100 in 60 s from its first request, even for concurrent requests.
func TestRate(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := serve(t, store, "policies.yaml")
		key, _ := s.key(t, "7")
		before := time.Now()
		first := s.want(t, 200, "", "GET /v1/contacts/7", "X-API-Key", key)
		after := time.Now()
		reset, err := strconv.ParseInt(first.Header.Get("X-RateLimit-Reset"), 10, 64)
		if err != nil || reset < before.Add(59*time.Second).Unix() || reset > after.Add(61*time.Second).Unix() {
			t.Errorf("X-RateLimit-Reset %d (%v); want 60 s after the first request, %s", reset, err, before)
		}
		if first.Header.Get("X-RateLimit-Limit") != "100" || first.Header.Get("X-RateLimit-Remaining") != "99" {
			t.Errorf("first answer %+v; want 99 left of 100", first)
		}
		passed := exampletest.AtOnce(120, func(int) bool {
			return s.send(t, "GET /v1/contacts/7", "", "X-API-Key", key).Status == http.StatusOK
		})
		if passed != 99 {
			t.Errorf("%d of 120 simultaneous requests passed; want the 99 that were left", passed)
		}
		denied := s.want(t, 429, `"error":"rate_limit_exceeded"`, "GET /v1/contacts/7", "X-API-Key", key)
		if wait, err := strconv.Atoi(denied.Header.Get("Retry-After")); err != nil || wait < 1 || wait > 60 ||
			denied.Header.Get("X-RateLimit-Remaining") != "0" {
			t.Errorf("denial %+v; want 0 left and a Retry-After of 1 to 60", denied)
		}
		other, _ := s.key(t, "7")
		s.want(t, 200, "", "GET /v1/contacts/7", "X-API-Key", other)
	})
}

// TestHalfClosedConnectionCannotBypassTheRate: if a client shuts down its half of the connection after its request, net/http ends
// the request's context, but the client still gets the response.
func TestHalfClosedConnectionCannotBypassTheRate(t *testing.T) {
	t.Parallel()
	s := serve(t, exampletest.SQLite, exampletest.Rewrite(t, "policies.yaml", "limit: 100,", "limit: 1,"))
	key, _ := s.key(t, "7")
	s.want(t, 200, "", "GET /v1/contacts/7", "X-API-Key", key)
	for range 10 {
		if got := s.halfClosed(t, key); got != http.StatusTooManyRequests {
			t.Errorf("status %d past the limit, want 429", got)
		}
	}
}

// halfClosed sends a request and shuts down its half of the connection at once.
func (s *site) halfClosed(t *testing.T, key string) (status int) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /v1/contacts/7 HTTP/1.1\r\nHost: example\r\nX-API-Key: %s\r\n\r\n", key)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestAlerts checks that an import of hundreds of matches, each twice, raises 20 alerts.
func TestAlerts(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := serve(t, store, "policies.yaml")
		key, _ := s.key(t, "7")
		matches := []string{"a", "a", "b", "a"}
		s.wantAlerts(t, matches, 2, "X-API-Key", key)
		for i := range 300 {
			matches = append(matches, fmt.Sprint("match-", i), fmt.Sprint("match-", i))
		}
		s.wantAlerts(t, matches, 18, "X-API-Key", key)
		s.wantAlerts(t, matches, 0, "X-API-Key", key)
		other, _ := s.key(t, "8")
		s.wantAlerts(t, matches[:4], 2, "X-API-Key", other)
		// A session is exempt from rate limits, but not from the limit of alerts, even with an invalid match.
		mine := []string{"Authorization", session(secret, "9", time.Hour)}
		s.wantAlerts(t, []string{"a", "", strings.Repeat("long", 100), "a", "b"}, 2, mine...)
		s.wantAlerts(t, matches, 18, mine...)
	})
}

// TestImportIsBounded: a request that is charged once must not make an unbounded number of requests to the limiter, or of log
// lines. It does not run in parallel, since it replaces the log of the process.
func TestImportIsBounded(t *testing.T) {
	s := serve(t, exampletest.SQLite, "policies.yaml")
	key, _ := s.key(t, "7")
	var lines bytes.Buffer
	before := log.Writer()
	log.SetOutput(&lines)
	defer log.SetOutput(before)
	s.wantAlerts(t, make([]string, maxMatches), 0, "X-API-Key", key) // an empty match is invalid
	if told := strings.Count(lines.String(), "no alert"); told != 1 {
		t.Errorf("%d lines tell of matches that cannot be; want 1", told)
	}
	body, err := json.Marshal(map[string]any{"matches": make([]string, maxMatches+1)})
	if err != nil {
		t.Fatal(err)
	}
	if a := s.send(t, "POST /v1/bulk-enrich", string(body), "X-API-Key", key); a.Status != http.StatusBadRequest {
		t.Errorf("%d matches: %+v; want %d", maxMatches+1, a, http.StatusBadRequest)
	}
}

func (s *site) wantAlerts(t *testing.T, matches []string, want int, headers ...string) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"matches": matches})
	if err != nil {
		t.Fatal(err)
	}
	a := s.send(t, "POST /v1/bulk-enrich", string(body), headers...)
	if a.Status != http.StatusOK || !strings.Contains(a.Body, fmt.Sprintf(`"alerts":%d,`, want)) {
		t.Errorf("%d matches: %+v; want %d alerts", len(matches), a, want)
	}
}

// TestUsage requests the three reports on the request log.
func TestUsage(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := serve(t, store, "policies.yaml")
		busy, busyID := s.key(t, "7")
		quiet, _ := s.key(t, "8")
		for range 3 {
			s.want(t, 200, "", "GET /v1/contacts/7", "X-API-Key", busy)
		}
		s.want(t, 500, "", "GET /v1/broken", "X-API-Key", busy)
		s.want(t, 200, "", "GET /v1/contacts/8", "X-API-Key", quiet)
		slow := make([]string, 100) // each is a request to the limiter, so that all of them take some milliseconds
		for i := range slow {
			slow[i] = fmt.Sprint("match-", i)
		}
		begin := time.Now()
		s.wantAlerts(t, slow, 20, "X-API-Key", busy)
		took := time.Since(begin)

		var traffic, slowest, failed *limits.Usage
		exampletest.Until(t, "the request log", func() bool {
			traffic = s.usage(t, limits.ReportTraffic)
			return len(traffic.Traffic) == 2 && traffic.Traffic[0].Requests == 5
		})
		if top := traffic.Traffic[0]; top.Key != busyID || top.User != "7" || top.Errors != 1 {
			t.Errorf("most traffic %+v; want key %s", top, busyID)
		}
		if slowest = s.usage(t, limits.ReportSlowest); len(slowest.Slowest) != 3 {
			t.Errorf("slowest endpoints %+v; want 3", slowest.Slowest)
		}
		for i, row := range slowest.Slowest {
			if i > 0 && row.P95 > slowest.Slowest[i-1].P95 {
				t.Errorf("slowest endpoints %+v; want the slowest first", slowest.Slowest)
			}
			if row.Endpoint == "/v1/bulk-enrich" && (row.Method != "POST" || row.Max < 1 || row.Max > took.Milliseconds()) {
				t.Errorf("the import of %s is logged as %+v", took, row)
			}
		}
		failed = s.usage(t, limits.ReportErrors)
		if len(failed.Errors) != 1 || failed.Errors[0].Endpoint != "/v1/broken" || failed.Errors[0].Status != 500 || failed.Errors[0].Requests != 1 {
			t.Errorf("errors %+v; want one 500 of GET /v1/broken", failed.Errors)
		}
	})
}

func (s *site) usage(t *testing.T, report string) *limits.Usage {
	t.Helper()
	u, err := s.limiter.Usage(t.Context(), limits.UsageRequest{Report: report})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestMissingPolicy: a valid key is not reported as unknown because the limiter was started without the policies.
func TestMissingPolicy(t *testing.T) {
	t.Parallel()
	s := serve(t, exampletest.SQLite, exampletest.Rewrite(t, "policies.yaml", "name: key-rate", "name: another"))
	key, _ := s.key(t, "7")
	s.want(t, 503, "rate_limit_check_failed", "GET /v1/contacts/7", "X-API-Key", key)
	s.want(t, 401, `The request has no API key`, "GET /v1/contacts/7")
}

// TestLimiterIsUnavailable: a key that was valid passes, and one that cannot be verified does not.
func TestLimiterIsUnavailable(t *testing.T) {
	t.Parallel()
	s := serve(t, exampletest.SQLite, "policies.yaml")
	key, _ := s.key(t, "7")
	unseen, _ := s.key(t, "8")
	s.want(t, 200, "", "GET /v1/contacts/7", "X-API-Key", key)
	s.hangUp()
	a := s.want(t, 200, "", "GET /v1/contacts/7", "X-API-Key", key)
	if a.Header.Get("X-RateLimit-Limit") != "" {
		t.Errorf("an answer without a decision has %v", a.Header)
	}
	s.want(t, 503, "", "GET /v1/contacts/7", "X-API-Key", unseen)
	s.wantAlerts(t, []string{"a", "b"}, 0, "X-API-Key", key)
}
