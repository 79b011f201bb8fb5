// Package exampletest runs a whole limiter with a policy file for the tests of the examples: over real NATS, on each of
// the two stores.
//
// A package that uses it hands its tests to testenv:
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

// OnEachStore runs test twice, side by side: with SQLite in the limiter's folder, and with a PostgreSQL database.
func OnEachStore(t *testing.T, test func(t *testing.T, store string)) {
	t.Helper()
	for _, store := range []string{SQLite, Postgres} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			test(t, store)
		})
	}
}

// Start runs a limiter with the policies of a file until the test ends, and gives the address of its NATS server. With
// SQLite the server is the embedded one, as for somebody who types "limiter"; with PostgreSQL it is one of its own. Each
// extra may change the options.
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

// Rewrite makes a copy of a policy file in which each old text is replaced by the new one behind it, for tests that let
// windows pass: the policies stay those of the example, and only their windows are short.
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

// Answer is what a client sees of an HTTP answer.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// Send sends a request, and gives an empty answer when there is none.
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

// AtOnce does something n times at once and counts how often it passes.
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

// Until asks again and again whether something has come about that tells nobody, such as usage that is written behind
// the answers; each question is itself an answer of the limiter.
func Until(t *testing.T, what string, done func() bool) {
	t.Helper()
	ask, end := time.NewTicker(10*time.Millisecond), time.After(Patience)
	defer ask.Stop()
	for !done() {
		select {
		case <-ask.C:
		case <-end:
			t.Fatalf("%s: not after %s", what, Patience)
		}
	}
}
