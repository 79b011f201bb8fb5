//go:build unix

package sqlite

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestMovedOrReplacedFile: SQLite would continue with the open file, which no one would
// ever read again.
func TestMovedOrReplacedFile(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{"", "-wal"} {
		for name, away := range map[string]func(path string) error{
			"moved": func(path string) error { return os.Rename(path, path+".away") },
			"replaced": func(path string) error {
				if err := os.Rename(path, path+".away"); err != nil {
					return err
				}
				return os.WriteFile(path, nil, 0o600)
			},
		} {
			t.Run(name+" limits.db"+suffix, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				real, path := filepath.Join(dir, "real.db"), filepath.Join(dir, "limits.db")
				if err := os.Symlink(real, path); err != nil {
					t.Fatal(err)
				}
				s := open(t, Config{Path: path})
				update(t, s, one, set("1"))
				if err := away(real + suffix); err != nil {
					t.Fatal(err)
				}
				asked := false
				_, _, readErr := s.Counters(t.Context(), "a") // the first read, which opens the path
				for what, err := range map[string]error{
					"Counters": readErr, "Ping": s.Ping(t.Context()),
					"Update": s.Update(t.Context(), one, func(snap engine.Snapshot) engine.Changes {
						asked = true
						return set("2")(snap)
					}),
				} {
					if err == nil || !strings.Contains(err.Error(), suffix+" was removed or replaced") || !strings.Contains(err.Error(), "stop the limiter") {
						t.Errorf("%s: %v; want which file, and what to do", what, err)
					}
				}
				if asked {
					t.Error("a decision was made over it")
				}

				if err := os.Rename(real+suffix+".away", real+suffix); err != nil {
					t.Fatal(err)
				}
				if err := s.Ping(t.Context()); err != nil {
					t.Errorf("it is back in its place: %v", err)
				}
				if got := state(t, s, "a"); got != "1" {
					t.Errorf("the counter is %s; want 1, as before", got)
				}
				if err := s.Update(t.Context(), one, set("3")); err != nil {
					t.Errorf("it is back in its place: %v", err)
				}
			})
		}
	}
}

// TestRemovedWALLosesNothing: the limiter writes it into the file when it stops.
func TestRemovedWALLosesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits.db")
	s := open(t, Config{Path: path})
	update(t, s, one, set("1"))
	if err := os.Remove(path + "-wal"); err != nil {
		t.Fatal(err)
	}
	if s.Ping(t.Context()) == nil {
		t.Error("nothing is missed")
	}
	s.Close()
	if got := state(t, open(t, Config{Path: path}), "a"); got != "1" {
		t.Errorf("the counter is %s; want 1", got)
	}
}

// TestEmptyFileIsToldOf: it may be what is left of a backup that was not finished. A first start, which finds no file, says
// nothing.
func TestEmptyFileIsToldOf(t *testing.T) {
	t.Parallel()
	for _, there := range []bool{true, false} {
		var log bytes.Buffer
		path := filepath.Join(t.TempDir(), "limits.db")
		if there {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		open(t, Config{Path: path, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if told := strings.Contains(log.String(), "the database file is empty"); told != there {
			t.Errorf("with an empty file %t: %s", there, &log)
		}
	}
}
