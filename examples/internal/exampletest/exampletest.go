// Package exampletest runs a whole limiter with a policy file for the tests of the examples, over real NATS and on each of the
// two stores.
//
// A package that uses it runs its tests with testenv:
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
package exampletest

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/app"
	"github.com/seed503877ad/limits/internal/app/apptest"
	"github.com/seed503877ad/limits/internal/testenv"
)

// The stores that Start knows.
const (
	SQLite   = "sqlite"
	Postgres = "postgres"
)

// Patience bounds every wait; it is long because a busy machine must not fail the tests.
const Patience = apptest.Patience

// OnEachStore runs test twice, in parallel: with SQLite in the limiter's folder, and with a PostgreSQL database.
func OnEachStore(t *testing.T, test func(t *testing.T, store string)) {
	t.Helper()
	for _, store := range []string{SQLite, Postgres} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			test(t, store)
		})
	}
}

// Start runs a limiter with a policy file until the test ends, and returns the URL of its NATS server. With SQLite that is the
// embedded server, as for a limiter without flags. With PostgreSQL it is a separate one. Each extra may change the options.
func Start(t *testing.T, store, policyFile string, extra ...func(*app.Options)) (natsURL string) {
	t.Helper()
	o := apptest.Options(filepath.Join(t.TempDir(), "data"))
	o.Policies, o.HashKey = policyFile, "a hash key for the tests"
	switch store {
	case SQLite:
	case Postgres:
		o.DatabaseURL, o.NATSURL = testenv.Postgres(t), testenv.NATS(t).ClientURL()
	default:
		t.Fatalf("start a limiter: store %q: want %s or %s", store, SQLite, Postgres)
	}
	for _, change := range extra {
		change(&o)
	}
	natsURL, stop, err := apptest.Start(o)
	if err != nil {
		t.Fatalf("run a limiter: %v", err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("stop the limiter: %v", err)
		}
	})
	return natsURL
}

// Rewrite returns the path of a copy of a policy file with texts replaced, given as pairs of the old and the new text. Tests
// that wait for windows to end use it to shorten the windows of the example.
func Rewrite(t *testing.T, policyFile string, oldNew ...string) (path string) {
	t.Helper()
	data, err := os.ReadFile(policyFile)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for i := 0; i < len(oldNew); i += 2 {
		if !strings.Contains(text, oldNew[i]) {
			t.Fatalf("rewrite %s: it has no %q", policyFile, oldNew[i])
		}
		text = strings.ReplaceAll(text, oldNew[i], oldNew[i+1])
	}
	path = filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Answer is an HTTP response with its body.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// Send sends a request. It returns an empty answer, and fails the test, if there is no response.
func Send(t *testing.T, client *http.Client, req *http.Request) Answer {
	t.Helper()
	resp, err := client.Do(req)
	if err != nil {
		t.Error(err)
		return Answer{Header: http.Header{}}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return Answer{resp.StatusCode, resp.Header, string(text)}
}

// AtOnce calls passes n times concurrently, and returns how often it was true.
func AtOnce(n int, passes func(i int) bool) int64 {
	var passed atomic.Int64
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if passes(i) {
				passed.Add(1)
			}
		})
	}
	all.Wait()
	return passed.Load()
}

// AllowedAtOnce consumes n times concurrently, and returns how often that was allowed.
func AllowedAtOnce(t *testing.T, n int, c *limits.Client, request limits.Request) int64 {
	t.Helper()
	return AtOnce(n, func(int) bool {
		reply, err := c.Consume(t.Context(), request)
		if err != nil {
			t.Error(err)
		}
		return err == nil && reply.Allowed
	})
}

// Until polls until done returns true. It is for effects that cannot be waited for, such as usage, which is written after the
// answers.
func Until(t *testing.T, what string, done func() bool) {
	t.Helper()
	poll, timeout := time.NewTicker(10*time.Millisecond), time.After(Patience)
	defer poll.Stop()
	for !done() {
		select {
		case <-poll.C:
		case <-timeout:
			t.Fatalf("%s: not after %s", what, Patience)
		}
	}
}
