// Command api-keys serves an API with API keys: each key has a rate limit, each user has quotas, and every request is logged.
// Browser sessions are exempt from all of that. The limits are in policies.yaml.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/httplimit"
)

func main() {
	natsURL := flag.String("nats-url", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "where the limiter listens (NATS_URL)")
	addr := flag.String("addr", cmp.Or(os.Getenv("ADDR"), "127.0.0.1:8000"), "where to serve HTTP (ADDR)")
	flag.Parse()
	nc, err := nats.Connect(*natsURL, limits.Reconnect())
	if err != nil {
		log.Fatalf("connect to the limiter: %v", err)
	}
	if !nc.IsConnected() {
		log.Printf("no limiter at %s yet; start it with: go run ./cmd/limiter --policies examples/api-keys/policies.yaml", nc.Servers())
	}
	s := &server{
		limiter:       limits.NewClient(nc),
		deadline:      httplimit.DefaultDeadline,
		sessionSecret: []byte(os.Getenv("SESSION_SECRET")),
	}
	log.Printf("serving on http://%s", *addr)
	log.Fatal((&http.Server{Addr: *addr, Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second}).ListenAndServe())
}

type server struct {
	limiter       *limits.Client
	deadline      time.Duration // of one request to the limiter
	sessionSecret []byte        // signs the tokens of browser sessions; if it is empty, there are none
}

// handler combines the stages: the key and its rate, the user's quota, the work, the log.
func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/bulk-enrich", s.bulkEnrich)
	for _, endpoint := range []string{"POST /v1/discovery/enrich", "GET /v1/discovery/prospects", "GET /v1/goldilocks",
		"GET /v1/recommendations", "POST /v1/ranking/calculate", "GET /v1/contacts/{id}"} {
		mux.HandleFunc(endpoint, func(w http.ResponseWriter, _ *http.Request) { reply(w, map[string]any{"ok": true}) })
	}
	mux.HandleFunc("GET /v1/broken", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) })
	quota := httplimit.Middleware(s.limiter, httplimit.Config{
		Attributes: map[string]httplimit.Attribute{
			"user":     func(r *http.Request) string { return userOf(r.Context()) },
			"endpoint": httplimit.RouteIn(mux),
		},
		// The quota is charged after the work, and the charge neither delays the response nor makes it fail.
		Mode:         httplimit.CheckThenRecord,
		ChargeBehind: true,
		Deadline:     s.deadline,
		Headers:      []httplimit.Headers{whenDenied},
		Body:         httplimit.JSONQuota,
	})
	keys := s.keyed(quota(mux), httplimit.RouteIn(mux))
	credential := httplimit.Credential("X-API-Key")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if credential(r) != "session" {
			keys.ServeHTTP(w, r)
		} else if user := sessionUser(r, s.sessionSecret); user != "" {
			mux.ServeHTTP(w, withSessionUser(user, r))
		} else {
			refuse(w, http.StatusUnauthorized, "session invalid")
		}
	})
}

// whenDenied sets the headers of the quota only on denials. Other responses keep the headers of the key's rate.
func whenDenied(h http.Header, a *httplimit.Answer) {
	if a.Denied() {
		httplimit.XRateLimitUnix(h, a)
	}
}

// maxMatches bounds one import, since each match is a request to the limiter.
const maxMatches = 1000

// bulkEnrich raises an alert for each match, but not twice for the same match, and at most 20 per hour for a user.
func (s *server) bulkEnrich(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Matches []string `json:"matches"`
	}
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	if err := body.Decode(&in); err != nil || len(in.Matches) > maxMatches {
		refuse(w, http.StatusBadRequest, fmt.Sprintf(`want {"matches":["…"]}, at most 64 KiB and %d of them`, maxMatches))
		return
	}
	alerts := s.raise(r.Context(), userOf(r.Context()), in.Matches)
	reply(w, map[string]any{"ok": true, "matches": len(in.Matches), "alerts": alerts})
}

// raise returns how many alerts were sent. Without a decision no alert is sent, because nothing would remove duplicates or count
// to 20, and an import could send hundreds. The import itself is done nevertheless. An error is logged once per import.
func (s *server) raise(ctx context.Context, user string, matches []string) (alerts int) {
	logged := false
	for _, match := range matches {
		allowed, err := s.mayAlert(ctx, user, match)
		if err != nil {
			if !logged {
				logged = true
				log.Printf("no alert for user %q, match %q: %v; further failures of this import are not logged", user, match, err)
			}
			// Below 500 the error may be about this match. Any other error would occur for the next matches, too.
			if e, ok := errors.AsType[*limits.Error](err); !ok || e.Status >= http.StatusInternalServerError {
				break
			}
		} else if allowed {
			alerts++ // send the alert here
		}
	}
	return alerts
}

// mayAlert does not end with the context of the request, and neither does httplimit. The limits.Client has a timeout of its
// own.
func (s *server) mayAlert(ctx context.Context, user, match string) (bool, error) {
	decision, err := s.limiter.Consume(context.WithoutCancel(ctx), limits.Request{
		Policy: "alerts", Attributes: map[string]string{"user": user, "match": match},
	})
	return err == nil && decision.Allowed, err
}

func reply(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}

func refuse(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, "{\"error\":%q}\n", why)
}
