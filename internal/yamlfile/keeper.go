package yamlfile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Config is what a [Keeper] needs.
type Config[T any] struct {
	// Path is the file, and What what stands in it, such as "policies", for logs and errors.
	Path, What string
	// Parse reads the text of the file, which errors call name.
	Parse func(name string, data []byte) (*T, error)
	// Refers says that the file names others, which may come after it: one that is refused is tried again, as it is, with each look.
	Refers bool
	// Describe gives attributes for the log line of a file that is in force; nil for none.
	Describe func(*T) []any
	Log      *slog.Logger
	// Look is how often is looked whether another file is there without anything having told so; 5 s unless set.
	Look time.Duration
	// Patience is how long the first read may take; 10 s unless set.
	Patience time.Duration
	// Reloaded is told of each try that found another file; nil for nobody. Tests wait on it.
	Reloaded func()
}

// Keeper holds what a file says, and reads the file anew when it changes. A file that is wrong changes nothing: the last
// good one stays.
type Keeper[T any] struct {
	cfg     Config[T]
	current atomic.Pointer[kept[T]]
	// once says that the file was no regular file at the start, such as a pipe, which cannot be read twice.
	once bool

	// reloading keeps reloads in order. It is another lock than that of what is told: a read may hang, as on a network
	// mount, and [Keeper.Report] must not.
	reloading sync.Mutex
	tried     []byte

	mu       sync.Mutex
	lastErr  error
	failures int64
}

type kept[T any] struct {
	value    *T
	hash     string
	loadedAt time.Time
}

// Report is the state of a file.
type Report[T any] struct {
	// Current is in force; Hash is the [Hash] of its file, and LoadedAt is when that was read.
	Current  *T
	Hash     string
	LoadedAt time.Time
	// Err is why the file as it is now is not in force; nil when it is. Failures counts the files refused.
	Err      error
	Failures int64
}

// NewKeeper reads the file, which must be right. What is no regular file, such as a pipe, is read this once. The wait for such a
// one ends with ctx.
func NewKeeper[T any](ctx context.Context, cfg Config[T]) (*Keeper[T], error) {
	k := &Keeper[T]{cfg: cfg}
	if k.cfg.Look == 0 {
		k.cfg.Look = 5 * time.Second
	}
	if k.cfg.Patience == 0 {
		k.cfg.Patience = 10 * time.Second
	}
	info := stat(cfg.Path)
	data, err := k.readFirst(ctx)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", cfg.What, err)
	}
	k.once = info != nil && !info.Mode().IsRegular()
	value, err := cfg.Parse(cfg.Path, data)
	if err != nil {
		return nil, err
	}
	k.tried = data
	k.put(value, data)
	return k, nil
}

// readFirst reads the file, and says so while it waits. A pipe that nobody writes into has it wait for ever, and nothing can
// end such a read: it is left to itself.
func (k *Keeper[T]) readFirst(ctx context.Context) ([]byte, error) {
	var data []byte
	var err error
	read := make(chan struct{})
	go func() {
		defer close(read)
		data, err = ReadFile(k.cfg.Path)
	}()
	waiting, over := time.After(k.cfg.Patience/10), time.After(k.cfg.Patience)
	for {
		select {
		case <-read:
			return data, err
		case <-waiting:
			k.cfg.Log.Warn("waiting for the file of the "+k.cfg.What, "file", k.cfg.Path)
		case <-over:
			return nil, fmt.Errorf("%s has no end after %s; a pipe needs somebody who writes into it, and closes it", k.cfg.Path, k.cfg.Patience)
		case <-ctx.Done():
			return nil, fmt.Errorf("interrupted: %s has no end yet", k.cfg.Path)
		}
	}
}

// ReadFile reads no more of a file than [Problems.Read] needs to refuse it.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
}

// Hash is the SHA-256 of a file, in hex: what sha256sum prints.
func Hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Current gives what is in force.
func (k *Keeper[T]) Current() *T { return k.current.Load().value }

// Report gives the state of the file.
func (k *Keeper[T]) Report() Report[T] {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.current.Load()
	return Report[T]{Current: c.value, Hash: c.hash, LoadedAt: c.loadedAt, Err: k.lastErr, Failures: k.failures}
}

// Reload reads the file and puts it in force, all of it or nothing. The same file again changes nothing and is not told
// of again.
func (k *Keeper[T]) Reload() error { return k.reload(false, false) }

// Ask is Reload for somebody who waits for the outcome, as who sends SIGHUP: the log has it whatever it is. The same file is
// unchanged, or wrong once more, which counts again.
func (k *Keeper[T]) Ask() error { return k.reload(false, true) }

// Reread is Ask, but the same file counts as another: what it refers to may have changed.
func (k *Keeper[T]) Reread() error { return k.reload(true, true) }

func (k *Keeper[T]) reload(same, asked bool) error {
	k.reloading.Lock()
	defer k.reloading.Unlock()
	data, err := k.readAgain()
	if err == nil && !same && k.tried != nil && slices.Equal(data, k.tried) && !k.again() {
		if asked {
			k.tellSame()
		}
		return k.Report().Err
	}
	if k.cfg.Reloaded != nil {
		defer k.cfg.Reloaded()
	}
	var value *T
	if err != nil {
		k.tried, err = nil, fmt.Errorf("read %s: %w", k.cfg.What, err)
	} else {
		k.tried = data
		value, err = k.cfg.Parse(k.cfg.Path, data) // may read other files, which may hang as well
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		return k.refuse(err, asked)
	}
	k.lastErr = nil
	k.put(value, data)
	return nil
}

// again says that a file which was refused may be right by now, as it is.
func (k *Keeper[T]) again() bool { return k.cfg.Refers && k.Report().Err != nil }

// readAgain reads the file, unless it would wait for somebody to write: what is no regular file was read at the start, and
// says the same for ever, or was put in the place of one, and is refused.
func (k *Keeper[T]) readAgain() ([]byte, error) {
	if k.once {
		return k.tried, nil
	}
	if info := stat(k.cfg.Path); info != nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file; put one in its place", k.cfg.Path)
	}
	return ReadFile(k.cfg.Path)
}

// put puts a file in force.
func (k *Keeper[T]) put(value *T, data []byte) {
	c := &kept[T]{value: value, hash: Hash(data), loadedAt: time.Now()}
	k.current.Store(c)
	attributes := []any{"file", k.cfg.Path}
	if k.cfg.Describe != nil {
		attributes = append(attributes, k.cfg.Describe(value)...)
	}
	k.cfg.Log.Info(k.cfg.What+" loaded", append(attributes, "hash", c.hash)...)
}

// tellSame tells of a file that is as it was when it was read last.
func (k *Keeper[T]) tellSame() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lastErr != nil {
		_ = k.refuse(k.lastErr, true)
		return
	}
	k.cfg.Log.Info(k.cfg.What+" unchanged", "file", k.cfg.Path, "hash", k.current.Load().hash)
}

// refuse keeps the last good file. The same mistake as before is told of again when somebody asked.
func (k *Keeper[T]) refuse(err error, asked bool) error {
	if asked || k.lastErr == nil || k.lastErr.Error() != err.Error() {
		k.failures++
		k.cfg.Log.Error(k.cfg.What+" not loaded: those from before stay in force", "file", k.cfg.Path,
			"hash", k.current.Load().hash, "error", err)
	}
	k.lastErr = err
	return err
}

const (
	// settle is how long a folder has to be still before the file is read: whoever writes it may write in pieces, and
	// the first half of a file may be a file that is right.
	settle = 100 * time.Millisecond
	// longest is how long that is waited for: a folder in which others write all the time is never still.
	longest = time.Second
)

// stillness tells when a folder was still for long enough.
type stillness struct{ first time.Time }

// wait is how long to wait from an event on.
func (s *stillness) wait(now time.Time) time.Duration {
	if s.first.IsZero() {
		s.first = now
	}
	return max(0, min(settle, s.first.Add(longest).Sub(now)))
}

// Watch reloads on every change in the folder of the file, and in the one that it leads to where it is a link, until ctx
// ends. Watching folders instead of the file sees editors that replace it, and Kubernetes, which swaps a link to a
// folder. While a folder is missing nothing tells when it is there, so it is looked for; and nothing tells when a folder
// further up becomes another one, so from time to time it is looked whether the path leads to what it did.
//
// What was no regular file at the start is not watched. ended is closed when it has ended.
func (k *Keeper[T]) Watch(ctx context.Context) (ended <-chan struct{}, err error) {
	if k.once {
		k.cfg.Log.Info("the file of the "+k.cfg.What+" is no regular file: it was read once, and is not followed", "file", k.cfg.Path)
		none := make(chan struct{})
		close(none)
		return none, nil
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", k.cfg.Path, err)
	}
	if _, err := k.watchFolders(w); err != nil {
		w.Close()
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.watch(ctx, w)
	}()
	return done, nil
}

func (k *Keeper[T]) watch(ctx context.Context, w *fsnotify.Watcher) {
	defer w.Close()
	look := time.NewTicker(k.cfg.Look)
	defer look.Stop()
	due := time.After(0) // what changed before the watch began
	var still stillness
	var read os.FileInfo
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-w.Events:
			if !ok {
				return
			}
			due = time.After(still.wait(time.Now()))
		case err, ok := <-w.Errors:
			if !ok {
				return
			}
			k.cfg.Log.Warn("watch the file of the "+k.cfg.What+"; SIGHUP still reloads it", "file", k.cfg.Path, "error", err)
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				due = time.After(settle)
			}
		case <-look.C:
			if due != nil {
				continue
			}
			if same(read, stat(k.cfg.Path)) {
				if k.again() {
					_ = k.Reload() // logged where it fails otherwise than before
				}
				continue
			}
			for _, folder := range w.WatchList() {
				_ = w.Remove(folder) // of its name there may be another one now
			}
			due = time.After(still.wait(time.Now()))
		case <-due:
			due, still = nil, stillness{}
			read = stat(k.cfg.Path)
			missing, err := k.watchFolders(w)
			if err != nil {
				k.cfg.Log.Warn("watch the file of the "+k.cfg.What+"; SIGHUP still reloads it", "file", k.cfg.Path, "error", err)
			}
			if missing {
				due = time.After(longest)
			}
			_ = k.Reload() // logged; behind the watch, so that no change falls between the two
		}
	}
}

// stat gives nil where there is no file.
func stat(path string) os.FileInfo {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	return info
}

// same tells whether a file was not touched, by what tells of it.
func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// watchFolders adds the folder of the file and that of what it leads to, and drops the others. missing says that the file
// is not there, or a folder on the way to it.
func (k *Keeper[T]) watchFolders(w *fsnotify.Watcher) (missing bool, err error) {
	folders := []string{filepath.Dir(k.cfg.Path)}
	real, err := filepath.EvalSymlinks(k.cfg.Path)
	if err == nil {
		folders = append(folders, filepath.Dir(real))
	}
	missing = os.IsNotExist(err)
	for _, folder := range w.WatchList() {
		if !slices.Contains(folders, folder) {
			_ = w.Remove(folder) // may be gone
		}
	}
	for _, folder := range folders {
		if err := w.Add(folder); os.IsNotExist(err) {
			missing = true
		} else if err != nil {
			return missing, fmt.Errorf("watch %s: %w", folder, err)
		}
	}
	return missing, nil
}
