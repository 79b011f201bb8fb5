// Package apptest runs a complete limiter inside the process of a test.
package apptest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits/internal/app"
)

// Patience bounds the wait for a limiter to be ready. It is long, because a slow machine must not fail the tests.
const Patience = 60 * time.Second

// Options are those of a limiter that needs no server: SQLite in dir, and an embedded NATS server on a free port.
func Options(dir string) app.Options {
	return app.Options{
		NATSListen: "127.0.0.1:0", DataDir: dir, HTTPAddr: "off", Source: "urn:limits:test", WarningThreshold: 0.1, UsageKeys: 1000,
	}
}

// Main starts one limiter for all tests of a package, runs them, removes the limiter's folder and exits. TestMain calls it.
func Main(tests func(natsURL string) int) {
	status, err := runWithLimiter(tests)
	if err != nil {
		fmt.Fprintln(os.Stderr, "run a limiter:", err)
		os.Exit(1)
	}
	os.Exit(status)
}

func runWithLimiter(tests func(natsURL string) int) (status int, err error) {
	dir, err := os.MkdirTemp("", "limits-test-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	natsURL, stop, err := Start(Options(dir))
	if err != nil {
		return 0, err
	}
	status = tests(natsURL)
	return status, stop()
}

// Start starts a limiter and returns the URL of its NATS server when it is ready. stop stops it and returns the error of
// its run.
func Start(o app.Options) (natsURL string, stop func() error, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(readyLine, 1), make(chan error, 1)
	go func() { ended <- app.Run(ctx, o, slog.New(ready)) }()
	select {
	case natsURL = <-ready:
		return natsURL, func() error { cancel(); return <-ended }, nil
	case err = <-ended:
		if err == nil {
			err = errors.New("the limiter ended before it was ready")
		}
	case <-time.After(Patience):
		err = fmt.Errorf("not ready after %s", Patience)
	}
	cancel()
	return "", nil, err
}

// Serve runs a limiter with the given text of a policy file until the test ends, and returns a connection to it. Its data
// folder is dir/data.
func Serve(tb testing.TB, dir, policies string) *nats.Conn {
	tb.Helper()
	o := Options(filepath.Join(dir, "data"))
	o.Policies = filepath.Join(dir, "policies.yaml")
	if err := os.WriteFile(o.Policies, []byte(policies), 0o600); err != nil {
		tb.Fatal(err)
	}
	url, stop, err := Start(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := stop(); err != nil {
			tb.Errorf("stop the limiter: %v", err)
		}
	})
	nc, err := nats.Connect(url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	return nc
}

// readyLine is a log handler that sends the NATS URL of the ready line and drops everything else.
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
