package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Keeper holds the policies in force and reads their file anew when it changes. A file that is wrong changes nothing:
// the last good one stays.
type Keeper struct {
	path    string
	options Options
	log     *slog.Logger
	set     atomic.Pointer[Set]

	mu       sync.Mutex
	tried    []byte
	lastErr  error
	failures int64
	// reloaded tells of each try that found another file; for tests.
	reloaded func()
}

// Report is how it stands with the file.
type Report struct {
	Set *Set
	// Err is why the file as it is now is not in force; nil when it is. Failures counts the files refused.
	Err      error
	Failures int64
}

// NewKeeper reads the file, which must be right.
func NewKeeper(path string, o Options, log *slog.Logger) (*Keeper, error) {
	k := &Keeper{path: path, options: o, log: log, reloaded: func() {}}
	data, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("read policies: %w", err)
	}
	set, err := Parse(path, data, o)
	if err != nil {
		return nil, err
	}
	k.tried = data
	k.put(set)
	return k, nil
}

// Current gives the policies in force.
func (k *Keeper) Current() *Set { return k.set.Load() }

// Resolve asks the policies in force.
func (k *Keeper) Resolve(q Question) (Resolved, error) { return k.Current().Resolve(q) }

// Report tells how it stands.
func (k *Keeper) Report() Report {
	k.mu.Lock()
	defer k.mu.Unlock()
	return Report{Set: k.Current(), Err: k.lastErr, Failures: k.failures}
}

// Reload reads the file and puts it in force, all of it or nothing. The same file again changes nothing and is not told
// of again.
func (k *Keeper) Reload() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	data, err := readFile(k.path)
	if err == nil && k.tried != nil && slices.Equal(data, k.tried) {
		return k.lastErr
	}
	defer k.reloaded()
	var set *Set
	if err != nil {
		k.tried, err = nil, fmt.Errorf("read policies: %w", err)
	} else {
		k.tried = data
		set, err = Parse(k.path, data, k.options)
	}
	if err != nil {
		return k.refuse(err)
	}
	k.lastErr = nil
	k.put(set)
	return nil
}

// put puts a set in force.
func (k *Keeper) put(set *Set) {
	k.set.Store(set)
	k.log.Info("policies loaded", "file", k.path, "policies", len(set.policies), "hash", set.hash)
}

// refuse keeps the last good file.
func (k *Keeper) refuse(err error) error {
	if k.lastErr == nil || k.lastErr.Error() != err.Error() {
		k.failures++
		k.log.Error("policies not loaded: those from before stay in force", "file", k.path, "hash", k.Current().hash, "error", err)
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
// folder.
//
// ended is closed when it has ended.
func (k *Keeper) Watch(ctx context.Context) (ended <-chan struct{}, err error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", k.path, err)
	}
	if err := k.watchFolders(w); err != nil {
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

func (k *Keeper) watch(ctx context.Context, w *fsnotify.Watcher) {
	defer w.Close()
	_ = k.Reload() // what changed before the watch began; an error is logged
	var due <-chan time.Time
	var still stillness
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
			k.log.Warn("watch the policy file; SIGHUP still reloads it", "file", k.path, "error", err)
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				due = time.After(settle)
			}
		case <-due:
			due, still = nil, stillness{}
			_ = k.Reload() // logged
			if err := k.watchFolders(w); err != nil {
				k.log.Warn("watch the policy file; SIGHUP still reloads it", "file", k.path, "error", err)
			}
		}
	}
}

// watchFolders adds the folder of the file and that of what it leads to, and drops the others.
func (k *Keeper) watchFolders(w *fsnotify.Watcher) error {
	folders := []string{filepath.Dir(k.path)}
	if real, err := filepath.EvalSymlinks(k.path); err == nil {
		folders = append(folders, filepath.Dir(real))
	}
	for _, folder := range w.WatchList() {
		if !slices.Contains(folders, folder) {
			_ = w.Remove(folder) // may be gone
		}
	}
	for _, folder := range folders {
		if err := w.Add(folder); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("watch %s: %w", folder, err)
		}
	}
	return nil
}
