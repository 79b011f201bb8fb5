package yamlfile

import (
	"bytes"
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

// Config configures a [Keeper].
type Config[T any] struct {
	// Path is the path of the file. What names its content, such as "policies", in logs and errors.
	Path, What string
	// Parse parses the content of the file. Its errors refer to the file by name.
	Parse func(name string, data []byte) (*T, error)
	// Refers says that the file refers to other files, which may be created later. If it was rejected, it is tried again at
	// each poll even though it has not changed.
	Refers bool
	// Describe returns attributes for the log line about a file that was loaded; nil for none.
	Describe func(*T) []any
	Log      *slog.Logger
	// PollInterval is how often the file is checked for changes that the file system did not report; 5 s by default.
	PollInterval time.Duration
	// FirstReadTimeout is how long the first read may take; 10 s by default.
	FirstReadTimeout time.Duration
	// Reloaded is called after each attempt to load a changed file; nil for not.
	Reloaded func()
}

// Keeper holds the content of a file, and reloads the file when it changes. A file with mistakes is rejected, and the last
// good one stays in force.
type Keeper[T any] struct {
	cfg     Config[T]
	current atomic.Pointer[loadedFile[T]]
	// readOnce says that the file was not a regular file at the start, but for example a pipe, which cannot be read twice.
	readOnce bool

	// reloading serializes reloads and guards lastData. It is not the lock of the report, because a read may hang, for
	// example on a network mount, and [Keeper.Report] must not.
	reloading sync.Mutex
	lastData  []byte // the content that was last tried, loaded or not; nil if it could not be read

	mu       sync.Mutex
	lastErr  error
	failures int64
}

// loadedFile is a file that was put in force.
type loadedFile[T any] struct {
	value    *T
	hash     string
	loadedAt time.Time
}

// Report is the state of a file.
type Report[T any] struct {
	// Current is in force. Hash is the [Hash] of its file, and LoadedAt is when it was loaded.
	Current  *T
	Hash     string
	LoadedAt time.Time
	// Err is why the current file is not in force; nil if it is. Failures counts the files that were rejected.
	Err      error
	Failures int64
}

// NewKeeper reads the file, and fails if it has mistakes. A file that is not a regular file, such as a pipe, is read only
// here. ctx bounds the wait for it.
func NewKeeper[T any](ctx context.Context, cfg Config[T]) (*Keeper[T], error) {
	k := &Keeper[T]{cfg: cfg}
	if k.cfg.PollInterval == 0 {
		k.cfg.PollInterval = 5 * time.Second
	}
	if k.cfg.FirstReadTimeout == 0 {
		k.cfg.FirstReadTimeout = 10 * time.Second
	}
	info := stat(cfg.Path)
	data, err := k.readFirst(ctx)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", cfg.What, err)
	}
	k.readOnce = info != nil && !info.Mode().IsRegular()
	value, err := cfg.Parse(cfg.Path, data)
	if err != nil {
		return nil, err
	}
	k.lastData = data
	k.putInForce(value, data)
	return k, nil
}

// readFirst reads the file, and logs that it waits if that takes long. Reading a pipe that nobody writes to never ends and
// cannot be interrupted, so it runs in a goroutine that may be abandoned.
func (k *Keeper[T]) readFirst(ctx context.Context) ([]byte, error) {
	var data []byte
	var err error
	read := make(chan struct{})
	go func() {
		defer close(read)
		data, err = ReadFile(k.cfg.Path)
	}()
	slow, timeout := time.After(k.cfg.FirstReadTimeout/10), time.After(k.cfg.FirstReadTimeout)
	for {
		select {
		case <-read:
			return data, err
		case <-slow:
			k.cfg.Log.Warn("still waiting to read the "+k.cfg.What+" file", "file", k.cfg.Path)
		case <-timeout:
			return nil, fmt.Errorf("%s: timed out after %s; a pipe needs a process that writes to it and closes it", k.cfg.Path, k.cfg.FirstReadTimeout)
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: interrupted", k.cfg.Path)
		}
	}
}

// ReadFile reads a file, but of one that is too large no more than [Problems.Read] needs to reject it.
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

// Current returns the content that is in force.
func (k *Keeper[T]) Current() *T { return k.current.Load().value }

// Report returns the state of the file.
func (k *Keeper[T]) Report() Report[T] {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.current.Load()
	return Report[T]{Current: c.value, Hash: c.hash, LoadedAt: c.loadedAt, Err: k.lastErr, Failures: k.failures}
}

// Reload reads the file and, if it has no mistakes, puts it in force. An unchanged file is not loaded or logged again.
func (k *Keeper[T]) Reload() error { return k.reload(false, false) }

// ReloadOnDemand is Reload for somebody who waits for the outcome, for example after SIGHUP: the outcome is logged in any
// case. An unchanged file is logged as unchanged, or as rejected, which then counts as another failure.
func (k *Keeper[T]) ReloadOnDemand() error { return k.reload(false, true) }

// ForceReload is ReloadOnDemand that loads even an unchanged file, because files that it refers to may have changed.
func (k *Keeper[T]) ForceReload() error { return k.reload(true, true) }

func (k *Keeper[T]) reload(force, onDemand bool) error {
	k.reloading.Lock()
	defer k.reloading.Unlock()
	data, err := k.reread()
	if err == nil && !force && k.lastData != nil && bytes.Equal(data, k.lastData) && !k.shouldRetry() {
		if onDemand {
			k.logUnchanged()
		}
		return k.Report().Err
	}
	if k.cfg.Reloaded != nil {
		defer k.cfg.Reloaded()
	}
	var value *T
	if err != nil {
		k.lastData, err = nil, fmt.Errorf("read %s: %w", k.cfg.What, err)
	} else {
		k.lastData = data
		value, err = k.cfg.Parse(k.cfg.Path, data) // without k.mu, since it may read other files, which may hang as well
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		return k.reject(err, onDemand)
	}
	k.lastErr = nil
	k.putInForce(value, data)
	return nil
}

// shouldRetry reports whether a rejected file may be valid by now although it has not changed.
func (k *Keeper[T]) shouldRetry() bool { return k.cfg.Refers && k.Report().Err != nil }

// reread reads the file, unless it is not a regular file, whose read might never end. If it was not regular at the start, its
// content stays what it was. If it replaced a regular file, reread fails.
func (k *Keeper[T]) reread() ([]byte, error) {
	if k.readOnce {
		return k.lastData, nil
	}
	if info := stat(k.cfg.Path); info != nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file; put one in its place", k.cfg.Path)
	}
	return ReadFile(k.cfg.Path)
}

// putInForce makes a file the current one.
func (k *Keeper[T]) putInForce(value *T, data []byte) {
	c := &loadedFile[T]{value: value, hash: Hash(data), loadedAt: time.Now()}
	k.current.Store(c)
	attributes := []any{"file", k.cfg.Path}
	if k.cfg.Describe != nil {
		attributes = append(attributes, k.cfg.Describe(value)...)
	}
	k.cfg.Log.Info(k.cfg.What+" loaded", append(attributes, "hash", c.hash)...)
}

// logUnchanged logs that the file is as it was when it was last read.
func (k *Keeper[T]) logUnchanged() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lastErr != nil {
		_ = k.reject(k.lastErr, true)
		return
	}
	k.cfg.Log.Info(k.cfg.What+" unchanged", "file", k.cfg.Path, "hash", k.current.Load().hash)
}

// reject records and logs that the file is not put in force. The same error as before counts again only on demand. The caller
// holds k.mu.
func (k *Keeper[T]) reject(err error, onDemand bool) error {
	if onDemand || k.lastErr == nil || k.lastErr.Error() != err.Error() {
		k.failures++
		k.cfg.Log.Error(k.cfg.What+" not loaded; the previous ones stay in force", "file", k.cfg.Path,
			"hash", k.current.Load().hash, "error", err)
	}
	k.lastErr = err
	return err
}

const (
	// quietPeriod is how long no event may come from a folder before the file is read. The file may be written in pieces,
	// and its first half may be a valid file.
	quietPeriod = 100 * time.Millisecond
	// maxQuietWait is how long to wait for a quiet period. A folder in which others write all the time never has one.
	maxQuietWait = time.Second
)

// debounce delays reading until a quiet period. first is when the first event came; zero before it.
type debounce struct{ first time.Time }

// wait returns how long to wait after an event.
func (d *debounce) wait(now time.Time) time.Duration {
	if d.first.IsZero() {
		d.first = now
	}
	return max(0, min(quietPeriod, d.first.Add(maxQuietWait).Sub(now)))
}

// Watch reloads the file when it changes, until ctx ends. ended is closed after that.
//
// It watches the folder of the file and, if the file is a symbolic link, the folder of the target. Unlike a watch of the file
// itself, that also notices editors that replace the file, and Kubernetes, which swaps a link to a folder. The file system
// does not report that a missing folder was created or that a folder further up was replaced, so Watch also polls.
//
// A file that was not a regular file at the start is not watched.
func (k *Keeper[T]) Watch(ctx context.Context) (ended <-chan struct{}, err error) {
	if k.readOnce {
		k.cfg.Log.Info("the "+k.cfg.What+" file is not a regular file; it was read once and is not watched", "file", k.cfg.Path)
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
	poll := time.NewTicker(k.cfg.PollInterval)
	defer poll.Stop()
	due := time.After(0) // when to read; at once, because the file may have changed before the watch began
	var events debounce
	var lastRead os.FileInfo
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-w.Events:
			if !ok {
				return
			}
			due = time.After(events.wait(time.Now()))
		case err, ok := <-w.Errors:
			if !ok {
				return
			}
			k.warnUnwatched(err)
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				due = time.After(quietPeriod)
			}
		case <-poll.C:
			if due != nil {
				continue
			}
			if sameFile(lastRead, stat(k.cfg.Path)) {
				if k.shouldRetry() {
					_ = k.Reload() // logged if the error is another than before
				}
				continue
			}
			for _, folder := range w.WatchList() {
				_ = w.Remove(folder) // another folder may have its name now
			}
			due = time.After(events.wait(time.Now()))
		case <-due:
			due, events = nil, debounce{}
			lastRead = stat(k.cfg.Path)
			missing, err := k.watchFolders(w)
			if err != nil {
				k.warnUnwatched(err)
			}
			if missing {
				due = time.After(maxQuietWait)
			}
			_ = k.Reload() // after watchFolders, so that no change in between is missed; an error is logged
		}
	}
}

// stat returns nil if there is no file.
func stat(path string) os.FileInfo {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	return info
}

// sameFile reports whether a file is unchanged, by its identity, modification time and size.
func sameFile(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

func (k *Keeper[T]) warnUnwatched(err error) {
	k.cfg.Log.Warn("cannot watch the "+k.cfg.What+" file; it is still polled", "every", k.cfg.PollInterval, "file", k.cfg.Path, "error", err)
}

// watchFolders makes w watch the folder of the file and that of its target, and no others. missing says that the file or a
// folder does not exist.
func (k *Keeper[T]) watchFolders(w *fsnotify.Watcher) (missing bool, err error) {
	folders := []string{filepath.Dir(k.cfg.Path)}
	real, err := filepath.EvalSymlinks(k.cfg.Path)
	if err == nil {
		folders = append(folders, filepath.Dir(real))
	}
	missing = os.IsNotExist(err)
	for _, folder := range w.WatchList() {
		if !slices.Contains(folders, folder) {
			_ = w.Remove(folder) // fails if the folder is gone
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
