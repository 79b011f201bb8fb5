package app

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/seed503877ad/limits/internal/testenv"
)

// TestDataFolderIsLockedByOneLimiter: a limiter that keeps data in the folder locks it before anything is read, until everything is
// written. One that keeps no data in it does not lock it.
func TestDataFolderIsLockedByOneLimiter(t *testing.T) {
	t.Parallel()
	natsURL, databaseURL := testenv.NATS(t).ClientURL(), testenv.Postgres(t)
	kept := map[string]func(o *Options){
		"SQLite and an embedded NATS server":     func(*Options) {},
		"SQLite":                                 func(o *Options) { o.NATSURL = natsURL },
		"PostgreSQL and an embedded NATS server": func(o *Options) { o.DatabaseURL = databaseURL },
	}
	for name, set := range kept {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := options(t)
			set(&first)
			s := startOne(t, first, Run)
			worker := first
			worker.NATSURL, worker.DatabaseURL = natsURL, databaseURL
			running(t, Run, worker)
			for _, set := range kept {
				holdTaken(t, first, set)
			}
			if err := s.stopOne(t); err != nil {
				t.Error(err)
			}
			running(t, Run, first)
		})
	}
}

// holdTaken checks that another limiter on the folder of a running one fails to start, and leaves nothing there.
func holdTaken(t *testing.T, o Options, set func(o *Options)) {
	t.Helper()
	o.NATSURL, o.DatabaseURL, o.Policies = "", "", writeFile(t, hashing(1))
	set(&o)
	if o.DatabaseURL != "" {
		o.HashKey = strings.Repeat("k", minHashKey)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience) // should it start after all
	defer cancel()
	log := newWatcher()
	err := Run(ctx, o, slog.New(log))
	if err == nil {
		t.Fatalf("it was not turned away\n%s", log)
	}
	for _, want := range []string{o.DataDir, "limits.lock", "pid " + strconv.Itoa(os.Getpid()), "another data folder"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %q: %v", want, err)
		}
	}
	if _, err := os.Stat(filepath.Join(o.DataDir, "hash.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it made a hash key for a folder that is not its own: %v", err)
	}
}

// TestDatabaseFileIsLockedByOneLimiter, wherever it is: symbolic links of several data folders may lead to one file, which the
// first start makes.
func TestDatabaseFileIsLockedByOneLimiter(t *testing.T) {
	t.Parallel()
	for name, target := range map[string]string{"a file of its own": "shared.db", "the file of a data folder": "limits.db"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := options(t), options(t)
			real := filepath.Join(t.TempDir(), target)
			link(t, first, real)
			link(t, second, filepath.Join(first.DataDir, "limits.db")) // a link to a link
			inside, other := options(t), options(t)
			inside.DataDir = filepath.Dir(real)
			link(t, other, filepath.Join(filepath.Dir(real), "another.db"))
			s := startOne(t, first, Run)
			turnedAway := []Options{second}
			if target == "limits.db" {
				turnedAway = append(turnedAway, inside)
			}
			for _, o := range turnedAway {
				ctx, cancel := context.WithTimeout(t.Context(), patience) // should it start after all
				err := Run(ctx, o, slog.New(slog.DiscardHandler))
				cancel()
				for _, want := range []string{filepath.Dir(real), "is using it", "pid " + strconv.Itoa(os.Getpid()), "another data folder"} {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("the error of %s does not name %q: %v", o.DataDir, want, err)
					}
				}
			}
			running(t, Run, other)
			if err := s.stopOne(t); err != nil {
				t.Error(err)
			}
			running(t, Run, second)
		})
	}
}

// link makes the database file of a limiter a symbolic link.
func link(t *testing.T, o Options, to string) {
	t.Helper()
	if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, filepath.Join(o.DataDir, "limits.db")); err != nil {
		t.Skip(err) // as on Windows without the right to
	}
}

// TestLinkInsideTheDataFolderIsNoSecondLimiter: the database file may be a link to another name in the same folder, and the
// folder may be a link.
func TestLinkInsideTheDataFolderIsNoSecondLimiter(t *testing.T) {
	t.Parallel()
	real := options(t)
	link(t, real, "kept.db")
	o := options(t)
	if err := os.Symlink(real.DataDir, o.DataDir); err != nil {
		t.Skip(err)
	}
	for range 2 {
		if err := startOne(t, o, Run).stopOne(t); err != nil {
			t.Error(err)
		}
	}
}

// TestLinksAreFollowedToTheFile, also to one that is yet to be created. A loop of links leads nowhere.
func TestLinksAreFollowedToTheFile(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "in", "deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, link := range [][2]string{{"in/deep", "folder"}, {"folder/../new.db", "relative"}, {"relative", "again"}, {dir + "/in/new.db", "absolute"},
		{"loop2", "loop1"}, {"loop1", "loop2"}} {
		if err := os.Symlink(link[0], filepath.Join(dir, link[1])); err != nil {
			t.Skip(err)
		}
	}
	for from, want := range map[string]string{"none": "none", "relative": "in/new.db", "again": "in/new.db", "absolute": "in/new.db"} {
		if got, err := linkTarget(filepath.Join(dir, from)); err != nil || got != filepath.Join(dir, want) {
			t.Errorf("%s leads to %s, %v; want %s", from, got, err, want)
		}
	}
	if got, err := linkTarget(filepath.Join(dir, "loop1")); err == nil {
		t.Errorf("a loop leads to %s", got)
	}
}
