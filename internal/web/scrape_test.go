package web

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// scrape returns the status and the body of /metrics.
func scrape(s *Server) (int, string) {
	w := httptest.NewRecorder()
	s.http.Handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Code, w.Body.String()
}

// encoding returns the Content-Encoding for a client that takes gzip, and writes the answer to w.
func encoding(s *Server, w http.ResponseWriter) string {
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	s.http.Handler.ServeHTTP(w, r)
	return w.Header().Get("Content-Encoding")
}

// TestScrapesAtTheSameTimeShareOneGathering, because each gathering asks the store. A later scrape has a gathering of its own.
func TestScrapesAtTheSameTimeShareOneGathering(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg, gathered := prometheus.NewRegistry(), 0
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "slow"}, func() float64 {
			time.Sleep(time.Second / 2)
			gathered++
			return float64(gathered)
		}))
		s, err := New(Config{Registry: reg, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		for round := 1; round <= 2; round++ {
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() {
					if code, body := scrape(s); code != http.StatusOK || !strings.Contains(body, fmt.Sprintf("\nslow %d\n", round)) {
						t.Errorf("%d %s", code, body)
					}
				})
			}
			if all.Wait(); gathered != round {
				t.Errorf("gathered %d times for %d times 100 scrapes", gathered, round)
			}
		}
	})
}

// unread is the answer of a client that does not read.
type unread struct {
	http.ResponseWriter
	gone <-chan struct{}
}

func (u unread) Write([]byte) (int, error) {
	<-u.gone
	return 0, errors.New("write timeout")
}

// TestClientsThatDoNotReadHoldUpNoScrape: the others get values that are a second old at most, and what is held for those
// clients grows by one gathering a second, however many they are.
func TestClientsThatDoNotReadHoldUpNoScrape(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg, began, gathered := prometheus.NewRegistry(), time.Now(), 0
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "at"}, func() float64 {
			gathered++
			return time.Since(began).Seconds()
		}))
		s, err := New(Config{Registry: reg, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		gone := make(chan struct{})
		var clients sync.WaitGroup
		for range 10 * 20 {
			clients.Go(func() { encoding(s, unread{httptest.NewRecorder(), gone}) })
			synctest.Wait()
			code, body := scrape(s)
			var at float64
			_, value, _ := strings.Cut(body, "\nat ")
			if _, err := fmt.Sscan(value, &at); err != nil || code != http.StatusOK || time.Since(began).Seconds()-at > 1 {
				t.Fatalf("after %s: %d %s", time.Since(began), code, body)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if gathered > 11 {
			t.Errorf("%d gatherings in %s", gathered, time.Since(began))
		}
		if got := encoding(s, httptest.NewRecorder()); got != "" { // what compresses is large
			t.Errorf("encoding %q while 200 do not read", got)
		}
		close(gone)
		clients.Wait()
		before := gathered
		if code, _ := scrape(s); code != http.StatusOK || gathered != before+1 {
			t.Errorf("a scrape afterwards: %d, and %d gatherings", code, gathered-before)
		}
		if got := encoding(s, httptest.NewRecorder()); got != "gzip" {
			t.Errorf("encoding %q", got)
		}
	})
}
