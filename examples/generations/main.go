// Command generations limits jobs that cost money in two ways. Generations are charged only after a job was created: 5 per
// minute and 50 per day for each user, more for paying users. Renders charge what they cost, at most 100 cents per day. A
// page shows what is used of each limit.
//
// It needs a limiter with policies.yaml at NATS_URL, and serves HTTP on ADDR. POLICY selects another policy of the file for
// generations: generations-burst or generations-offpeak.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/httplimit"
)

func main() {
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), limits.Reconnect())
	if err != nil {
		log.Fatalf("connect to the limiter: %v", err)
	}
	if !nc.IsConnected() {
		log.Printf("no limiter at %s yet; start one with: limiter --policies policies.yaml", nc.Servers())
	}
	defer nc.Close()
	s := &server{client: limits.NewClient(nc), policy: cmp.Or(os.Getenv("POLICY"), "generations")}
	addr := cmp.Or(os.Getenv("ADDR"), "127.0.0.1:8004")
	log.Println("listening on", "http://"+addr)
	log.Fatal((&http.Server{Addr: addr, Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second}).ListenAndServe())
}

type server struct {
	client *limits.Client
	// policy is the policy of generations.
	policy string
	// deadline bounds each request to the limiter; 0 means httplimit's default.
	deadline time.Duration
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", page)
	mux.HandleFunc("GET /status", s.status)
	mux.Handle("POST /generations", s.checkWorkRecord(http.HandlerFunc(generate)))
	mux.Handle("POST /renders", s.reserveWorkSettle(http.HandlerFunc(s.render)))
	return http.NewCrossOriginProtection().Handler(mux)
}

// config is the configuration that both ways to charge have in common.
func (s *server) config(policy, unit string) httplimit.Config {
	return httplimit.Config{
		Policy:     httplimit.Text(policy),
		Attributes: map[string]httplimit.Attribute{"user": user},
		Tier:       tier,
		Headers:    []httplimit.Headers{httplimit.XRateLimitISO},
		Body:       httplimit.JSONUsage(unit),
		Deadline:   s.deadline,
	}
}

// user and tier identify the caller. Here the caller may choose them; replace this by your authentication.
var (
	user = httplimit.Or(httplimit.Header("X-User"), httplimit.Text("demo"))
	tier = httplimit.Or(httplimit.Header("X-Tier"), httplimit.Text("FREE"))
)

// checkWorkRecord checks both limits, lets the handler work, and charges only if the status is below 400. Concurrent requests
// can pass the check together. If the limit must hold even then, reserve, as reserveWorkSettle does.
func (s *server) checkWorkRecord(work http.Handler) http.Handler {
	config := s.config(s.policy, "generations")
	config.Mode = httplimit.CheckThenRecord
	return httplimit.Middleware(s.client, config)(work)
}

// generate creates a job. The decision is that of the check, so this job is added to what it says is used.
func generate(w http.ResponseWriter, r *http.Request) {
	if prompt := r.PostFormValue("prompt"); prompt == "" || len(prompt) > 1000 {
		answer(w, http.StatusBadRequest, map[string]string{"error": "prompt: want 1 to 1000 bytes"})
		return
	}
	created := map[string]any{"job": rand.Text()}
	if reply, ok := httplimit.ReplyFrom(r.Context()); ok {
		rateLimit := map[string]gauge{}
		for _, l := range reply.Limits {
			rateLimit[l.Name] = gaugeWithJob(l)
		}
		created["rateLimit"] = rateLimit
	}
	answer(w, http.StatusCreated, created)
}

// maxCents is the most that a render may cost.
const maxCents = 30

// reserveWorkSettle charges the most that the work may cost before it begins. The handler settles the actual cost after the
// work, under the same id.
func (s *server) reserveWorkSettle(work http.Handler) http.Handler {
	config := s.config("money", "cents")
	config.Cost = func(*http.Request) int64 { return maxCents }
	config.ID = httplimit.Header("X-Job")
	// A busy limiter may need more than httplimit's default of 50 ms, and work that costs money must not run undecided.
	config.Deadline, config.FailClosed = cmp.Or(s.deadline, limits.DefaultTimeout), true
	config.OnError = s.releaseUndecided(make(goroutines, maxReleases))
	reserve := httplimit.Middleware(s.client, config)(work)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("X-Job", rand.Text()) // replaces any X-Job of the client
		reserve.ServeHTTP(w, r)
	})
}

// render pretends that the work cost what the form says. Work that fails costs nothing.
func (s *server) render(w http.ResponseWriter, r *http.Request) {
	job := r.Header.Get("X-Job")
	cents, err := strconv.ParseInt(r.PostFormValue("cents"), 10, 64)
	bad := err != nil || cents < 0 || cents > maxCents
	if bad {
		cents = 0
	}
	_ = s.settle(r.Context(), job, cents) // errors are logged; for an unknown id nothing was reserved
	if bad {
		answer(w, http.StatusBadRequest, map[string]string{"error": "cents: want 0 to " + strconv.Itoa(maxCents)})
		return
	}
	answer(w, http.StatusCreated, map[string]any{"job": job, "cents": cents})
}

// settle sets the final cost of a job. It does not end with the context of the request, which ends when the client goes away or
// closes its half of the connection. The limits.Client has a timeout of its own.
func (s *server) settle(ctx context.Context, job string, cents int64) error {
	_, err := s.client.Settle(context.WithoutCancel(ctx), job, cents)
	if e, ok := errors.AsType[*limits.Error](err); err != nil && (!ok || e.Code != limits.CodeUnknownID) {
		log.Printf("settle job %s at %d cents: %v; the reserved %d may stay charged", job, cents, err, maxCents)
	}
	return err
}

func answer(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // the client may be gone
}
