package overrides

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed503877ad/limits/internal/glob"
	"github.com/seed503877ad/limits/internal/outage"
)

// Config configures a [Table].
type Config struct {
	// Store stores the overrides; required.
	Store Store
	// PollInterval is how often the store is asked for changes; 500 ms by default.
	PollInterval time.Duration
	// MaxOverrides is how many overrides there may be; 100,000 by default.
	MaxOverrides int
	// MaxGlobs is how many globs one limit may have, which a decision tries one after another; 1,000 by default.
	MaxGlobs int
	// Broadcast makes other workers call [Table.Wake]; none by default.
	Broadcast func()
	// Logger logs when the store cannot be asked, and when it can again; nothing is logged by default.
	Logger *slog.Logger
}

func (c *Config) defaults() error {
	if c.Store == nil {
		return errors.New("overrides: Store is missing")
	}
	if c.PollInterval <= 0 {
		c.PollInterval = 500 * time.Millisecond
	}
	if c.MaxOverrides <= 0 {
		c.MaxOverrides = 100_000
	}
	if c.MaxGlobs <= 0 {
		c.MaxGlobs = 1000
	}
	if c.Broadcast == nil {
		c.Broadcast = func() {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

const (
	// readTimeout bounds one read of the store.
	readTimeout = 5 * time.Second
	// pageSize is how many overrides are read and decoded without a pause.
	pageSize = 250
)

// Table holds all overrides of the store in memory. It is safe for concurrent use.
type Table struct {
	cfg  Config
	wake chan struct{}
	// refreshing serializes refreshes, so that changes are applied in their order. It guards revision.
	refreshing sync.Mutex
	revision   int64

	mu     sync.RWMutex
	limits map[LimitID]*subjects
	size   atomic.Int64 // the number of overrides, so that Find needs no lock if there are none
	// version counts the changes of the table, after they were made.
	version atomic.Uint64
}

// subjects are the overrides of one limit. globs are in the order in which they are tried, the longest first.
type subjects struct {
	all   map[string]Override
	globs []string
}

// has reports whether there is an override for exactly this subject; s may be nil.
func (s *subjects) has(subject string) bool {
	if s == nil {
		return false
	}
	_, known := s.all[subject]
	return known
}

// New returns a table, which is empty until [Table.Refresh] or [Table.Run] has read the store.
func New(cfg Config) (*Table, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	return &Table{cfg: cfg, wake: make(chan struct{}, 1), revision: -1, limits: map[LimitID]*subjects{}}, nil
}

// Fixed returns a table of given overrides, without a store. Only its Find may be used.
func Fixed(list []Override) *Table {
	t := &Table{limits: map[LimitID]*subjects{}}
	t.apply(&Changes{Overrides: list})
	return t
}

// Find returns the override of a limit for a subject that is in force at a time in Unix milliseconds: the one for exactly
// this subject, or else the one with the longest glob that matches.
func (t *Table) Find(policy, name, subject string, now int64) (Override, bool) {
	if t.size.Load() == 0 {
		return Override{}, false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.limits[LimitID{policy, name}]
	if s == nil {
		return Override{}, false
	}
	if o, ok := s.all[subject]; ok && o.Live(now) {
		return o, true
	}
	for _, pattern := range s.globs {
		if !glob.Match(pattern, subject) {
			continue
		}
		if o := s.all[pattern]; o.Live(now) {
			return o, true
		}
	}
	return Override{}, false
}

// Version is a number that is another one after each change of the table: what was found since it was read holds for as
// long as it stays the same, apart from what expires.
func (t *Table) Version() uint64 { return t.version.Load() }

// Limits returns how many overrides that are in force at a time, in Unix milliseconds, each limit has that has any.
func (t *Table) Limits(now int64) map[LimitID]int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	live := map[LimitID]int{}
	for id, s := range t.limits {
		for _, o := range s.all {
			if o.Live(now) {
				live[id]++
			}
		}
	}
	return live
}

// Put sets an override, on this worker at once and on the others with the broadcast. The error is [ErrFull] if there are
// MaxOverrides others already, or MaxGlobs other globs of the limit; nothing changes then. After any other error the change
// may hold all the same, and may be made again.
func (t *Table) Put(ctx context.Context, o Override) error {
	if glob.Is(o.Subject) && t.tooManyGlobs(o.ID) {
		return fmt.Errorf("set override: %w", ErrFull)
	}
	err := t.cfg.Store.PutOverride(ctx, o, t.cfg.MaxOverrides)
	if err != nil && !errors.Is(err, ErrFull) { // the answer may have been lost
		err = t.cfg.Store.PutOverride(ctx, o, t.cfg.MaxOverrides)
	}
	if !errors.Is(err, ErrFull) {
		t.announce(ctx)
	}
	if err != nil {
		return fmt.Errorf("set override: %w", err)
	}
	return nil
}

// tooManyGlobs reports whether a limit has as many globs as it may, without an override with this id.
func (t *Table) tooManyGlobs(id ID) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.limits[id.limit()]
	return s != nil && len(s.globs) >= t.cfg.MaxGlobs && !s.has(id.Subject)
}

// Delete removes an override, on this worker at once and on the others with the broadcast. found is false if there was none.
// After an error it may be gone all the same.
func (t *Table) Delete(ctx context.Context, id ID) (found bool, err error) {
	known := t.has(id)
	if found, err = t.cfg.Store.DeleteOverride(ctx, id); err != nil { // the answer may have been lost
		found, err = t.cfg.Store.DeleteOverride(ctx, id)
		found = found || known
	}
	t.announce(ctx)
	if err != nil {
		return false, fmt.Errorf("delete override: %w", err)
	}
	return found, nil
}

func (t *Table) has(id ID) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.limits[id.limit()].has(id.Subject)
}

// announce makes this worker and the others read a change. If this one cannot, the change holds all the same, and Run reads
// it as soon as the store can be asked.
func (t *Table) announce(ctx context.Context) {
	t.cfg.Broadcast()
	if err := t.Refresh(ctx); err != nil {
		t.Wake()
	}
}

// List returns a page of overrides. more tells whether further ones follow.
func (t *Table) List(ctx context.Context, f Filter) (page []Override, more bool, err error) {
	max := f.Max
	f.Max++
	if page, err = t.cfg.Store.ListOverrides(ctx, f); err != nil {
		return nil, false, fmt.Errorf("list overrides: %w", err)
	}
	if len(page) > max {
		return page[:max], true, nil
	}
	return page, false, nil
}

// Wake makes Run refresh the table at once. It does not block.
func (t *Table) Wake() {
	select {
	case t.wake <- struct{}{}:
	default: // a refresh is due already
	}
}

// Run keeps the table up to date until ctx ends. While the store cannot be reached, the table stays as it is.
func (t *Table) Run(ctx context.Context) {
	tick := time.NewTicker(t.cfg.PollInterval)
	defer tick.Stop()
	outage := outage.New(t.cfg.Logger, slog.LevelWarn, "cannot read overrides from the store; they may be out of date", "overrides are up to date again")
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-t.wake:
		}
		err := t.Refresh(ctx)
		if ctx.Err() != nil {
			return
		}
		outage.Tried(err)
	}
}

// Refresh reads what has changed in the store.
func (t *Table) Refresh(ctx context.Context) error {
	t.refreshing.Lock()
	defer t.refreshing.Unlock()
	changes, err := t.changes(ctx)
	switch {
	case err != nil:
	case changes.All:
		err = t.readAll(ctx)
	case changes.Revision != t.revision:
		t.apply(&changes)
	}
	if err != nil {
		return fmt.Errorf("read overrides: %w", err)
	}
	t.revision = changes.Revision
	return nil
}

func (t *Table) changes(ctx context.Context) (Changes, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return t.cfg.Store.OverrideChanges(ctx, t.revision)
}

// readAll reads all overrides, page by page. What changes meanwhile has a later revision than the one that was read before,
// so the next refresh reads it again.
//
// After each page it pauses for as long as the page took: decoding 100,000 overrides without a pause would take the only
// processor of a worker from its decisions for a second. A worker that starts makes no decisions yet, and does not pause.
func (t *Table) readAll(ctx context.Context) error {
	limits, n, f := map[LimitID]*subjects{}, int64(0), Filter{Max: pageSize}
	for {
		began := time.Now()
		page, err := t.page(ctx, f)
		if err != nil {
			return err
		}
		n += put(limits, page)
		if len(page) < f.Max {
			break
		}
		f.After = page[len(page)-1].ID
		if t.revision < 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Since(began)):
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limits = limits
	t.size.Store(n)
	t.version.Add(1)
	return nil
}

func (t *Table) page(ctx context.Context, f Filter) ([]Override, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return t.cfg.Store.ListOverrides(ctx, f)
}

// apply applies changes to the table. What was removed and set again is there.
func (t *Table) apply(c *Changes) {
	t.mu.Lock()
	defer t.mu.Unlock()
	removed := remove(t.limits, c.Removed)
	t.size.Add(put(t.limits, c.Overrides) - removed)
	t.version.Add(1)
}

// put adds or replaces overrides. It returns how many were added.
func put(limits map[LimitID]*subjects, overrides []Override) (added int64) {
	unsorted := map[*subjects]bool{}
	for _, o := range overrides {
		s := limits[o.limit()]
		if s == nil {
			s = &subjects{all: map[string]Override{}}
			limits[o.limit()] = s
		}
		if !s.has(o.Subject) {
			added++
			if glob.Is(o.Subject) {
				s.globs = append(s.globs, o.Subject)
				unsorted[s] = true
			}
		}
		s.all[o.Subject] = o
	}
	for s := range unsorted {
		slices.SortFunc(s.globs, bySpecificity)
	}
	return added
}

// remove removes overrides. It returns how many there were.
func remove(limits map[LimitID]*subjects, ids []ID) (removed int64) {
	for _, id := range ids {
		s := limits[id.limit()]
		if !s.has(id.Subject) {
			continue
		}
		removed++
		delete(s.all, id.Subject)
		if glob.Is(id.Subject) {
			s.globs = slices.DeleteFunc(s.globs, func(g string) bool { return g == id.Subject })
		}
	}
	return removed
}

// bySpecificity puts longer globs first. Globs of the same length are ordered by their text, so that all workers agree.
func bySpecificity(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) }
