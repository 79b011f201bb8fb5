// Package exampletest runs a whole limiter with a policy file for the tests of the examples: over real NATS, on each of
// the two stores.
//
// A package that uses it hands its tests to testenv:
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
package exampletest

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits/internal/app"
	"github.com/seed503877ad/limits/internal/postgres"
	"github.com/seed503877ad/limits/internal/testenv"
)

// The stores that Start knows.
const (
	SQLite   = "sqlite"
	Postgres = "postgres"
)

// Patience bounds every wait; it is long because a busy machine must not fail the tests.
const Patience = 60 * time.Second

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
	o := app.Options{
		NATSListen: "127.0.0.1:0", DataDir: filepath.Join(t.TempDir(), "data"), HTTPAddr: "off", Policies: policyFile,
		HashKey: "a hash key for the tests", Source: "urn:limits:example", WarningThreshold: 0.1, OnError: "allow",
	}
	switch store {
	case SQLite:
	case Postgres:
		o.DatabaseURL, o.NATSURL = testenv.Postgres(t, postgres.Migrate), testenv.NATS(t).ClientURL()
	default:
		t.Fatalf("start a limiter: store %q: want %s or %s", store, SQLite, Postgres)
	}
	for _, change := range extra {
		change(&o)
	}
	return run(t, o)
}

// run starts the limiter and waits for its ready line. Being told to stop, it must end without an error.
func run(t *testing.T, o app.Options) (natsURL string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(readyLine, 1), make(chan error, 1)
	go func() { ended <- app.Run(ctx, o, slog.New(ready)) }()
	select {
	case natsURL = <-ready:
	case err := <-ended:
		stop()
		t.Fatalf("run a limiter: %v", err)
	case <-time.After(Patience):
		stop()
		t.Fatalf("run a limiter: not ready after %s", Patience)
	}
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("stop the limiter: %v", err)
		}
	})
	return natsURL
}

// readyLine is a log that hands on the NATS address of the ready line and drops the rest.
type readyLine chan string

func (readyLine) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (l readyLine) WithAttrs([]slog.Attr) slog.Handler             { return l }
func (l readyLine) WithGroup(string) slog.Handler                  { return l }

func (l readyLine) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "ready" {
		return nil
	}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "nats" {
			l <- a.Value.String()
		}
		return a.Key != "nats"
	})
	return nil
}

// Connect connects to the limiter's NATS server until the test ends.
func Connect(t *testing.T, natsURL string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(natsURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
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
