package yamlfile

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

// pair is a file with two equal numbers, so that half of a version would be noticed.
type pair struct {
	A int64 `json:"a"`
	B int64 `json:"b"`
}

func version(n int) []byte { return fmt.Appendf(nil, "a: %d\nb: %[1]d\n", n) }

func parsePair(name string, data []byte) (*pair, error) {
	p, v := New(Format{Name: "pair", Want: "a"}), &pair{}
	p.Read(data, v)
	return v, p.Err(name)
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func keep(t *testing.T, path string) (k *Keeper[pair], reloaded chan struct{}) {
	t.Helper()
	reloaded = make(chan struct{}, 1000)
	k, err := NewKeeper(t.Context(), Config[pair]{Path: path, What: "pairs", Parse: parsePair, Log: slog.New(slog.DiscardHandler),
		Reloaded: func() { reloaded <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	return k, reloaded
}

func valueOf(t testing.TB, k *Keeper[pair]) int64 {
	t.Helper()
	v := k.Current()
	if v.A != v.B {
		t.Fatalf("%+v: half a file", v)
	}
	return v.A
}

func TestLastGoodFileStaysInForce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p.yaml")
	write(t, path, version(1))
	k, _ := keep(t, path)
	before := k.Report()
	for i, bad := range []func(){
		func() { write(t, path, []byte("a: [")) },
		func() { os.Remove(path) },
		func() { write(t, path, nil) },
	} {
		bad()
		for range 2 { // the second time the error is the same
			if err := k.Reload(); err == nil {
				t.Error("a bad file is in force")
			}
		}
		if r := k.Report(); valueOf(t, k) != 1 || r.Err == nil || r.Failures != int64(i+1) || r.Current != before.Current {
			t.Errorf("%+v", r)
		}
	}
	write(t, path, version(2))
	if err := k.Reload(); err != nil {
		t.Error(err)
	}
	if r := k.Report(); valueOf(t, k) != 2 || r.Err != nil || r.Hash == before.Hash || r.LoadedAt.Before(before.LoadedAt) {
		t.Errorf("%+v", r)
	}
	same := k.Report()
	if err := k.ForceReload(); err != nil || k.Report().Current == same.Current || k.Report().Hash != same.Hash {
		t.Errorf("%+v, %v: the same file is not read again when that is asked for", k.Report(), err)
	}
	write(t, path, []byte("a: ["))
	_ = k.Reload()
	write(t, path, version(2)) // the version in force
	if err := k.Reload(); err != nil || k.Report().Err != nil {
		t.Error(err)
	}
}

// TestRejectedFileIsRetried: a file that it refers to, such as one with a secret, may be created
// later, which is not reported.
func TestRejectedFileIsRetried(t *testing.T) {
	t.Parallel()
	path, other := filepath.Join(t.TempDir(), "p.yaml"), filepath.Join(t.TempDir(), "other")
	write(t, path, version(1))
	tried := make(chan struct{}, 1000)
	k, err := NewKeeper(t.Context(), Config[pair]{Path: path, What: "pairs", Log: slog.New(slog.DiscardHandler), PollInterval: 10 * time.Millisecond,
		Refers: true, Reloaded: func() { tried <- struct{}{} },
		Parse: func(name string, data []byte) (*pair, error) {
			v, err := parsePair(name, data)
			if err == nil && v.A == 2 {
				_, err = os.Stat(other)
			}
			return v, err
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended, err := k.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(t.TempDir(), "next")
	write(t, next, version(2))
	rename(t, next, path) // a file that is written in place is empty for a moment, and may be read then
	for range 3 {
		<-tried
	}
	if r := k.Report(); valueOf(t, k) != 1 || r.Err == nil || r.Failures != 1 {
		t.Errorf("%+v", r)
	}
	write(t, other, nil)
	for k.Report().Err != nil {
		<-tried
	}
	if valueOf(t, k) != 2 {
		t.Errorf("%+v", k.Report())
	}
	cancel()
	<-ended
	for len(tried) > 0 { // a file in force is not loaded again
		<-tried
	}
	if err := k.Reload(); err != nil || len(tried) > 0 {
		t.Errorf("%v, tried %d times", err, len(tried))
	}
}

// TestRestoredFileIsInForce restores the first file, after another one and after it was missing.
func TestRestoredFileIsInForce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p.yaml")
	write(t, path, version(1))
	k, _ := keep(t, path)
	for _, n := range []int{2, 1} {
		write(t, path, version(n))
		if err := k.Reload(); err != nil || valueOf(t, k) != int64(n) {
			t.Errorf("version %d: %v; version %d is in force", n, err, valueOf(t, k))
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := k.Reload(); err == nil {
		t.Error("a file that is not there is in force")
	}
	write(t, path, version(1))
	if err := k.Reload(); err != nil || k.Report().Err != nil {
		t.Errorf("%v, and is reported as %v", err, k.Report().Err)
	}
}

// TestHungReadDoesNotBlockReport: Report returns while a read is blocked by the test.
func TestHungReadDoesNotBlockReport(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p.yaml")
	write(t, path, version(1))
	reading, goOn := make(chan struct{}, 2), make(chan struct{}, 2)
	goOn <- struct{}{}
	k, err := NewKeeper(t.Context(), Config[pair]{Path: path, What: "pairs", Log: slog.New(slog.DiscardHandler),
		Parse: func(name string, data []byte) (*pair, error) {
			reading <- struct{}{}
			<-goOn
			return parsePair(name, data)
		}})
	if err != nil {
		t.Fatal(err)
	}
	<-reading
	write(t, path, version(2))
	reloaded := make(chan error, 1)
	go func() { reloaded <- k.Reload() }()
	<-reading
	report := make(chan Report[pair], 1)
	go func() { report <- k.Report() }()
	select {
	case r := <-report:
		if r.Current.A != 1 || r.Err != nil {
			t.Errorf("%+v", r)
		}
	case <-time.After(time.Minute):
		t.Error("Report waits for the read")
	}
	goOn <- struct{}{}
	if err := <-reloaded; err != nil || valueOf(t, k) != 2 {
		t.Error(err)
	}
}

// TestFileChangesAreDetected writes the file as editors, deployments and Kubernetes do.
func TestFileChangesAreDetected(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(t *testing.T, dir string, n int){
		"overwritten in place": func(t *testing.T, dir string, n int) { write(t, filepath.Join(dir, "p.yaml"), version(n)) },
		"replaced by rename": func(t *testing.T, dir string, n int) {
			write(t, filepath.Join(dir, ".tmp"), version(n))
			rename(t, filepath.Join(dir, ".tmp"), filepath.Join(dir, "p.yaml"))
		},
		"a link to a folder is swapped": func(t *testing.T, dir string, n int) {
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
		},
		"a link into another folder": func(t *testing.T, dir string, n int) {
			other := filepath.Join(dir, "other")
			_ = os.Mkdir(other, 0o700)
			write(t, filepath.Join(other, "q.yaml"), version(n))
			if n == 1 {
				link(t, "other/q.yaml", filepath.Join(dir, "p.yaml"))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			set(t, dir, 1)
			k, reloaded := keep(t, filepath.Join(dir, "p.yaml"))
			if _, err := k.Watch(t.Context()); err != nil {
				t.Fatal(err)
			}
			for n := 2; n <= 3; n++ {
				set(t, dir, n)
				waitFor(t, k, reloaded, int64(n))
			}
		})
	}
}

// TestRecreatedFolderIsWatched removes the folder of the file or of its target for longer than usual.
func TestRecreatedFolderIsWatched(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"of the file", "behind a link"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			conf := filepath.Join(dir, "conf")
			put := func(n int) {
				if err := os.MkdirAll(conf, 0o700); err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(conf, "p.yaml"), version(n))
			}
			put(1)
			path := filepath.Join(conf, "p.yaml")
			if name == "behind a link" {
				path = filepath.Join(dir, "p.yaml")
				link(t, "conf/p.yaml", path)
			}
			k, reloaded := keep(t, path)
			if _, err := k.Watch(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(conf); err != nil {
				t.Fatal(err)
			}
			for k.Report().Err == nil {
				<-reloaded
			}
			for n := 2; n <= 3; n++ {
				put(n)
				waitFor(t, k, reloaded, int64(n))
			}
		})
	}
}

// TestReplacedParentFolderIsDetected swaps a folder further up, or a link on the way to the file,
// which the file system does not report. Polling finds the new file, and later changes of it are
// noticed at once, without polling.
func TestReplacedParentFolderIsDetected(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a link", "a folder"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			release := func(n int) string {
				folder := filepath.Join(dir, fmt.Sprint("v", n))
				if err := os.MkdirAll(filepath.Join(folder, "conf"), 0o700); err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(folder, "conf", "p.yaml"), version(n))
				return folder
			}
			current := filepath.Join(dir, "current")
			swap := func(n int) {
				folder := release(n)
				if name == "a folder" {
					if n > 1 {
						rename(t, current, filepath.Join(dir, fmt.Sprint("old", n)))
					}
					rename(t, folder, current)
					return
				}
				link(t, folder, filepath.Join(dir, "next"))
				rename(t, filepath.Join(dir, "next"), current)
			}
			swap(1)
			path := filepath.Join(current, "conf", "p.yaml")
			k, reloaded := keep(t, path)
			k.cfg.PollInterval = time.Second
			if _, err := k.Watch(t.Context()); err != nil {
				t.Fatal(err)
			}
			for n := 2; n <= 4; n += 2 {
				swap(n)
				waitFor(t, k, reloaded, int64(n))
				write(t, path, version(n+1))
				waitFor(t, k, reloaded, int64(n+1))
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

// waitFor waits until the version is in force. A half-written version may be rejected before.
func waitFor(t *testing.T, k *Keeper[pair], reloaded chan struct{}, n int64) {
	t.Helper()
	end := time.After(time.Minute)
	for valueOf(t, k) != n {
		select {
		case <-reloaded:
		case <-end:
			t.Fatalf("version %d is not in force: %+v", n, k.Report())
		}
	}
}

// TestNoRequestSeesHalfAFile reads the current value while files change.
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
				if v := k.Current(); v.A != v.B {
					t.Errorf("%+v: half a file", v)
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

func TestFileWrittenInPiecesIsReadWhenComplete(t *testing.T) {
	t.Parallel()
	var d debounce
	begin := time.Now()
	for _, c := range []struct{ event, want time.Duration }{
		{0, quietPeriod}, {90 * time.Millisecond, quietPeriod}, {180 * time.Millisecond, quietPeriod}, // each piece delays it
		{maxQuietWait - 30*time.Millisecond, 30 * time.Millisecond}, {maxQuietWait + time.Millisecond, 0}, // but not for ever
	} {
		if got := d.wait(begin.Add(c.event)); got != c.want {
			t.Errorf("%s after the first event: wait %s, want %s", c.event, got, c.want)
		}
	}
}
