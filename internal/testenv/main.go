package testenv

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
)

// inMain says that the process runs Main. Without Main the test binary must not be started again as a server: it would run
// its tests instead, which would start it again.
var inMain atomic.Bool

// Main runs the tests, then the cleanup functions, stops the shared servers and ends the process with os.Exit. So a TestMain
// that calls it must not rely on deferred functions.
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
