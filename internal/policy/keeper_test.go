package policy

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// version is a file whose two limits are both n: half of one version would show.
func version(n int) []byte {
	return fmt.Appendf(nil, `policies:
  - name: p
    match: {user: "*"}
    limits:
      - {name: a, key: "a:{user}", limit: %d, window: 1m}
      - {name: b, key: "b:{user}", limit: %[1]d, window: 1h}
`, n)
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func keep(t *testing.T, path string) (k *Keeper, reloaded chan struct{}) {
	t.Helper()
	k, err := NewKeeper(path, options, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	reloaded = make(chan struct{}, 1000)
	k.reloaded = func() { reloaded <- struct{}{} }
	return k, reloaded
}

func limitOf(t testing.TB, k *Keeper) int64 {
	t.Helper()
	r, err := k.Resolve(Question{Attributes: map[string]string{"user": "7"}})
	if err != nil || len(r.Limits) != 2 || r.Limits[0].Limit != r.Limits[1].Limit {
		t.Fatalf("%+v, %v: half a file", r, err)
	}
	return r.Limits[0].Limit
}

func TestTheLastGoodFileStays(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p.yaml")
	write(t, path, version(1))
	k, _ := keep(t, path)
	before := k.Report()
	for i, bad := range []func(){
		func() { write(t, path, []byte("policies: [")) },
		func() { os.Remove(path) },
		func() { write(t, path, nil) },
	} {
		bad()
		for range 2 { // the second time it is nothing new
			if err := k.Reload(); err == nil {
				t.Error("a bad file is in force")
			}
		}
		if r := k.Report(); limitOf(t, k) != 1 || r.Err == nil || r.Failures != int64(i+1) || r.Set != before.Set {
			t.Errorf("%+v", r)
		}
	}
	write(t, path, version(2))
	if err := k.Reload(); err != nil {
		t.Error(err)
	}
	if r := k.Report(); limitOf(t, k) != 2 || r.Err != nil || r.Set.Hash() == before.Set.Hash() || r.Set.LoadedAt().Before(before.Set.LoadedAt()) {
		t.Errorf("%+v", r)
	}
	write(t, path, []byte("policies: ["))
	_ = k.Reload()
	write(t, path, version(2)) // as it was
	if err := k.Reload(); err != nil || k.Report().Err != nil {
		t.Error(err)
	}
}

// TestChangesAreSeen writes the file in the ways that editors, deployments and Kubernetes do.
func TestChangesAreSeen(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set func(t *testing.T, dir string, n int)
	}{
		"written in place": {func(t *testing.T, dir string, n int) { write(t, filepath.Join(dir, "p.yaml"), version(n)) }},
		"renamed over": {func(t *testing.T, dir string, n int) {
			write(t, filepath.Join(dir, ".tmp"), version(n))
			rename(t, filepath.Join(dir, ".tmp"), filepath.Join(dir, "p.yaml"))
		}},
		"a link to a folder is swapped": {func(t *testing.T, dir string, n int) {
			folder := filepath.Join(dir, fmt.Sprintf("..%d", n))
			if err := os.Mkdir(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(folder, "p.yaml"), version(n))
			link(t, filepath.Base(folder), filepath.Join(dir, "..tmp"))
			rename(t, filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data"))
			if n == 1 {
				link(t, "..data/p.yaml", filepath.Join(dir, "p.yaml"))
			}
		}},
		"a link into another folder": {func(t *testing.T, dir string, n int) {
			other := filepath.Join(dir, "other")
			_ = os.Mkdir(other, 0o700)
			write(t, filepath.Join(other, "q.yaml"), version(n))
			if n == 1 {
				link(t, "other/q.yaml", filepath.Join(dir, "p.yaml"))
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			c.set(t, dir, 1)
			k, reloaded := keep(t, filepath.Join(dir, "p.yaml"))
			if _, err := k.Watch(t.Context()); err != nil {
				t.Fatal(err)
			}
			for n := 2; n <= 3; n++ {
				c.set(t, dir, n)
				waitFor(t, k, reloaded, int64(n))
			}
		})
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, to, name string) {
	t.Helper()
	if err := os.Symlink(to, name); err != nil {
		t.Fatal(err)
	}
}

// waitFor waits until the version is in force; a version half written may be met before.
func waitFor(t *testing.T, k *Keeper, reloaded chan struct{}, n int64) {
	t.Helper()
	end := time.After(20 * time.Second)
	for limitOf(t, k) != n {
		select {
		case <-reloaded:
		case <-end:
			t.Fatalf("version %d is not in force: %+v", n, k.Report())
		}
	}
}

// TestNoRequestSeesHalfAFile asks while files change.
func TestNoRequestSeesHalfAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p.yaml")
	write(t, path, version(1))
	k, _ := keep(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	for range 2 {
		done.Go(func() {
			for ctx.Err() == nil {
				r, err := k.Resolve(Question{Attributes: map[string]string{"user": "7"}})
				if err != nil || len(r.Limits) != 2 || r.Limits[0].Limit != r.Limits[1].Limit {
					t.Errorf("%+v, %v: half a file", r, err)
					return
				}
			}
		})
	}
	for n := range 200 {
		write(t, path, version(n+1))
		if err := k.Reload(); err != nil {
			t.Error(err)
		}
	}
	cancel()
	done.Wait()
}

func TestAFileThatIsWrittenInPiecesIsReadWhenTheFolderIsStill(t *testing.T) {
	t.Parallel()
	var s stillness
	begin := time.Now()
	for _, c := range []struct{ event, want time.Duration }{
		{0, settle}, {90 * time.Millisecond, settle}, {180 * time.Millisecond, settle}, // each piece is waited for
		{longest - 30*time.Millisecond, 30 * time.Millisecond}, {longest + time.Millisecond, 0}, // though not for ever
	} {
		if got := s.wait(begin.Add(c.event)); got != c.want {
			t.Errorf("%s after the first event: wait %s, want %s", c.event, got, c.want)
		}
	}
}
