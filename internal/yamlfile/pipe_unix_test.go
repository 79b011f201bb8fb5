//go:build unix

package yamlfile

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestPipeReplacingFileIsRejected: nobody writes to the pipe, so reading it would never end.
func TestPipeReplacingFileIsRejected(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p.yaml")
	write(t, path, version(1))
	k, _ := keep(t, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	reloaded := make(chan error, 1)
	go func() { reloaded <- k.Reload() }()
	select {
	case err := <-reloaded:
		if err == nil || !strings.Contains(err.Error(), "is not a regular file") {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the pipe was read")
	}
	if r := k.Report(); valueOf(t, k) != 1 || r.Failures != 1 || r.Err == nil {
		t.Errorf("%+v", r)
	}
}

// TestAPipeIsReadOnce starts with a pipe, as from a shell's <(...), which cannot be read twice.
func TestAPipeIsReadOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p.yaml")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() { _ = os.WriteFile(path, version(1), 0o600) }()
	var log strings.Builder
	k, err := NewKeeper(t.Context(), Config[pair]{Path: path, What: "pairs", Parse: parsePair, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ended, err := k.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the pipe is still watched")
	}
	for what, again := range map[string]func() error{"Reload": k.Reload, "ForceReload": k.ForceReload} {
		if err := again(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if r := k.Report(); valueOf(t, k) != 1 || r.Err != nil || r.Failures != 0 {
		t.Errorf("%+v", r)
	}
	if n := strings.Count(log.String(), "is not watched"); n != 1 || strings.Contains(log.String(), "ERROR") {
		t.Errorf("logged %d times that it is not watched:\n%s", n, &log)
	}
}

// TestPipeWithoutWriterTimesOut after a log line that names the file. A signal ends the wait sooner.
func TestPipeWithoutWriterTimesOut(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p.yaml")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	_, err := NewKeeper(t.Context(), Config[pair]{Path: path, What: "pairs", Parse: parsePair, Log: slog.New(slog.NewTextHandler(&log, nil)),
		FirstReadTimeout: 20 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), path+": timed out after 20ms") {
		t.Error(err)
	}
	if text := log.String(); !strings.Contains(text, "still waiting to read the pairs file") || !strings.Contains(text, path) {
		t.Errorf("the log does not name what it waits for: %s", text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = NewKeeper(ctx, Config[pair]{Path: path, What: "pairs", Parse: parsePair, FirstReadTimeout: time.Hour})
	if err == nil || !strings.Contains(err.Error(), path+": interrupted") {
		t.Error(err)
	}
	w, err := os.OpenFile(path, os.O_WRONLY, 0) // lets the abandoned reads end
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
}
