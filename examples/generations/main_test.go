package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/examples/internal/exampletest"
	"github.com/seed503877ad/limits/internal/policy"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// start returns the example's server with a limiter with a policy file.
func start(t *testing.T, store, policyFile string) *server {
	t.Helper()
	nc := testenv.Connect(t, exampletest.Start(t, store, policyFile))
	client := limits.NewClient(nc, limits.Timeout(exampletest.Patience))
	return &server{client: client, policy: "generations", deadline: exampletest.Patience}
}

// onEachStore runs test against a limiter on SQLite and on PostgreSQL, with the policies of this folder.
func onEachStore(t *testing.T, test func(t *testing.T, s *server)) {
	t.Parallel()
	file, _ := policyFile(t)
	exampletest.OnEachStore(t, func(t *testing.T, store string) { test(t, start(t, store, file)) })
}

// policyFile returns the policy file of this folder. Shortly before midnight its days are those of Tokyo instead, so that no test
// crosses the end of a day.
func policyFile(t *testing.T) (path string, zone *time.Location) {
	t.Helper()
	if now := time.Now().UTC(); now.Hour() < 23 || now.Minute() < 50 {
		return "policies.yaml", time.UTC
	}
	zone, err := time.LoadLocation("Asia/Tokyo")
	if err != nil {
		t.Fatal(err)
	}
	return exampletest.Rewrite(t, "policies.yaml", "window: day", "window: day, timezone: "+zone.String()), zone
}

// answered is an answer of the server, with the fields of all its bodies.
type answered struct {
	*httptest.ResponseRecorder
	Error     string
	Message   string
	Job       string
	Cents     int64
	RateLimit json.RawMessage
	Limits    []gauge
}

// refusal is the rateLimit of a denial.
type refusal struct {
	Type                      string
	Limit, Current, Remaining int64
	ResetAt                   time.Time
}

func do(t *testing.T, h http.Handler, method, path, user, tier string, form url.Values) answered {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("X-User", user)
	r.Header.Set("X-Tier", tier)
	a := answered{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(a, r)
	if err := json.Unmarshal(a.Body.Bytes(), &a); err != nil {
		t.Fatalf("%s %s: %d %s: %v", method, path, a.Code, a.Body, err)
	}
	return a
}

func (s *server) generate(t *testing.T, user, tier string) answered {
	t.Helper()
	return do(t, s.handler(), "POST", "/generations", user, tier, url.Values{"prompt": {"a picture"}})
}

func (s *server) use(t *testing.T, user, tier string) string {
	t.Helper()
	a := do(t, s.handler(), "GET", "/status", user, tier, nil)
	var text []string
	for _, l := range a.Limits {
		text = append(text, fmt.Sprintf("%s %d/%d %d left", l.Type, l.Current, l.Limit, l.Remaining))
	}
	return strings.Join(text, ", ")
}

// TestFirstMinute plays the first minute of a user in each tier.
func TestFirstMinute(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *server) {
		for tier, limit := range map[string]int{"FREE": 5, "PRO": 20, "ENTERPRISE": 100} {
			want := fmt.Sprintf("minute 0/%d %d left, day 0/%d %d left, money 0/100 100 left", limit, limit, limitOfDay(limit), limitOfDay(limit))
			if got := s.use(t, tier, tier); got != want {
				t.Errorf("%s: a new user: %s, want %s", tier, got, want)
			}
			if limit > 5 { // most of it at once, so that the minute does not end first on a slow machine
				request := limits.Request{Policy: "generations", Tier: tier, Attributes: map[string]string{"user": tier}, Cost: int64(limit - 5)}
				if _, err := s.client.Record(t.Context(), request); err != nil {
					t.Fatal(err)
				}
			}
			for n := limit - 4; n <= limit; n++ {
				a := s.generate(t, tier, tier)
				var shown map[string]gauge
				if err := json.Unmarshal(a.RateLimit, &shown); err != nil || a.Code != http.StatusCreated || a.Job == "" {
					t.Fatalf("%s: generation %d: %d %s", tier, n, a.Code, a.Body)
				}
				for name, most := range map[string]int{"minute": limit, "day": limitOfDay(limit)} {
					if g := shown[name]; g.Current != int64(n) || g.Limit != int64(most) || g.Remaining != int64(most-n) {
						t.Errorf("%s: generation %d shows %s %+v", tier, n, name, g)
					}
				}
			}
			s.wantDenied(t, tier, limit)
		}
		if got, want := s.use(t, "FREE", "FREE"), "minute 5/5 0 left, day 5/50 45 left, money 0/100 100 left"; got != want {
			t.Errorf("a user at the limit: %s, want %s", got, want)
		}
	})
}

func limitOfDay(minute int) int { return map[int]int{5: 50, 20: 500, 100: 5000}[minute] }

// wantDenied sends the request after the last one that the minute allows.
func (s *server) wantDenied(t *testing.T, tier string, limit int) {
	t.Helper()
	a := s.generate(t, tier, tier)
	var r refusal
	if err := json.Unmarshal(a.RateLimit, &r); err != nil || a.Code != http.StatusTooManyRequests {
		t.Fatalf("%s: past the limit: %d %s", tier, a.Code, a.Body)
	}
	var wait int
	begin := fmt.Sprintf("You've used %d/%d generations this minute. Try again in ", limit, limit)
	if _, err := fmt.Sscan(a.Header().Get("Retry-After"), &wait); err != nil || wait < 1 || wait > 60 || !strings.HasPrefix(a.Message, begin) {
		t.Errorf("%s: Retry-After %q, message %q", tier, a.Header().Get("Retry-After"), a.Message)
	}
	if r.Type != "minute" || r.Limit != int64(limit) || r.Current != int64(limit) || r.Remaining != 0 || time.Until(r.ResetAt) <= 0 {
		t.Errorf("%s: rateLimit %+v", tier, r)
	}
	iso := r.ResetAt.UTC().Format("2006-01-02T15:04:05.000Z")
	got := []string{a.Header().Get("X-RateLimit-Limit"), a.Header().Get("X-RateLimit-Remaining"), a.Header().Get("X-RateLimit-Reset")}
	if d := cmp.Diff([]string{fmt.Sprint(limit), "0", iso}, got); d != "" {
		t.Errorf("%s: headers %s", tier, d)
	}
}

// TestDailyLimit uses up the day without waiting for the minutes.
func TestDailyLimit(t *testing.T) {
	t.Parallel()
	file, zone := policyFile(t)
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := start(t, store, file)
		request := limits.Request{Policy: "generations", Attributes: map[string]string{"user": "7"}, Cost: 50}
		if _, err := s.client.Record(t.Context(), request); err != nil { // uses up the day
			t.Fatal(err)
		}
		a := s.generate(t, "7", "FREE")
		var r refusal
		if err := json.Unmarshal(a.RateLimit, &r); err != nil || a.Code != http.StatusTooManyRequests {
			t.Fatalf("50 of 50 used: %d %s", a.Code, a.Body)
		}
		if r.Type != "day" || !strings.HasPrefix(a.Message, "You've used 50/50 generations today. Try again in ") {
			t.Errorf("50 of 50 used: %s", a.Body)
		}
		if end := r.ResetAt.In(zone); end.Format(time.TimeOnly) != "00:00:00" || time.Until(end) > 24*time.Hour {
			t.Errorf("the day ends at %s, want the next midnight", end)
		}
	})
}

// TestWorkThatFailsIsNotCharged sends a request without a prompt, and looks at the status often.
func TestWorkThatFailsIsNotCharged(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *server) {
		for range 7 {
			if a := do(t, s.handler(), "POST", "/generations", "7", "FREE", nil); a.Code != http.StatusBadRequest {
				t.Fatalf("without a prompt: %d %s", a.Code, a.Body)
			}
			if got, want := s.use(t, "7", "FREE"), "minute 0/5 5 left, day 0/50 50 left, money 0/100 100 left"; got != want {
				t.Errorf("after work that failed: %s, want %s", got, want)
			}
		}
	})
}

// TestStatusCountsAsNoDenial has a user change to a tier with a limit below what was used. Looking at the status counts as no
// denial: the one attempt is the only denial.
func TestStatusCountsAsNoDenial(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *server) {
		request := limits.Request{Policy: "generations", Tier: "ENTERPRISE", Attributes: map[string]string{"user": "7"}, Cost: 60}
		if _, err := s.client.Record(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		for tier, want := range map[string]string{"ENTERPRISE": "day 60/5000 4940 left", "PRO": "day 60/500 440 left", "FREE": "day 50/50 0 left"} {
			for range 5 {
				if got := s.use(t, "7", tier); !strings.HasPrefix(got, "minute ") || !strings.Contains(got, want) {
					t.Errorf("60 used, now %s: %s, want a minute and %s", tier, got, want)
				}
			}
		}
		if _, err := s.client.SetOverride(t.Context(), limits.SetOverrideRequest{
			OverrideID: limits.OverrideID{Policy: "generations", Name: "day", Subject: "generations:8"}, Limit: 70, Reason: "a test",
		}); err != nil {
			t.Fatal(err)
		}
		exampletest.Until(t, "the override", func() bool { return strings.Contains(s.use(t, "8", "FREE"), "day 0/70 70 left") })
		if a := s.generate(t, "7", "FREE"); a.Code != http.StatusTooManyRequests {
			t.Fatalf("60 used of 50: %d %s", a.Code, a.Body)
		}
		var top *limits.Top
		exampletest.Until(t, "a denial in the usage", func() bool {
			var err error
			if top, err = s.client.Top(t.Context(), limits.TopRequest{By: limits.ByDenied, Period: "1h"}); err != nil {
				t.Fatal(err)
			}
			return len(top.Rows) > 0
		})
		if len(top.Rows) != 1 || top.Rows[0].User != "7" || top.Rows[0].Denied != 1 {
			t.Errorf("denied: %+v, want one denial of user 7", top.Rows)
		}
	})
}

// TestMinuteResets shortens the minute to a second.
func TestMinuteResets(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := start(t, store, exampletest.Rewrite(t, "policies.yaml", "window: 1m", "window: 1s", "limit: 5,", "limit: 1,"))
		denied := s.generate(t, "7", "FREE")
		for n := 1; denied.Code == http.StatusCreated && n < 49; n++ { // on a slow machine the window may end
			denied = s.generate(t, "7", "FREE")
		}
		if denied.Code != http.StatusTooManyRequests {
			t.Fatalf("1 a second: never denied, in the end %d %s", denied.Code, denied.Body)
		}
		exampletest.Until(t, "a generation in the next second", func() bool { return s.generate(t, "7", "FREE").Code == http.StatusCreated })
	})
}

// TestRenderIsChargedItsActualCost reserves 30 cents for each render and charges what it cost.
func TestRenderIsChargedItsActualCost(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *server) {
		render := func(cents string) answered {
			t.Helper()
			return do(t, s.handler(), "POST", "/renders", "7", "FREE", url.Values{"cents": {cents}})
		}
		for _, step := range []struct {
			cents string
			code  int
			left  int
		}{
			{"30", 201, 70}, {"12", 201, 58}, {"0", 201, 58}, {"31", 400, 58}, {"-1", 400, 58}, {"x", 400, 58},
			{"29", 201, 29}, {"1", 429, 29}, // fewer than 30 remain to reserve
		} {
			a := render(step.cents)
			want := fmt.Sprintf("money %d/100 %d left", 100-step.left, step.left)
			if got := s.use(t, "7", "FREE"); a.Code != step.code || !strings.Contains(got, want) {
				t.Errorf("a render for %s: %d %s, then %s, want %d and %s", step.cents, a.Code, a.Body, got, step.code, want)
			}
		}
	})
}

// TestRenderIsSettled even if its client closes its half of the connection, or if the middleware got no answer in time although the
// limiter had reserved the cost.
func TestRenderIsSettled(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *server) {
		request := func(ctx context.Context, user string) *http.Request {
			r := httptest.NewRequestWithContext(ctx, "POST", "/renders", strings.NewReader("cents=12"))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("X-User", user)
			return r
		}
		ended, end := context.WithCancel(t.Context())
		end()
		w := httptest.NewRecorder()
		if s.handler().ServeHTTP(w, request(ended, "half closed")); w.Code != http.StatusCreated {
			t.Errorf("half closed: %d %s", w.Code, w.Body)
		}
		if _, err := s.client.Consume(t.Context(), limits.Request{Policy: "money", Attributes: map[string]string{"user": "late"},
			Cost: maxCents, ID: "job-7"}); err != nil {
			t.Fatal(err)
		}
		for user, job := range map[string]string{"late": "job-7", "never reserved": "job-8"} {
			w, r := httptest.NewRecorder(), request(t.Context(), user)
			r.Header.Set("X-Job", job)
			if s.render(w, r); w.Code != http.StatusCreated {
				t.Errorf("%s: %d %s", user, w.Code, w.Body)
			}
		}
		for user, want := range map[string]int{"half closed": 12, "late": 12, "never reserved": 0} {
			if got := s.use(t, user, "FREE"); !strings.Contains(got, fmt.Sprintf("money %d/100", want)) {
				t.Errorf("%s: %s, want %d cents", user, got, want)
			}
		}
	})
}

// TestNoRenderWithoutADecision: after the deadline other requests pass, but work that costs money does not.
func TestNoRenderWithoutADecision(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *server) {
		hurried := *s
		hurried.deadline = 1
		if w := do(t, hurried.handler(), "POST", "/renders", "7", "FREE", url.Values{"cents": {"30"}}); w.Code != http.StatusServiceUnavailable {
			t.Errorf("a render that nobody decided on: %d %s", w.Code, w.Body)
		}
		if w := do(t, hurried.handler(), "POST", "/generations", "7", "FREE", url.Values{"prompt": {"cat"}}); w.Code != http.StatusCreated {
			t.Errorf("a generation that nobody decided on: %d %s", w.Code, w.Body)
		}
	})
}

// TestSimultaneousRequests reserves 100 times concurrently for each kind of limit. Exactly as many pass as the limit allows.
func TestSimultaneousRequests(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *server) {
		for name, tt := range map[string]struct {
			request limits.Request
			want    int64
		}{
			"a minute, FREE":       {limits.Request{Policy: "generations"}, 5},
			"a minute, PRO":        {limits.Request{Policy: "generations", Tier: "PRO"}, 20},
			"a minute, ENTERPRISE": {limits.Request{Policy: "generations", Tier: "ENTERPRISE"}, 100},
			"a burst":              {limits.Request{Policy: "generations-burst"}, 10},
			"money":                {limits.Request{Policy: "money", Cost: 3}, 33},
		} {
			tt.request.Attributes = map[string]string{"user": name}
			if passed := exampletest.AllowedAtOnce(t, 100, s.client, tt.request); passed != tt.want {
				t.Errorf("%s: %d of 100 passed, want %d", name, passed, tt.want)
			}
		}
		h := s.handler()
		passed := exampletest.AtOnce(100, func(int) bool {
			return do(t, h, "POST", "/renders", "at once", "FREE", url.Values{"cents": {"30"}}).Code == http.StatusCreated
		})
		if passed != 3 {
			t.Errorf("renders for 30 cents: %d of 100 passed, want 3", passed)
		}
	})
}

// TestBurst allows 10 at once, and the eleventh in a minute.
func TestBurst(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *server) {
		s.policy = "generations-burst"
		for n := range 10 {
			if a := s.generate(t, "7", "FREE"); a.Code != http.StatusCreated {
				t.Fatalf("generation %d: %d %s", n+1, a.Code, a.Body)
			}
		}
		a := s.generate(t, "7", "FREE")
		var wait int
		fmt.Sscan(a.Header().Get("Retry-After"), &wait)
		if a.Code != http.StatusTooManyRequests || wait < 1 || wait > 60 || !strings.HasPrefix(a.Message, "You've used 10/10 ") {
			t.Errorf("the eleventh: %d %s, Retry-After %d, want one after a minute at most", a.Code, a.Body, wait)
		}
		// One comes back each minute, so all ten are there again after ten minutes.
		reset, err := time.Parse(time.RFC3339, a.Header().Get("X-RateLimit-Reset"))
		if left := time.Until(reset); err != nil || left <= 9*time.Minute || left > 10*time.Minute {
			t.Errorf("the burst is whole again in %s (%v), want nearly 10 minutes", left, err)
		}
	})
}

// TestAJobTellsWhatTheStatusTells: the state in its answer, which is of before its charge, includes the job. A reset that the job
// changes is left out.
func TestAJobTellsWhatTheStatusTells(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *server) {
		for s.policy = range map[string]int{"generations": 0, "generations-burst": 0} {
			for n := range 2 {
				var told map[string]gauge
				if err := json.Unmarshal(s.generate(t, "7", "FREE").RateLimit, &told); err != nil || len(told) != 2 {
					t.Fatalf("%s: %v, %v", s.policy, told, err)
				}
				for _, want := range do(t, s.handler(), "GET", "/status", "7", "FREE", nil).Limits {
					got, ok := told[want.Type]
					if ok && got.ResetAt.IsZero() {
						want.ResetAt = got.ResetAt
					}
					if ok && got != want {
						t.Errorf("%s: job %d tells %+v, and the status %+v", s.policy, n+1, got, want)
					}
				}
			}
		}
	})
}

// TestOffPeak resolves the policy at noon and at night.
func TestOffPeak(t *testing.T) {
	t.Parallel()
	set, err := policy.Load("policies.yaml", policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		at, tier    string
		minute, day int64
	}{
		{"12:00", "", 5, 50}, {"21:59", "", 5, 50}, {"22:00", "", 10, 100}, {"05:59", "", 10, 100}, {"06:00", "", 5, 50},
		{"23:00", "PRO", 40, 1000}, {"23:00", "ENTERPRISE", 200, 10000},
	} {
		now, err := time.Parse("15:04", tt.at)
		if err != nil {
			t.Fatal(err)
		}
		r, err := set.Resolve(policy.Question{Policy: "generations-offpeak", Tier: tt.tier, Now: now, Attributes: map[string]string{"user": "7"}})
		if err != nil || len(r.Limits) != 2 || r.Limits[0].Limit != tt.minute || r.Limits[1].Limit != tt.day {
			t.Errorf("%s at %s: %+v, %v, want %d and %d", tt.tier, tt.at, r.Limits, err, tt.minute, tt.day)
		}
	}
}

// TestOperators asks for heavy users and active counters.
func TestOperators(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *server) {
		for user, n := range map[string]int{"light": 1, "heavy": 4} {
			for range n {
				s.generate(t, user, "FREE")
			}
		}
		request := limits.TopRequest{By: limits.ByUsed, Period: "7d", Policy: "generations"}
		var top *limits.Top
		exampletest.Until(t, "two users in the usage", func() (done bool) {
			var err error
			if top, err = s.client.Top(t.Context(), request); err != nil {
				t.Fatal(err)
			}
			return len(top.Rows) == 2
		})
		if top.Rows[0].User != "heavy" || top.Rows[0].Key != "generations:heavy" {
			t.Errorf("heavy users: %+v", top.Rows)
		}
		active := 0
		for counter, err := range s.client.All(t.Context(), "generations:") {
			if err != nil {
				t.Fatal(err)
			}
			if counter.Policy == "generations" {
				active++
			}
		}
		if active != 4 { // two users, a minute and a day each
			t.Errorf("%d active counters, want 4", active)
		}
	})
}

// TestHostileRequests sends invalid users and tiers.
func TestHostileRequests(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *server) {
		for _, path := range []string{"/status", "/generations", "/renders"} {
			method := map[bool]string{true: "GET", false: "POST"}[path == "/status"]
			if a := do(t, s.handler(), method, path, strings.Repeat("u", 300), "FREE", nil); a.Code != http.StatusBadRequest || a.Error == "" {
				t.Errorf("%s with a user of 300 bytes: %d %s", path, a.Code, a.Body)
			}
		}
		r := httptest.NewRequest("POST", "/generations", bytes.NewBufferString("prompt=x"))
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		w := httptest.NewRecorder()
		if s.handler().ServeHTTP(w, r); w.Code != http.StatusForbidden {
			t.Errorf("from another site: %d %s", w.Code, w.Body)
		}
	})
}
