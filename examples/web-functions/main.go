// Command web-functions serves functions over HTTP. Each user has a limit for each function, which depends on the user's
// role. The limits are in policies.yaml; this program only passes on the user, the role and the route.
package main

import (
	"cmp"
	"context"
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
	if flag.Arg(0) == "call" { // the client side: see client.go
		url := "http://" + *addr + "/functions/" + flag.Arg(1)
		if err := call(context.Background(), os.Stdout, url, cmp.Or(flag.Arg(2), "7")); err != nil {
			log.Fatal(err)
		}
		return
	}
	nc, err := nats.Connect(*natsURL, limits.Reconnect())
	if err != nil {
		log.Fatalf("connect to the limiter: %v", err)
	}
	if !nc.IsConnected() {
		log.Printf("no limiter at %s yet; start it with: go run ./cmd/limiter --policies examples/web-functions/policies.yaml", nc.Servers())
	}
	s := &server{limiter: limits.NewClient(nc)}
	log.Printf("serving on http://%s", *addr)
	log.Fatal((&http.Server{Addr: *addr, Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second}).ListenAndServe())
}

// function is what is served at a route, and the name of the policy that limits it; empty for a route without a limit.
type function struct {
	policy string
	serve  http.HandlerFunc
}

// functions are the functions by their routes.
var functions = map[string]function{
	"tag-categorize":        {"tag-categorize", done},
	"tag-categorize-dryrun": {"tag-categorize-dryrun", done},
	"crystal-analyze":       {"crystal-analyze", done},
	"chat-v3-production":    {"chat", done},
	"tag-correction":        {"tag-correction", done},
	"tag-rules":             {"tag-rules", done},
	"analytics":             {"analytics", done},
	"admin/migrate":         {"admin-migrate", done},
	"whoami":                {"", done},
}

// policyOf returns the policy of a request. It is named, and not matched, so that nothing passes if the limiter does not have it,
// for example because it was started without policies.yaml. An unknown route has no policy.
func policyOf(r *http.Request) string { return functions[r.PathValue("route")].policy }

func done(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, "{\"ok\":true,\"function\":%q}\n", r.PathValue("route"))
}

type server struct {
	limiter *limits.Client
	// deadline bounds each request to the limiter; 0 means limits.DefaultTimeout. A request whose answer is late is refused, but
	// charged nevertheless, so httplimit's default of 50 ms would use up limits whenever the limiter pauses for a moment.
	deadline time.Duration
}

func (s *server) handler() http.Handler {
	limited := httplimit.Middleware(s.limiter, httplimit.Config{
		Policy: policyOf,
		// Routes without a limit are served even if the limiter is down.
		Exempt: func(r *http.Request) bool { return policyOf(r) == "" },
		Attributes: map[string]httplimit.Attribute{
			"user":  httplimit.Header("X-User-Id"),
			"route": httplimit.PathValue("route"), // the same text by which run finds the function
		},
		Tier:     httplimit.Header("X-User-Role"),
		Headers:  []httplimit.Headers{httplimit.XRateLimitISO},
		Body:     httplimit.JSONError,
		Deadline: cmp.Or(s.deadline, limits.DefaultTimeout),
		// Without a decision the function is not run: 500 {"ok":false,"error":"Rate limit check failed"}.
		FailClosed: true,
		FailStatus: http.StatusInternalServerError,
	})
	mux := http.NewServeMux()
	mux.Handle("/functions/{route...}", signedIn(limited(http.HandlerFunc(run))))
	return mux
}

// signedIn stands for your authentication. That has to set both headers, because a client that could choose its user or role
// could choose its limit. Without a user no policy applies, so such a request must be refused here.
func signedIn(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-User-Id") == "" {
			http.Error(w, "not signed in", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func run(w http.ResponseWriter, r *http.Request) {
	found, ok := functions[r.PathValue("route")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	found.serve(w, r)
}
