// Command open-endpoint serves a form that anybody may post. Three limits are decided together: one for all requests, one
// for the client's address, and one for the e-mail address in the form. Their numbers are in policies.yaml.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/mail"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/httplimit"
)

func main() {
	natsURL := flag.String("nats-url", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "where the limiter listens (NATS_URL)")
	addr := flag.String("addr", cmp.Or(os.Getenv("ADDR"), "127.0.0.1:8000"), "where to serve HTTP (ADDR)")
	proxies := flag.String("proxies", os.Getenv("PROXIES"), "networks of the proxies in front, such as 10.0.0.0/8,fd00::/8 (PROXIES)")
	flag.Parse()
	trusted, err := networks(*proxies)
	if err != nil {
		log.Fatalf("--proxies: %v", err)
	}
	nc, err := nats.Connect(*natsURL, limits.Reconnect())
	if err != nil {
		log.Fatalf("connect to the limiter: %v", err)
	}
	if !nc.IsConnected() {
		log.Printf("no limiter at %s yet; start it with: go run ./cmd/limiter --policies examples/open-endpoint/policies.yaml", nc.Servers())
	}
	log.Printf("serving on http://%s", *addr)
	// In a burst the limiter may need more than httplimit's default of 50 ms, and people who sign up can wait longer.
	served := handler(limits.NewClient(nc), limits.DefaultTimeout, trusted)
	log.Fatal(newServer(*addr, served).ListenAndServe())
}

// newServer bounds how long a client may take to send its form, because that is read before the limits are decided.
func newServer(addr string, h http.Handler) *http.Server {
	return &http.Server{Addr: addr, Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second}
}

// networks parses a list of networks, whose proxies may say which address a request comes from.
func networks(list string) (all []netip.Prefix, err error) {
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		all = append(all, network)
	}
	return all, nil
}

func handler(limiter *limits.Client, deadline time.Duration, proxies []netip.Prefix) http.Handler {
	limited := httplimit.Middleware(limiter, httplimit.Config{
		Policy: httplimit.Text("signup"), // named, so that a request without an attribute is refused and does not pass
		Attributes: map[string]httplimit.Attribute{
			"ip":    httplimit.ClientIP(proxies...),
			"email": emailOf,
		},
		Headers:  []httplimit.Headers{httplimit.XRateLimitUnix},
		Body:     httplimit.JSONCode,
		Deadline: deadline,
		// A burst makes answers late. If late answers let requests pass, a flood would be a way around the limits.
		FailClosed: true,
	})
	mux := http.NewServeMux()
	mux.Handle("POST /signup", decoded(limited(http.HandlerFunc(signUp))))
	return mux
}

// emailKey is the context key of the e-mail address in the posted form.
type emailKey struct{}

func emailOf(r *http.Request) string {
	email, _ := r.Context().Value(emailKey{}).(string)
	return email
}

// decoded reads the form before the limits are checked, because one of them is by its e-mail address. A form that is not
// valid charges nothing.
func decoded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Email string `json:"email"`
		}
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<10)).Decode(&in)
		address, invalid := mail.ParseAddress(in.Email)
		if err != nil || invalid != nil || len(address.Address) > limits.MaxAttributeBytes {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintln(w, `{"error":{"code":"INVALID_REQUEST","message":"want {\"email\":\"you@example.org\"}"}}`)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), emailKey{}, address.Address)))
	})
}

// signUp is where the work would be done. It answers with the limit that has the least remaining.
func signUp(w http.ResponseWriter, r *http.Request) {
	answer := map[string]any{"ok": true}
	if reply, ok := httplimit.ReplyFrom(r.Context()); ok {
		answer["current"], answer["limit"] = reply.Limit-reply.Remaining, reply.Limit
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client may be gone
}
