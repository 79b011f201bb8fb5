package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/examples/internal/exampletest"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// site is the example's server behind a proxy on this machine, with a limiter of its own.
type site struct {
	url     string
	limiter *limits.Client
	hangUp  func() // cuts the server off from its limiter
}

func serve(t *testing.T, store, policies string) *site {
	t.Helper()
	nc := testenv.Connect(t, exampletest.Start(t, store, policies))
	s := &site{limiter: limits.NewClient(nc, limits.Timeout(exampletest.Patience)), hangUp: nc.Close}
	// The deadline is long, so that a busy machine does not fail the test.
	web := httptest.NewServer(handler(s.limiter, exampletest.Patience, []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}))
	t.Cleanup(web.Close)
	s.url = web.URL
	return s
}

type answer = exampletest.Answer

func (s *site) post(t *testing.T, ip, body string) answer {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, s.url+"/signup", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Forwarded-For", ip)
	return exampletest.Send(t, http.DefaultClient, req)
}

func (s *site) signUp(t *testing.T, ip, email string) answer {
	t.Helper()
	return s.post(t, ip, fmt.Sprintf(`{"email":%q}`, email))
}

// used returns what is charged to each limit, by its name, and all stored keys.
func (s *site) used(t *testing.T) (used map[string]int64, keys []string) {
	t.Helper()
	used = map[string]int64{}
	for counter, err := range s.limiter.All(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(counter.Key, "limits.alerts:user:") {
			continue // charged by the alerter inside the limiter, for the alert about the flood
		}
		used[counter.Name] += counter.Used
		keys = append(keys, counter.Key)
	}
	return used, keys
}

// TestScript posts the same e-mail address four times: the fourth is denied, and not charged.
func TestScript(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := serve(t, store, "policies.yaml")
		for i, email := range []string{"a@b.example", "A@B.example", " <a@b.Example> "} {
			a := s.signUp(t, "203.0.113.9", email)
			if want := fmt.Sprintf(`"current":%d,"limit":3`, i+1); a.Status != http.StatusOK || !strings.Contains(a.Body, want) {
				t.Errorf("%s: %+v; want 200 with %s", email, a, want)
			}
		}
		checkDenial(t, s.signUp(t, "203.0.113.9", "a@b.example"))
		used, keys := s.used(t)
		if used["email"] != 3 || used["ip"] != 3 || used["global"] != 3 {
			t.Errorf("used %v; want 3 of each, the denial charged to none", used)
		}
		s.wantTiers(t)
		for _, key := range keys {
			if strings.Contains(key, "203.0") || strings.Contains(strings.ToLower(key), "b.example") {
				t.Errorf("key %s holds an address in clear", key)
			}
		}
		// The client's address has two left for any e-mail address. Then it denies.
		for i, want := range []int{200, 200, 429} {
			if a := s.signUp(t, "203.0.113.9", fmt.Sprintf("%d@b.example", i)); a.Status != want {
				t.Errorf("request %d of the address: %+v; want %d", i+4, a, want)
			}
		}
		if a := s.signUp(t, "203.0.113.10", "new@b.example"); a.Status != http.StatusOK {
			t.Errorf("another address: %+v", a)
		}
	})
}

// wantTiers checks the limit and the window of all three.
func (s *site) wantTiers(t *testing.T) {
	t.Helper()
	want := map[string]string{
		"global": "1000 in 60s, sliding_window", "ip": "5 in 60s, sliding_window", "email": "3 in 60m, sliding_window",
	}
	for c, err := range s.limiter.All(t.Context(), "signup") {
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%d in %s, %s", c.Limit, c.Window, c.Algorithm); got != want[c.Name] {
			t.Errorf("limit %q is %s; want %s", c.Name, got, want[c.Name])
		}
		delete(want, c.Name)
	}
	if len(want) > 0 {
		t.Errorf("no counter of %v", want)
	}
}

// checkDenial compares a denial by the limit of the e-mail address with what clients expect.
func checkDenial(t *testing.T, a answer) {
	t.Helper()
	var body struct {
		Error struct {
			Code, Message string
			RetryAfter    int64
		}
	}
	if err := json.Unmarshal([]byte(a.Body), &body); err != nil {
		t.Fatalf("%+v: %v", a, err)
	}
	if a.Status != http.StatusTooManyRequests || body.Error.Code != "RATE_LIMIT_EXCEEDED" ||
		!strings.HasPrefix(body.Error.Message, "Please wait ") || !strings.HasSuffix(body.Error.Message, " before trying again.") {
		t.Errorf("refusal %+v", a)
	}
	wait, err := strconv.ParseInt(a.Header.Get("Retry-After"), 10, 64)
	if err != nil || wait != body.Error.RetryAfter || wait < 59*60 || wait > 61*60 {
		t.Errorf("Retry-After %q and retryAfter %d; want one number of about an hour", a.Header.Get("Retry-After"), body.Error.RetryAfter)
	}
	reset, err := strconv.ParseInt(a.Header.Get("X-RateLimit-Reset"), 10, 64)
	if left := time.Until(time.Unix(reset, 0)); err != nil || left < 59*time.Minute || left > 62*time.Minute {
		t.Errorf("X-RateLimit-Reset %q; want Unix seconds, about an hour from now", a.Header.Get("X-RateLimit-Reset"))
	}
	if a.Header.Get("X-RateLimit-Limit") != "3" || a.Header.Get("X-RateLimit-Remaining") != "0" {
		t.Errorf("headers %v", a.Header)
	}
}

// TestAddresses: writing an address in another way, or claiming another one, is no way around the limit.
func TestAddresses(t *testing.T) {
	t.Parallel()
	s := serve(t, exampletest.SQLite, "policies.yaml")
	for i, ip := range []string{"2001:db8:1:2::1", "2001:db8:1:2::ffff", "2001:0DB8:1:2:3:4:5:6", "198.51.100.1, 2001:db8:1:2::1",
		"unknown, 2001:db8:1:2::7"} {
		if a := s.signUp(t, ip, fmt.Sprintf("%d@b.example", i)); a.Status != http.StatusOK {
			t.Errorf("%s: %+v", ip, a)
		}
	}
	if a := s.signUp(t, "2001:db8:1:2:9::9", "6@b.example"); a.Status != http.StatusTooManyRequests {
		t.Errorf("the sixth from one /64: %+v; want 429", a)
	}
}

// TestBadForms: an invalid form charges nothing.
func TestBadForms(t *testing.T) {
	t.Parallel()
	s := serve(t, exampletest.SQLite, "policies.yaml")
	for _, body := range []string{``, `{}`, `[]`, `{"email":"nobody"}`, `{"email":7}`, `{"email":"` + strings.Repeat("a", 300) + `@b.example"}`,
		`{"email":"` + strings.Repeat("a", 5000) + `@b.example"}`} {
		if a := s.post(t, "203.0.113.9", body); a.Status != http.StatusBadRequest {
			t.Errorf("%.40s: %+v; want 400", body, a)
		}
	}
	if used, _ := s.used(t); len(used) != 0 {
		t.Errorf("used %v; want nothing", used)
	}
}

// TestConcurrentRequests sends 100 concurrent requests for each of the small limits. Exactly as many pass as the limit allows.
func TestConcurrentRequests(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := serve(t, store, "policies.yaml")
		byEmail := exampletest.AtOnce(100, func(i int) bool {
			return s.signUp(t, fmt.Sprintf("198.51.100.%d", i), "one@b.example").Status == http.StatusOK
		})
		if byEmail != 3 {
			t.Errorf("%d of 100 simultaneous requests of one e-mail passed; want 3", byEmail)
		}
		byIP := exampletest.AtOnce(100, func(i int) bool {
			return s.signUp(t, "203.0.113.9", fmt.Sprintf("%d@b.example", i)).Status == http.StatusOK
		})
		if byIP != 5 {
			t.Errorf("%d of 100 simultaneous requests of one address passed; want 5", byIP)
		}
		if used, _ := s.used(t); used["global"] != 8 {
			t.Errorf("used %v; want 8 for all, what passed", used)
		}
	})
}

// TestFlood sends 10,000 requests, each with other addresses. Exactly as many pass as the global limit allows, and no more is stored
// than for those, since a denial stores nothing. The windows are long enough for a slow machine.
func TestFlood(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := serve(t, store, exampletest.Rewrite(t, "policies.yaml", "window: 60s", "window: 1h"))
		var passed int64
		for batch := range 100 {
			passed += exampletest.AtOnce(100, func(i int) bool {
				reply := s.consume(t, batch, i)
				return reply.Allowed && !reply.Degraded // a slow machine may miss the deadline of a request
			})
		}
		used, keys := s.used(t)
		if passed != 1000 || used["global"] != 1000 || len(keys) != 1+2*1000 {
			t.Errorf("%d of 10,000 requests passed, %d used, %d counters; want 1000, 1000 and 2001", passed, used["global"], len(keys))
		}
	})
}

// consume asks for a decision about addresses that nobody has used.
func (s *site) consume(t *testing.T, batch, i int) *limits.Reply {
	reply, err := s.limiter.Consume(t.Context(), limits.Request{Policy: "signup", Attributes: map[string]string{
		"ip": fmt.Sprintf("10.0.%d.%d", batch, i), "email": fmt.Sprintf("%d.%d@b.example", batch, i),
	}})
	if err != nil {
		t.Error(err)
		return new(limits.Reply)
	}
	return reply
}

// TestTheWindowSlides: a charge leaves the window with its bucket, a retry at the time that the denial gave passes, and none passes
// earlier.
func TestTheWindowSlides(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := serve(t, store, exampletest.Rewrite(t, "policies.yaml", "limit: 5, window: 60s", "limit: 5, window: 500ms", "limit: 3, window: 60m",
			"limit: 1000000, window: 60m"))
		request := limits.Request{Policy: "signup", Attributes: map[string]string{"ip": "203.0.113.9", "email": "a@b.example"}}
		asked, denied := s.untilDenied(t, request)
		s.wantDeniedUntil(t, request, asked.Truncate(time.Millisecond).Add(denied.RetryIn())) // the store's clock has milliseconds
		exampletest.Until(t, "every charge has left", func() bool {
			reply, err := s.limiter.Check(t.Context(), request)
			return err == nil && reply.Name == "ip" && reply.Remaining == 5
		})
		_, denied = s.untilDenied(t, request)
		<-time.After(denied.RetryIn()) // counted from the answer, which is a little later than the decision
		if reply, err := s.limiter.Consume(t.Context(), request); err != nil || !reply.Allowed {
			t.Errorf("at the time that was told: %+v, %v; want it allowed", reply, err)
		}
	})
}

// wantDeniedUntil checks repeatedly, charging nothing, that the request is denied before free.
func (s *site) wantDeniedUntil(t *testing.T, request limits.Request, free time.Time) {
	t.Helper()
	for end := time.Now().Add(exampletest.Patience); time.Now().Before(end); {
		reply, err := s.limiter.Check(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		if answered := time.Now(); reply.Allowed {
			if answered.Before(free) {
				t.Errorf("allowed %s before the time that was told", free.Sub(answered))
			}
			return
		}
	}
	t.Error("never allowed again")
}

// untilDenied charges until a denial. It returns when the denied request was sent.
func (s *site) untilDenied(t *testing.T, request limits.Request) (asked time.Time, denied *limits.Reply) {
	t.Helper()
	for end := time.Now().Add(exampletest.Patience); time.Now().Before(end); {
		asked = time.Now()
		reply, err := s.limiter.Consume(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		if !reply.Allowed {
			return asked, reply
		}
	}
	t.Fatal("never denied")
	return asked, nil
}

// TestNothingPassesWithoutADecision: a burst makes answers late, and a request that passed because of that would not be counted.
func TestNothingPassesWithoutADecision(t *testing.T) {
	t.Parallel()
	s := serve(t, exampletest.SQLite, "policies.yaml")
	late := httptest.NewServer(handler(s.limiter, 1, nil))
	defer late.Close()
	hurried := *s
	hurried.url = late.URL
	hurried.wantUndecided(t, "an answer that is late")
	s.hangUp()
	s.wantUndecided(t, "no limiter")
}

func (s *site) wantUndecided(t *testing.T, when string) {
	t.Helper()
	a := s.signUp(t, "203.0.113.9", "a@b.example")
	if a.Status != http.StatusServiceUnavailable || !strings.Contains(a.Body, `"code":"RATE_LIMIT_CHECK_FAILED"`) {
		t.Errorf("%s: %+v; want 503", when, a)
	}
}

// TestAFormThatDoesNotEndIsCutOff: its limits are decided when it has been read, so without a timeout anybody could hold any number of
// connections for ever.
func TestAFormThatDoesNotEndIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		web := newServer("", handler(limits.NewClient(nil), time.Second, nil))
		defer web.Close()
		accepted := make(oneConn, 1)
		accepted <- theirs
		go web.Serve(accepted)
		began := time.Now()
		if _, err := io.WriteString(ours, "POST /signup HTTP/1.1\r\nHost: a.example\r\nContent-Length: 100\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
		_ = ours.SetReadDeadline(began.Add(time.Hour))
		if answer, err := io.ReadAll(ours); err != nil || time.Since(began) > 10*time.Second {
			t.Errorf("held for %s (%v): %s", time.Since(began), err, answer)
		}
	})
}

// oneConn is a listener that accepts the connection in it.
type oneConn chan net.Conn

func (l oneConn) Accept() (net.Conn, error) {
	if conn, ok := <-l; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (oneConn) Addr() net.Addr { return &net.TCPAddr{} }

func (l oneConn) Close() error {
	close(l)
	return nil
}

func TestNetworks(t *testing.T) {
	t.Parallel()
	if all, err := networks("10.0.0.0/8, fd00::/8,"); err != nil || len(all) != 2 {
		t.Errorf("networks %v, %v", all, err)
	}
	if _, err := networks("10.0.0.1"); err == nil {
		t.Error("an address without a length is taken for a network")
	}
}
