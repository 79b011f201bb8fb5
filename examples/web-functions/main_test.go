package main

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/examples/internal/exampletest"
	"github.com/seed503877ad/limits/httplimit"
	"github.com/seed503877ad/limits/internal/app"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// site is the example's server with a limiter of its own.
type site struct {
	url     string
	limiter *limits.Client
	hangUp  func() // cuts the server off from its limiter
}

func serve(t *testing.T, store, policies string, extra ...func(*app.Options)) *site {
	t.Helper()
	nc := testenv.Connect(t, exampletest.Start(t, store, policies, extra...))
	s := &site{limiter: limits.NewClient(nc, limits.Timeout(exampletest.Patience)), hangUp: nc.Close}
	program := &server{
		limiter:  s.limiter,
		deadline: exampletest.Patience, // a busy machine must not fail the test
	}
	web := httptest.NewServer(program.handler())
	t.Cleanup(web.Close)
	s.url = web.URL
	return s
}

type answer = exampletest.Answer

func (s *site) post(t *testing.T, client *http.Client, route, user, role string) answer {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, s.url+"/functions/"+route, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-User-Id", user)
	req.Header.Set("X-User-Role", role)
	return exampletest.Send(t, client, req)
}

// burst sends n requests of a new user, one after another or concurrently, and returns the answers. Windows are aligned to the
// clock, so it starts over with another user if a window ended in between.
func (s *site) burst(t *testing.T, n int, atOnce bool, route, role string) (user string, answers []answer) {
	t.Helper()
	for attempt := range 5 {
		user, answers = fmt.Sprintf("%s-%s-%d", t.Name(), role, attempt), make([]answer, n)
		var wait sync.WaitGroup
		for i := range answers {
			if !atOnce {
				answers[i] = s.post(t, http.DefaultClient, route, user, role)
				continue
			}
			wait.Go(func() { answers[i] = s.post(t, http.DefaultClient, route, user, role) })
		}
		wait.Wait()
		if oneWindow(answers) {
			return user, answers
		}
	}
	t.Fatal("no window was long enough for the requests")
	return "", nil
}

func oneWindow(answers []answer) bool {
	for _, a := range answers {
		if a.Header.Get("X-RateLimit-Reset") != answers[0].Header.Get("X-RateLimit-Reset") {
			return false
		}
	}
	return true
}

func passed(answers []answer) (n int) {
	for _, a := range answers {
		if a.Status == http.StatusOK {
			n++
		}
	}
	return n
}

// TestScript plays a day of a user, with the unchanged policies.
func TestScript(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := serve(t, store, "policies.yaml")
		user, answers := s.burst(t, 21, false, "tag-categorize", "")
		if got := passed(answers[:20]); got != 20 {
			t.Errorf("%d of the first 20 requests passed", got)
		}
		checkDenial(t, answers[20])
		if a := s.post(t, http.DefaultClient, "tag-categorize-dryrun", user, ""); a.Header.Get("X-RateLimit-Remaining") != "19" {
			t.Errorf("another route of the user: %+v; want 19 left", a)
		}
		for range 3 {
			a := s.post(t, http.DefaultClient, "whoami", user, "")
			if a.Status != http.StatusOK || a.Header.Get("X-RateLimit-Limit") != "" {
				t.Errorf("a route without a limit: %+v", a)
			}
		}
		for _, route := range []string{"nothing", "tag-categorize/", "Tag-Categorize"} {
			if a := s.post(t, http.DefaultClient, route, user, ""); a.Status != http.StatusNotFound {
				t.Errorf("%s: %+v; want 404, or a spelling gets around the limit", route, a)
			}
		}
		if a := s.post(t, http.DefaultClient, "tag-rules", "", ""); a.Status != http.StatusUnauthorized {
			t.Errorf("no user: %+v", a)
		}
	})
}

// checkDenial compares a denial with what clients of the old system expect.
func checkDenial(t *testing.T, a answer) {
	t.Helper()
	var body struct {
		OK         bool   `json:"ok"`
		Error      string `json:"error"`
		RetryAfter int    `json:"retry_after"`
	}
	if err := json.Unmarshal([]byte(a.Body), &body); err != nil {
		t.Fatalf("%+v: %v", a, err)
	}
	if a.Status != http.StatusTooManyRequests || body.OK || body.Error != "Rate limit exceeded" {
		t.Errorf("refusal %+v", a)
	}
	if body.RetryAfter < 1 || body.RetryAfter > 60 || a.Header.Get("Retry-After") != strconv.Itoa(body.RetryAfter) {
		t.Errorf("retry_after %d and Retry-After %q; want one number from 1 to 60", body.RetryAfter, a.Header.Get("Retry-After"))
	}
	reset, err := time.Parse(time.RFC3339, a.Header.Get("X-RateLimit-Reset"))
	if err != nil || reset.Truncate(time.Minute) != reset {
		t.Errorf("X-RateLimit-Reset %s (%v); want the next full minute as an ISO date", reset, err)
	}
	if a.Header.Get("X-RateLimit-Limit") != "20" || a.Header.Get("X-RateLimit-Remaining") != "0" {
		t.Errorf("headers %v", a.Header)
	}
}

// TestLimits checks the limits of all routes and roles.
func TestLimits(t *testing.T) {
	t.Parallel()
	s := serve(t, exampletest.SQLite, "policies.yaml")
	for _, c := range []struct {
		route, role, limit string
	}{
		{"tag-categorize", "", "20"}, {"tag-categorize-dryrun", "", "20"}, {"crystal-analyze", "", "10"},
		{"chat-v3-production", "", "100"}, {"tag-correction", "", "50"}, {"tag-rules", "", "10"}, {"analytics", "", "5"},
		{"admin/migrate", "", "1"},
		{"tag-categorize", "free", "10"}, {"chat-v3-production", "free", "50"},
		{"tag-categorize", "pro", "50"}, {"chat-v3-production", "pro", "200"},
		{"tag-categorize", "enterprise", "500"}, {"chat-v3-production", "enterprise", "1000"},
		{"tag-categorize-dryrun", "enterprise", "20"}, {"analytics", "free", "5"}, {"analytics", "unheard of", "5"},
	} {
		a := s.post(t, http.DefaultClient, c.route, "of "+c.role, c.role)
		if a.Status != http.StatusOK || a.Header.Get("X-RateLimit-Limit") != c.limit {
			t.Errorf("%s as %q: %+v; want limit %s", c.route, c.role, a, c.limit)
		}
	}
}

// TestConcurrentRequests: of concurrent requests exactly as many pass as the limit allows, with and without a role.
func TestConcurrentRequests(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := serve(t, store, "policies.yaml")
		for role, want := range map[string]int{"": 20, "free": 10, "pro": 50} {
			if _, answers := s.burst(t, 100, true, "tag-categorize", role); passed(answers) != want {
				t.Errorf("role %q: %d of 100 simultaneous requests passed; want %d", role, passed(answers), want)
			}
		}
		if _, answers := s.burst(t, 100, true, "admin/migrate", ""); passed(answers) != 1 {
			t.Errorf("admin/migrate: %d of 100 simultaneous requests passed; want 1", passed(answers))
		}
	})
}

// TestNewWindowAfterReset has a client retry by itself: never before the reset, and then a new window starts at 1.
func TestNewWindowAfterReset(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := serve(t, store, exampletest.Rewrite(t, "policies.yaml", "window: 1m", "window: 1s"))
		var reset time.Time
		for end := time.Now().Add(exampletest.Patience); reset.IsZero(); {
			if a := s.post(t, http.DefaultClient, "analytics", "7", ""); a.Status == http.StatusTooManyRequests {
				reset, _ = time.Parse(time.RFC3339, a.Header.Get("X-RateLimit-Reset"))
			} else if time.Now().After(end) {
				t.Fatalf("never refused: %+v", a)
			}
		}
		client := &http.Client{Transport: &httplimit.Transport{Base: http.DefaultTransport}}
		a := s.post(t, client, "analytics", "7", "")
		if a.Status != http.StatusOK || a.Header.Get("X-RateLimit-Remaining") != "4" {
			t.Errorf("after the wait: %+v; want 200 and 4 left of 5", a)
		}
		if now := time.Now(); now.Before(reset) {
			t.Errorf("the client passed at %s, before the reset %s", now, reset)
		}
	})
}

// TestMonitoring: five denials of a user raise one alert, on any routes, and four raise none. The top report shows who was denied
// where.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := serve(t, store, "policies.yaml", func(o *app.Options) { o.Alerts, o.Alerter = "alerts.yaml", "on" })
		ctx, cancel := context.WithTimeout(t.Context(), exampletest.Patience)
		defer cancel()
		raised, err := s.limiter.Watch(ctx, limits.EventAlertRaised)
		if err != nil {
			t.Fatal(err)
		}
		next, stop := iter.Pull2(raised)
		defer stop()
		routes := []string{"admin/migrate", "analytics", "tag-rules", "crystal-analyze", "tag-categorize"}
		for _, step := range []struct {
			user   string
			routes []string
			alert  bool
		}{
			{"patient", routes[:4], false}, {"greedy", routes, true}, // events are processed in order, so four have raised none
			{"patient", routes[4:], true},
			{"greedy", routes, false}, {"last", routes, true},
		} {
			for _, route := range step.routes {
				s.deny(t, step.user, route)
			}
			if !step.alert {
				continue
			}
			event, err, ok := next()
			if err != nil || !ok {
				t.Fatalf("no alert about %s: %v", step.user, err)
			}
			want := "user " + step.user + " was denied 5 times in 10 minutes"
			if a := event.Data.(*limits.AlertRaised); a.User != step.user || a.Denied != 5 || a.Title != want {
				t.Errorf("alert %+v; want that %s", a, want)
			}
		}
		all, err := s.limiter.ListAlerts(t.Context(), limits.ListAlertsRequest{})
		if err != nil || len(all.Alerts) != 3 {
			t.Errorf("alerts %+v, %v; want one of each user", all, err)
		}
		s.wantTop(t)
	})
}

// deny sends requests until one is denied.
func (s *site) deny(t *testing.T, user, route string) {
	t.Helper()
	for range 100 { // at most 20 fit into a window
		if a := s.post(t, http.DefaultClient, route, user, ""); a.Status == http.StatusTooManyRequests {
			return
		}
	}
	t.Fatalf("%s is never denied %s", user, route)
}

// wantTop waits until the usage of the last hour was written, which takes some seconds. It contains only the routes.
func (s *site) wantTop(t *testing.T) {
	t.Helper()
	var top *limits.Top
	exampletest.Until(t, "the usage of all denials", func() bool {
		var err error
		if top, err = s.limiter.Top(t.Context(), limits.TopRequest{By: limits.ByDenied, Period: "1h"}); err != nil {
			t.Fatal(err)
		}
		var denied int64
		for _, row := range top.Rows {
			denied += row.Denied
		}
		return denied >= 20
	})
	for i, row := range top.Rows {
		first := row.User == "greedy" && row.Denied == 2
		if len(top.Rows) != 15 || !strings.HasPrefix(row.Key, "fn:") || row.Peak < 1 || first != (i < 5) {
			t.Errorf("row %d of %d is %+v; want one for each user and route, and those of greedy first", i, len(top.Rows), row)
		}
	}
}

// TestClientSide plays what a person sees: a short wait passes by itself, and a long one is counted down. Its hour begins with the
// first request, because near the end of a clock hour the wait would be short.
func TestClientSide(t *testing.T) {
	t.Parallel()
	s := serve(t, exampletest.SQLite, exampletest.Rewrite(t, "policies.yaml", "limit: 5, window: 1m", "limit: 1, window: 1s",
		"limit: 1, window: 1h,", "limit: 1, window: 1h, anchor: first_use,"))
	var seen strings.Builder
	for end := time.Now().Add(exampletest.Patience); !strings.Contains(seen.String(), "busy"); {
		if err := call(t.Context(), &seen, s.url+"/functions/analytics", "7"); err != nil || time.Now().After(end) {
			t.Fatalf("%v, or never busy: %s", err, &seen)
		}
	}
	if !strings.HasSuffix(seen.String(), "200 OK {\"ok\":true,\"function\":\"analytics\"}\n") {
		t.Errorf("the wait did not end well: %s", &seen)
	}

	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	s.deny(t, "7", "admin/migrate")
	shown := &onCountdown{then: leave}
	if err := call(ctx, shown, s.url+"/functions/admin/migrate", "7"); err != nil {
		t.Fatal(err)
	}
	countdown := regexp.MustCompile(`^429 Too Many Requests {.*}\n\rthe button is enabled in (1h0m0s|59m\d+s) *\n$`)
	if !countdown.MatchString(shown.String()) {
		t.Errorf("a wait of most of an hour: %q; want 429 and the countdown", shown)
	}
}

// onCountdown is a terminal that calls a function when the countdown begins.
type onCountdown struct {
	strings.Builder
	then func()
}

func (c *onCountdown) Write(text []byte) (int, error) {
	if strings.Contains(string(text), "the button") {
		c.then()
	}
	return c.Builder.Write(text)
}

// TestNothingRunsWithoutADecision: no function with a limit runs without a decision, neither when the limiter has lost its store
// nor when there is no limiter.
func TestNothingRunsWithoutADecision(t *testing.T) {
	t.Parallel()
	var database string
	s := serve(t, exampletest.Postgres, "policies.yaml", func(o *app.Options) { database = o.DatabaseURL })
	if a := s.post(t, http.DefaultClient, "analytics", "7", ""); a.Status != http.StatusOK {
		t.Errorf("before: %+v; want 200", a)
	}
	db, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	if _, err := db.Exec(t.Context(), "ALTER TABLE journal RENAME TO lost"); err != nil {
		t.Fatal(err)
	}
	s.wantFailed(t, "without a store")
	s.hangUp()
	s.wantFailed(t, "without a limiter")
	for route, want := range map[string]int{"whoami": http.StatusOK, "nothing": http.StatusNotFound} {
		if a := s.post(t, http.DefaultClient, route, "7", ""); a.Status != want {
			t.Errorf("%s, which has no limit, without a limiter: %+v; want %d", route, a, want)
		}
	}
}

// TestAShortPauseOfTheLimiterRefusesNobody: a request that is refused because its answer is late is charged all the same, and the
// next one then finds the limit used up. So the example itself waits longer than httplimit does unless told.
func TestAShortPauseOfTheLimiterRefusesNobody(t *testing.T) {
	t.Parallel()
	nc := testenv.Connect(t, testenv.NATS(t).ClientURL())
	if _, err := nc.Subscribe(limits.SubjectConsume, func(m *nats.Msg) {
		time.AfterFunc(2*httplimit.DefaultDeadline, func() { _ = m.Respond([]byte(`{"allowed":true,"limit":1,"remaining":0}`)) })
	}); err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer((&server{limiter: limits.NewClient(nc)}).handler()) // as main has it
	t.Cleanup(web.Close)
	s := &site{url: web.URL}
	if a := s.post(t, http.DefaultClient, "admin/migrate", "7", ""); a.Status != http.StatusOK {
		t.Errorf("an answer after %s: %+v; want 200", 2*httplimit.DefaultDeadline, a)
	}
}

// TestMissingPoliciesPassNothing: a limiter that was started without the file must not let everything pass.
func TestMissingPoliciesPassNothing(t *testing.T) {
	t.Parallel()
	s := serve(t, exampletest.SQLite, "")
	s.wantFailed(t, "without policies")
}

func (s *site) wantFailed(t *testing.T, when string) {
	t.Helper()
	a := s.post(t, http.DefaultClient, "analytics", "7", "")
	if want := `{"ok":false,"error":"Rate limit check failed"}` + "\n"; a.Status != http.StatusInternalServerError || a.Body != want {
		t.Errorf("%s: %+v; want 500 %s", when, a, want)
	}
}
