// Command primitive shows four patterns with inline limits: an HTTP handler, a burst, outbound calls that wait for their
// turn, and notifications that go into a digest when there are too many. patterns.go has a short function for each.
//
// It needs a limiter at NATS_URL and serves HTTP on ADDR.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
)

func main() {
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), limits.Reconnect())
	if err != nil {
		log.Fatalf("connect to the limiter: %v", err)
	}
	if !nc.IsConnected() {
		log.Printf("no limiter at %s yet; start one with: limiter", nc.Servers())
	}
	defer nc.Close()
	addr := cmp.Or(os.Getenv("ADDR"), "127.0.0.1:8001")
	client := limits.NewClient(nc)
	weather := cmp.Or(os.Getenv("WEATHER_URL"), "http://"+addr+"/fair") // stands for the API of another service
	log.Println("listening on", "http://"+addr)
	log.Fatal((&http.Server{Addr: addr, Handler: handler(client, weather), ReadHeaderTimeout: 5 * time.Second}).ListenAndServe())
}

// handler has a route for each pattern.
func handler(client *limits.Client, weatherURL string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /hello", limited(client, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }))
	mux.HandleFunc("GET /fair", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "fair") })

	api := outbound(client, limits.Per("outbound:weather", 60, "1m"), 30*time.Second)
	mux.HandleFunc("GET /weather", func(w http.ResponseWriter, r *http.Request) { forward(w, r, api, weatherURL) })

	n := &notifier{client: client, send: logged, digest: map[string][]string{}}
	mux.HandleFunc("POST /notify", n.serveNotify)
	mux.HandleFunc("GET /digest", func(w http.ResponseWriter, r *http.Request) { answer(w, n.takeDigest(user(r))) })
	return mux
}

// forward calls the other service's API when it is this request's turn.
func forward(w http.ResponseWriter, r *http.Request, api *http.Client, url string) {
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, url, nil)
	if err != nil {
		http.Error(w, "invalid address of the weather service", http.StatusInternalServerError)
		return
	}
	response, err := api.Do(request)
	if err != nil {
		log.Println("weather:", err)
		http.Error(w, "the weather service is not available", http.StatusServiceUnavailable)
		return
	}
	defer response.Body.Close()
	w.WriteHeader(response.StatusCode)
	_, _ = io.Copy(w, io.LimitReader(response.Body, 1<<20))
}

func (n *notifier) serveNotify(w http.ResponseWriter, r *http.Request) {
	text := r.FormValue("text")
	if text == "" || len(text) > 1000 {
		http.Error(w, "text: want 1 to 1000 bytes", http.StatusBadRequest)
		return
	}
	// The context of the request ends when its client goes away or closes its half of the connection. The notification would
	// then be charged, and neither sent nor put into the digest. The limits.Client has a timeout of its own.
	sent, err := n.notify(context.WithoutCancel(r.Context()), user(r), text)
	if err != nil {
		log.Println("notify:", err)
		http.Error(w, "not sent: try again", http.StatusServiceUnavailable)
		return
	}
	answer(w, map[string]bool{"sent": sent})
}

func logged(user, text string) { log.Printf("to %q: %q", user, text) }

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // the client may be gone
}
