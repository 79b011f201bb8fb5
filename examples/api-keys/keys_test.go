package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/examples/internal/exampletest"
	"github.com/seed503877ad/limits/httplimit"
	"github.com/seed503877ad/limits/internal/testenv"
)

// inFrontOf serves one handler with the stage for keys in front of it.
func inFrontOf(t *testing.T, work http.HandlerFunc) *site {
	t.Helper()
	nc := testenv.Connect(t, exampletest.Start(t, exampletest.SQLite, "policies.yaml"))
	program := &server{limiter: limits.NewClient(nc, limits.Timeout(exampletest.Patience)), deadline: exampletest.Patience}
	web := httptest.NewServer(program.keyed(work, httplimit.Text("GET /v1/work")))
	t.Cleanup(web.Close)
	return &site{url: web.URL, limiter: program.limiter}
}

// TestPanickingHandlerIsLogged as an error, whatever it had written before.
func TestPanickingHandlerIsLogged(t *testing.T) {
	t.Parallel()
	for name, work := range map[string]http.HandlerFunc{
		"at once":       func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"in its answer": func(w http.ResponseWriter, _ *http.Request) { reply(w, true); panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := inFrontOf(t, work)
			key, id := s.key(t, "7")
			ctx, cancel := context.WithTimeout(t.Context(), exampletest.Patience)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-API-Key", key)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
				t.Errorf("answered %s by a handler that panics", resp.Status)
			}
			s.wantLogged(t, id, http.StatusInternalServerError)
		})
	}
}

// wantLogged waits for the only line of the log, which is an error.
func (s *site) wantLogged(t *testing.T, id string, status int) {
	t.Helper()
	var traffic []limits.KeyTraffic
	exampletest.Until(t, "the request log", func() bool {
		traffic = s.usage(t, limits.ReportTraffic).Traffic
		return len(traffic) == 1
	})
	if traffic[0].Key != id || traffic[0].Errors != 1 {
		t.Errorf("traffic %+v, want one error of key %s", traffic[0], id)
	}
	if failed := s.usage(t, limits.ReportErrors).Errors; len(failed) != 1 || failed[0].Status != int64(status) {
		t.Errorf("errors %+v, want one %d", failed, status)
	}
}

// TestSentStatusIsLogged, and not informational ones before it or later ones.
func TestSentStatusIsLogged(t *testing.T) {
	t.Parallel()
	s := inFrontOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusBadGateway)
		w.WriteHeader(http.StatusOK)
	})
	key, id := s.key(t, "7")
	s.want(t, http.StatusBadGateway, "", "GET /v1/work", "X-API-Key", key)
	s.wantLogged(t, id, http.StatusBadGateway)
}

// TestAuthenticatedHandlerMayStream: http.ResponseController finds the capabilities of the connection.
func TestAuthenticatedHandlerMayStream(t *testing.T) {
	t.Parallel()
	s := inFrontOf(t, func(w http.ResponseWriter, _ *http.Request) {
		stream := http.NewResponseController(w)
		if err := stream.SetWriteDeadline(time.Now().Add(exampletest.Patience)); err != nil {
			t.Errorf("set a deadline: %v", err)
		}
		if err := stream.Flush(); err != nil {
			t.Errorf("flush: %v", err)
		}
	})
	key, _ := s.key(t, "7")
	s.want(t, http.StatusOK, "", "GET /v1/work", "X-API-Key", key)
}
