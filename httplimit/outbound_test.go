package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/httplimit"
	"github.com/seed503877ad/limits/internal/app/apptest"
	"github.com/seed503877ad/limits/internal/testenv"
)

// Two clients, like two processes, share one limit, and the server never gets more than it allows in any window.
func TestOutboundClientsShareTheLimit(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var seen []time.Time
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, time.Now())
	}))
	defer server.Close()
	const each, limit, window = 4, 4, 500 * time.Millisecond
	turn := limits.Per(key(t), limit, window.String())
	turn.ID = "must not be used: each request is charged"
	var wg sync.WaitGroup
	began := time.Now()
	for range 2 {
		client := &http.Client{Transport: httplimit.Outbound(dial(t, natsURL), turn, nil)}
		for range each {
			wg.Go(func() {
				resp, err := client.Get(server.URL)
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
			})
		}
	}
	wg.Wait()
	if len(seen) != 2*each {
		t.Fatalf("the server saw %d requests, want %d", len(seen), 2*each)
	}
	// No charge is older than the start, and the limiter's clock counts milliseconds.
	if after := seen[limit].Sub(began); after < window-time.Millisecond {
		t.Errorf("request %d came %v after the start, want %v or more", limit+1, after, window)
	}
}

func TestOutboundSendsNothingOutOfTurn(t *testing.T) {
	t.Parallel()
	send := func(url string, cost int64) (sent int, closed bool, err error) {
		turn := limits.Per(key(t), 1, "1h")
		turn.Cost = cost
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		defer cancel()
		open := 1
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://api.example/", closing{strings.NewReader("x"), &open})
		_, err = httplimit.Outbound(dial(t, url), turn, serverFunc(func(*http.Request) *http.Response {
			sent++
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(""))}
		})).RoundTrip(req)
		return sent, open == 0, err
	}
	if sent, closed, err := send(natsURL, 1); sent != 1 || !closed || err != nil {
		t.Errorf("in turn: sent %d, body closed %v, error %v", sent, closed, err)
	}
	if sent, closed, err := send(natsURL, 1); sent != 0 || !closed || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("out of turn: sent %d, body closed %v, error %v", sent, closed, err)
	}
	if sent, closed, err := send(natsURL, 2); sent != 0 || !closed || !errors.Is(err, limits.ErrNeverFits) {
		t.Errorf("never: sent %d, body closed %v, error %v", sent, closed, err)
	}
	var e *limits.Error
	if sent, closed, err := send(testenv.NATS(t).ClientURL(), 1); sent != 0 || !closed || !errors.As(err, &e) || e.Code != limits.CodeUnavailable {
		t.Errorf("without a limiter: sent %d, body closed %v, error %v", sent, closed, err)
	}
	away, _ := silentService(t, limits.SubjectConsume, `{"allowed":true,"degraded":true,"key":"k","name":"1h","limit":1,"remaining":1}`)
	if sent, closed, err := send(away, 1); sent != 0 || !closed || !errors.As(err, &e) || e.Code != limits.CodeUnavailable {
		t.Errorf("without the store: sent %d, body closed %v, error %v", sent, closed, err)
	}
}

// If no policy fits, for example because of a typing error, requests must not be sent without a limit. A named policy that is
// unlimited is intended. The answer does not tell the two apart, so the error mentions both.
func TestOutboundRefusesUnlimitedRequests(t *testing.T) {
	t.Parallel()
	c := limits.NewClient(apptest.Serve(t, t.TempDir(), `policies: [{name: weather, match: {upstream: weather}, tiers: {batch: {minute: {limit: unlimited}}},
		limits: [{name: minute, key: "outbound:{upstream}", limit: 60, window: 1m}]}]`))
	send := func(policy, upstream, tier string) (sent int, err error) {
		turn := limits.Request{Policy: policy, Attributes: map[string]string{upstream: "weather"}, Tier: tier}
		req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://api.example/", nil)
		_, err = httplimit.Outbound(c, turn, serverFunc(func(*http.Request) *http.Response {
			sent++
			return &http.Response{StatusCode: 200, Body: http.NoBody}
		})).RoundTrip(req)
		return sent, err
	}
	check := func(what string, limited bool, upstream, tier string) {
		t.Helper()
		var e *limits.Error
		sent, err := send("", upstream, tier)
		switch {
		case limited && (sent != 1 || err != nil):
			t.Errorf("%s: sent %d, error %v", what, sent, err)
		case !limited && (sent != 0 || !errors.As(err, &e) || e.Code != limits.CodeUnknownPolicy || !strings.Contains(err.Error(), "or those that match are unlimited now")):
			t.Errorf("%s: sent %d, error %v; want nothing sent, and both that may be", what, sent, err)
		}
		if sent, err := send("weather", "upstream", tier); sent != 1 || err != nil {
			t.Errorf("%s, by name: sent %d, error %v", what, sent, err)
		}
	}
	check("limited", true, "upstream", "")
	check("mistyped", false, "upstraem", "")
	check("an unlimited tier", false, "upstream", "batch")
	lifted := limits.OverrideID{Policy: "weather", Name: "minute", Subject: "outbound:weather"}
	if _, err := c.SetOverride(t.Context(), limits.SetOverrideRequest{OverrideID: lifted, Unlimited: true, Reason: "a migration"}); err != nil {
		t.Fatal(err)
	}
	check("lifted by an override", false, "upstream", "")
}

// A turn that would come too late is a timeout for callers that check errors like those of package net and http.Client. Other
// errors are not.
func TestTurnAfterDeadlineIsTimeout(t *testing.T) {
	t.Parallel()
	get := func(turn limits.Request) error {
		api := &http.Client{Timeout: patient, Transport: httplimit.Outbound(dial(t, natsURL), turn, serverFunc(func(*http.Request) *http.Response {
			return &http.Response{StatusCode: 200, Body: http.NoBody}
		}))}
		_, err := api.Get("http://api.example/")
		return err
	}
	turn := limits.Per(key(t), 1, "1h")
	if err := get(turn); err != nil {
		t.Fatal(err)
	}
	err := get(turn)
	var failed *url.Error
	if !errors.As(err, &failed) || !failed.Timeout() || !os.IsTimeout(err) || !os.IsTimeout(failed.Err) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("too far off: %v is no timeout", err)
	}
	turn.Cost = 2
	if err := get(turn); err == nil || os.IsTimeout(err) {
		t.Errorf("never: %v, want an error that is no timeout", err)
	}
}

// Middleware and Transport work together: the client retries when the server said, and passes.
func TestTransportAgainstTheMiddleware(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(httplimit.Middleware(dial(t, natsURL), httplimit.Config{
		Limits: inline(t, 1, "2s"), Deadline: patient, FailClosed: true,
	})(hello))
	defer server.Close()
	retries := 0
	client := &http.Client{Transport: &httplimit.Transport{OnRetry: func(resp *http.Response, _ time.Time) {
		if retries++; resp.Header.Get("Retry-After") == "" {
			t.Errorf("headers %v", resp.Header)
		}
	}}}
	for i := range 2 {
		resp, err := client.Post(server.URL, "text/plain", strings.NewReader("work"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("request %d: status %d", i, resp.StatusCode)
		}
	}
	if retries != 1 {
		t.Errorf("%d retries, want 1", retries)
	}
}
