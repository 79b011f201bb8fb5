package httplimit_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/httplimit"
)

// exampleClient connects to the limiter that TestMain runs for the examples.
func exampleClient() (c *limits.Client, done func()) {
	nc, err := nats.Connect(natsURL, limits.Reconnect()) // 127.0.0.1:4222, where `limiter` listens
	if err != nil {
		log.Fatal(err)
	}
	return limits.NewClient(nc, limits.Timeout(time.Minute)), nc.Close
}

// A middleware in front of a mux: two requests per hour for each user, and for each address of requests without a user. The
// prefixes keep a user whose name is an address apart from that address. All addresses of an IPv6 /64 share a limit.
func ExampleMiddleware() {
	client, done := exampleClient()
	defer done()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	user, address := httplimit.Header("X-User"), httplimit.Subnet64(httplimit.ClientIP(netip.MustParsePrefix("10.0.0.0/8")))
	caller := func(r *http.Request) string {
		if name := user(r); name != "" {
			return "user:" + name
		}
		return "ip:" + address(r)
	}
	limited := httplimit.Middleware(client, httplimit.Config{
		Limits: func(r *http.Request) []limits.LimitSpec {
			return []limits.LimitSpec{{Key: "api:" + caller(r), Limit: 2, Window: "1h"}}
		},
		Deadline: time.Second, // long, so that this example passes on any machine
	})(mux)

	for _, user := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.1", ""} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/hello", nil) // from 192.0.2.1
		r.Header.Set("X-User", user)
		limited.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("RateLimit-Policy"), "left", w.Header().Get("X-RateLimit-Remaining"))
	}
	// Output:
	// 200 "1h";q=2;w=3600 left 1
	// 200 "1h";q=2;w=3600 left 0
	// 429 "1h";q=2;w=3600 left 0
	// 200 "1h";q=2;w=3600 left 1
}

// Policies decide by the attributes of the request. A request that matches none of them passes.
func ExampleMiddleware_policies() {
	client, done := exampleClient()
	defer done()
	limited := httplimit.Middleware(client, httplimit.Config{
		Attributes: map[string]httplimit.Attribute{
			"user":       httplimit.Header("X-User"),
			"path":       httplimit.Path(),
			"credential": httplimit.Credential("X-API-Key"),
		},
		Tier:     httplimit.Header("X-Role"),
		Headers:  []httplimit.Headers{httplimit.XRateLimitISO},
		Body:     httplimit.JSONError,
		Deadline: time.Second,
	})
	w := httptest.NewRecorder()
	limited(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	fmt.Println(w.Code)
	// Output: 404
}

// An API with keys: one request to the limiter verifies the key and charges the policies that match.
func ExampleKeyFrom() {
	client, done := exampleClient()
	defer done()
	made, err := client.CreateKey(context.Background(), limits.CreateKeyRequest{User: "7", Tier: "pro"})
	if err != nil {
		log.Fatal(err)
	}
	limited := httplimit.Middleware(client, httplimit.Config{
		APIKey: httplimit.Or(httplimit.Bearer(), httplimit.Header("X-API-Key")), Deadline: time.Second,
	})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		key, _ := httplimit.KeyFrom(r.Context())
		fmt.Println("work for", key.User, "of tier", key.Tier)
	}))

	for _, key := range []string{made.APIKey, "a guess"} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer "+key)
		limited.ServeHTTP(w, r)
		fmt.Printf("%d %q\n", w.Code, w.Header().Get("WWW-Authenticate"))
	}
	// Output:
	// work for 7 of tier pro
	// 200 ""
	// 401 "Bearer error=\"invalid_token\", error_description=\"The API key is unknown\""
}

// A client that repeats a request with the same Idempotency-Key is charged once. Ids are global, and two users may choose
// the same one, so the user is put in front.
func ExampleConfig_id() {
	client, done := exampleClient()
	defer done()
	user, key := httplimit.Header("X-User"), httplimit.Header("Idempotency-Key")
	limited := httplimit.Middleware(client, httplimit.Config{
		Limits: func(r *http.Request) []limits.LimitSpec {
			return []limits.LimitSpec{{Key: "orders:user:" + user(r), Limit: 10, Window: "1h"}}
		},
		ID: func(r *http.Request) string {
			if key(r) == "" {
				return ""
			}
			return "orders:" + user(r) + ":" + key(r)
		},
		Deadline: time.Second,
	})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) // which must also do the work once per id

	for _, user := range []string{"7", "7", "8"} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/orders", nil)
		r.Header.Set("X-User", user)
		r.Header.Set("Idempotency-Key", "1")
		limited.ServeHTTP(w, r)
		fmt.Println("user", user, w.Code, "left", w.Header().Get("X-RateLimit-Remaining"))
	}
	// Output:
	// user 7 200 left 9
	// user 7 200 left 9
	// user 8 200 left 9
}

// A job is charged after it was created, with its actual cost.
func ExampleSetCost() {
	client, done := exampleClient()
	defer done()
	limited := httplimit.Middleware(client, httplimit.Config{
		Limits: func(*http.Request) []limits.LimitSpec {
			return []limits.LimitSpec{{Key: "cents:user:7", Limit: 100, Window: "day"}}
		},
		Mode:     httplimit.CheckThenRecord,
		Body:     httplimit.JSONUsage("cents"),
		Deadline: time.Second,
	})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "POST" {
			http.Error(w, "no", http.StatusMethodNotAllowed) // a status that is not charged
			return
		}
		httplimit.SetCost(r.Context(), 30)
		w.WriteHeader(http.StatusCreated)
	}))

	for _, method := range []string{"GET", "POST", "POST"} {
		w := httptest.NewRecorder()
		limited.ServeHTTP(w, httptest.NewRequest(method, "/jobs", nil))
		fmt.Println(w.Code, "left before", w.Header().Get("X-RateLimit-Remaining"))
	}
	// Output:
	// 405 left before 100
	// 201 left before 100
	// 201 left before 70
}

// Calls to the API of another service wait for their turn, and are retried if it answers 429 nevertheless.
func ExampleOutbound() {
	client, done := exampleClient()
	defer done()
	weather := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "fair") }))
	defer weather.Close()

	turn := limits.Per("outbound:weather", 60, "1m") // of all processes together
	api := &http.Client{
		Transport: &httplimit.Transport{Base: httplimit.Outbound(client, turn, nil)},
		Timeout:   time.Minute, // a turn that would come later fails at once
	}
	resp, err := api.Get(weather.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	fmt.Println(resp.StatusCode, string(text))
	// Output: 200 fair
}

// Each user is sent 10 notifications per hour. Further ones wait for a digest.
func Example_digest() {
	client, done := exampleClient()
	defer done()
	digest := map[string][]string{} // by user; use a table if it must survive a restart
	notify := func(user, event, text string) error {
		request := limits.Per("notify:user:"+user, 10, "1h")
		request.ID = "notify:" + user + ":" + event // an event that comes twice is charged once per user
		reply, err := client.Consume(context.Background(), request)
		switch {
		case err != nil:
			return err // the event will be delivered again
		case reply.Allowed:
			fmt.Println("send", text)
		default:
			digest[user] = append(digest[user], text)
		}
		return nil
	}

	for i := range 13 {
		if err := notify("7", fmt.Sprint("event-", i), fmt.Sprint("message ", i)); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("digest", digest["7"])
	// Output:
	// send message 0
	// send message 1
	// send message 2
	// send message 3
	// send message 4
	// send message 5
	// send message 6
	// send message 7
	// send message 8
	// send message 9
	// digest [message 10 message 11 message 12]
}
