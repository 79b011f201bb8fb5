package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/seed503877ad/limits/examples/internal/exampletest"
)

// build builds limiter, as "make build" does, and returns its path.
func build(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "limiter")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "../../cmd/limiter").CombinedOutput(); err != nil {
		t.Fatalf("go build ../../cmd/limiter: %v\n%s", err, out)
	}
	return path
}

// step is a command line, its exit status, and a pattern for its output.
type step struct {
	args   string
	status int
	out    string
}

// TestCommandLine runs the session of README.md with the real binary.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	path := build(t)
	const date = `\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`
	session := []step{
		{"policies validate policies.yaml", 0, `policies.yaml`},
		{"check api:user:123 --limit 100 --window 1h", 0, `^allowed\n`},
		{"consume api:user:123 --limit 100 --window 1h --cost 99", 0, `^allowed\n.*\n.*100/1h +1 `},
		{"consume api:user:123 --limit 100 --window 1h --cost 2", 3, `^denied: 99 of 100 used`},
		{"consume api:user:123 --limit 100 --window 1h --json", 0, `"allowed":true,.*"remaining":0,"reset":\d{13}`},
		{"consume api:user:123 --limit 100 --window 1h --json", 3, `"allowed":false,.*"retryAfter":\d+`},
		{"consume api:user:456 --limit 100 --window 1d", 0, `100/1d +99 `},
		{"consume notify:user:7 --limit 10 --window 1h", 0, `10/1h +9 `},
		{"show api:user:123", 0, `api:user:123\n.*\n1h +100/1h +100 +0 +` + date},
		{"list --prefix api:user:", 0, `(?s)^KEY .*api:user:123 .*api:user:456 `},
		{"reset api:user:123", 0, `^reset 1 counter\n`},
		{"show api:user:123", 0, `^api:user:123: nothing used\n`},
		{"reset --prefix api:", 0, `^reset 1 counter\n`},
		{"list --prefix api:", 0, `^no counters\n`},
		{"list", 0, `notify:user:7 `},
	}
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		url := exampletest.Start(t, store, "policies.yaml")
		for _, s := range session {
			s.play(t, path, url)
		}
	})
}

func (s step) play(t *testing.T, binary, natsURL string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, strings.Fields(s.args)...)
	cmd.Env = append(os.Environ(), "NATS_URL="+natsURL)
	out, err := cmd.Output()
	status := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status = exit.ExitCode()
	} else if err != nil {
		t.Fatalf("limiter %s: %v", s.args, err)
	}
	if status != s.status || !regexp.MustCompile(s.out).Match(out) {
		t.Errorf("limiter %s: exit status %d, %q, want %d and a match of %s", s.args, status, out, s.status, s.out)
	}
}
