package httplimit_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/app/apptest"
	"github.com/seed503877ad/limits/internal/testenv"
)

// natsURL is the NATS server of the limiter that the tests share.
var natsURL string

func TestMain(m *testing.M) {
	apptest.Main(func(url string) int { natsURL = url; return m.Run() })
}

// dial returns a client of the limiter at url.
func dial(t testing.TB, url string) *limits.Client {
	t.Helper()
	return limits.NewClient(testenv.Connect(t, url))
}

// keys numbers the runs of each test, since go test -count runs them on the same limiter.
var (
	keys sync.Map
	runs atomic.Int64
)

// key returns a key that only this run of the test uses.
func key(t testing.TB) string {
	n, _ := keys.LoadOrStore(t, runs.Add(1))
	return fmt.Sprintf("test:%s:%d", t.Name(), n)
}

// inline returns limits with the key of the test.
func inline(t testing.TB, limit int64, window string) func(*http.Request) []limits.LimitSpec {
	spec := limits.Per(key(t), limit, window).LimitSpec
	return func(*http.Request) []limits.LimitSpec { return []limits.LimitSpec{spec} }
}

// hello is a handler that knows nothing of limits.
var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })

// get sends one request through a handler.
func get(h http.Handler, change ...func(*http.Request)) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/things/7", nil)
	for _, c := range change {
		c(r)
	}
	h.ServeHTTP(w, r)
	return w
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// remaining asks the limiter what remains of the test's limit.
func remaining(t testing.TB, c *limits.Client, limit int64, window string) int64 {
	t.Helper()
	reply, err := c.Check(t.Context(), limits.Per(key(t), limit, window))
	if err != nil {
		t.Fatal(err)
	}
	return reply.Remaining
}

// statuses lists the statuses of n requests, such as "200 200 429".
func statuses(n int, h http.Handler, change ...func(*http.Request)) string {
	var all []string
	for range n {
		all = append(all, fmt.Sprint(get(h, change...).Code))
	}
	return strings.Join(all, " ")
}
