package testenv

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
)

// inMain tells that the process entered through Main, without which it must not be executed again as a server:
// it would run its tests instead, and they would start it once more.
var inMain atomic.Bool

// Main runs the tests, then what cleans up behind all of them, stops the servers they shared and ends the process. TestMain calls
// it and nothing after it: what it defers is never run.
func Main(m *testing.M, cleanup ...func()) {
	inMain.Store(true)
	if settings := os.Getenv(natsChildEnv); settings != "" {
		os.Exit(runNATSChild(settings))
	}
	code := m.Run()
	for _, clean := range cleanup {
		clean()
	}
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv: stop the shared PostgreSQL:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}
