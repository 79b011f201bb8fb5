package app

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHashKeyFingerprintIsLogged, so that the keys of workers can be compared without being shown.
func TestHashKeyFingerprintIsLogged(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.DataDir = t.TempDir()
	o.Policies = writeFile(t, hashing(3))
	logged := func(key string) string {
		t.Helper()
		o.HashKey = key
		log := newWatcher()
		l := &limiter{Options: o, log: slog.New(log)}
		if err := l.loadPolicies(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, print, found := strings.Cut(log.String(), "fingerprint:")
		if !found || strings.Contains(log.String(), key) || strings.Contains(log.String(), "WARN") {
			t.Fatalf("want a fingerprint, and no key:\n%s", log)
		}
		print, _, _ = strings.Cut(print, "]")
		return print
	}
	one, again, other := logged(strings.Repeat("k", minHashKey)), logged(strings.Repeat("k", minHashKey)), logged(strings.Repeat("l", minHashKey))
	if one != again || one == other {
		t.Errorf("fingerprints %s, %s and %s of a key, itself and another", one, again, other)
	}
	o.DatabaseURL = "postgres://" // whose workers do not share a folder, so none is kept
	o.DataDir = filepath.Join(o.DataDir, "none")
	if print := logged(strings.Repeat("m", minHashKey)); print == one || print == other {
		t.Errorf("fingerprint %s of a third key", print)
	}
	if _, err := os.Stat(o.DataDir); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestHashKeyIsTrimmed: a file ends with a line break, and so may a variable that was made from one.
func TestHashKeyIsTrimmed(t *testing.T) {
	t.Parallel()
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	want, err := readOrMakeHashKey(dir, log)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "hash.key"))
	if err != nil {
		t.Fatal(err)
	}
	l := &limiter{Options: Options{HashKey: string(text)}, log: log}
	if got, err := l.hashKey(); err != nil || !bytes.Equal(got, want) {
		t.Errorf("hash.key has %q, and the same text in HASH_KEY is %q, %v", want, got, err)
	}
	for _, short := range []string{strings.Repeat("k", minHashKey-1) + "\n", strings.Repeat(" ", minHashKey)} {
		if checkHashKey(short) == nil {
			t.Errorf("%q is taken", short)
		}
	}
	path := writeFile(t, hashing(3))
	question := PolicyQuestion{Policy: "p", Attributes: map[string]string{"user": "7"}}
	with := func(key string) string {
		t.Helper()
		set, err := LoadPolicies(path, key)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(set.Explain(question))
	}
	if a, b := with(string(want)), with(string(text)); a != b || !strings.Contains(a, " user:") {
		t.Errorf("limiter policies explain says %s, and with the line break %s", a, b)
	}
}

// holdKey checks that the key is readable by its owner only, and the same at the next start.
func holdKey(t *testing.T, dir string) {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, "hash.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	one, err := readOrMakeHashKey(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	two, err := readOrMakeHashKey(dir, slog.New(slog.DiscardHandler))
	if err != nil || !bytes.Equal(one, two) || len(one) != 64 {
		t.Errorf("%d bytes, then %d, %v", len(one), len(two), err)
	}
}

// TestLostOrChangedHashKeyIsLogged, because then all hashed counters start from zero.
func TestLostOrChangedHashKeyIsLogged(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.DataDir, o.Policies = t.TempDir(), writeFile(t, hashing(3))
	in := func(name string) string { return filepath.Join(o.DataDir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var one []byte
	for _, c := range []struct {
		name   string
		before func()
		want   string // a line above info; empty for none
	}{
		{"a new folder", func() {}, ""},
		{"the next start", func() { must(os.WriteFile(in("limits.db"), nil, 0o600)) }, ""},
		{"open to a group", func() { must(os.Chmod(in("hash.key"), 0o640)) }, "level=WARN msg=\"the hash key file is accessible to others"},
		{"lost", func() {
			var err error
			one, err = os.ReadFile(in("hash.key"))
			must(err)
			must(os.Remove(in("hash.key")))
		}, "level=WARN msg=\"hash key created, because the existing store had none"},
		{"kept", func() {}, ""},
		{"restored late", func() { must(os.WriteFile(in("hash.key"), one, 0o600)) }, "level=ERROR msg=\"the hash key has changed"},
		{"set to another", func() { o.HashKey = strings.Repeat("k", minHashKey) }, "level=ERROR msg=\"the hash key has changed"},
	} {
		c.before()
		var lines strings.Builder
		l := &limiter{Options: o, log: slog.New(slog.NewTextHandler(&lines, nil))}
		must(l.loadPolicies(t.Context()))
		said := lines.String()
		loud := strings.Contains(said, "level=WARN") || strings.Contains(said, "level=ERROR")
		if loud != (c.want != "") || !strings.Contains(said, c.want) {
			t.Errorf("%s: want %q\n%s", c.name, c.want, said)
		}
		if key := strings.TrimSpace(string(one)); key != "" && strings.Contains(said, key) {
			t.Errorf("%s: the key is in the log", c.name)
		}
		if c.name == "a new folder" && !strings.Contains(said, "hash key created; back it up\" file="+in("hash.key")) {
			t.Errorf("the created key is not logged:\n%s", said)
		}
	}
}

// TestFilesAreWrittenWhollyOrNotAtAll, and nothing is left of a file that could not be.
func TestFilesAreWrittenWhollyOrNotAtAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "hash.key")
	if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeFileAtomic(path, "k"); err == nil {
		t.Error("a folder was replaced")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if key, err := readOrMakeHashKey(dir, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "read the hash key: ") {
		t.Errorf("a key that cannot be read: %q, %v", key, err)
	}
}
