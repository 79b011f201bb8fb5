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
	// Store keeps the overrides; required.
	Store Store
	// Every is how often the store is asked for changes, 500 ms unless set.
	Every time.Duration
	// Most bounds the overrides, 100,000 unless set.
	Most int
	// MostGlobs bounds the globs of one limit, which a decision tries one after another; 1,000 unless set.
	MostGlobs int
	// Broadcast makes other workers ask at once; they are not told unless set.
	Broadcast func()
	// Logger is told when the store cannot be asked, and when it can again; nothing is logged unless set.
	Logger *slog.Logger
}

func (c *Config) defaults() error {
	if c.Store == nil {
		return errors.New("overrides: Store is missing")
	}
	if c.Every <= 0 {
		c.Every = 500 * time.Millisecond
	}
	if c.Most <= 0 {
		c.Most = 100_000
	}
	if c.MostGlobs <= 0 {
		c.MostGlobs = 1000
	}
	if c.Broadcast == nil {
		c.Broadcast = func() {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// askTimeout bounds one question to the store.
const askTimeout = 5 * time.Second

// Table is all overrides of the store in memory. Its methods may be called at the same time.
type Table struct {
	cfg  Config
	wake chan struct{}
	// asking is held by who asks the store, so that changes are taken over in their order.
	asking   sync.Mutex
	revision int64

	mu     sync.RWMutex
	limits map[limitID]*subjects
	size   atomic.Int64
}

type limitID struct{ policy, name string }

// subjects are the overrides of one limit. globs are in the order in which they are tried: longer ones first.
type subjects struct {
	all   map[string]Override
	globs []string
}

// New makes a table, which is empty until it was refreshed.
func New(cfg Config) (*Table, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	return &Table{cfg: cfg, wake: make(chan struct{}, 1), revision: -1, limits: map[limitID]*subjects{}}, nil
}

// Fixed makes a table of some overrides without a store, for Find alone.
func Fixed(list []Override) *Table {
	t := new(Table)
	t.apply(&Changes{All: true, Overrides: list})
	return t
}

// Find gives the override for a subject of a limit at a time in Unix milliseconds: the one for the subject itself,
// else the one of the longest glob that matches, else none. One that has expired does not count.
func (t *Table) Find(policy, name, subject string, now int64) (Override, bool) {
	if t.size.Load() == 0 {
		return Override{}, false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.limits[limitID{policy, name}]
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

// Put sets an override, on this worker at once and on the others with the broadcast. The error is [ErrFull] when there
// are as many as the table may hold, or as many globs as a decision should try.
func (t *Table) Put(ctx context.Context, o Override) error {
	if glob.Is(o.Subject) && t.tooManyGlobs(o.ID) {
		return fmt.Errorf("set override: %w", ErrFull)
	}
	if err := t.cfg.Store.PutOverride(ctx, o, t.cfg.Most); err != nil {
		return fmt.Errorf("set override: %w", err)
	}
	return t.spread(ctx)
}

func (t *Table) tooManyGlobs(id ID) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.limits[limitID{id.Policy, id.Name}]
	if s == nil || len(s.globs) < t.cfg.MostGlobs {
		return false
	}
	_, known := s.all[id.Subject]
	return !known
}

// Delete removes an override as Put sets one; found is false when there was none.
func (t *Table) Delete(ctx context.Context, id ID) (found bool, err error) {
	if found, err = t.cfg.Store.DeleteOverride(ctx, id); err != nil {
		return false, fmt.Errorf("delete override: %w", err)
	}
	return found, t.spread(ctx)
}

func (t *Table) spread(ctx context.Context) error {
	t.cfg.Broadcast()
	return t.Refresh(ctx)
}

// List gives a page of overrides; more tells whether others follow.
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

// Wake makes Run ask the store at once. It does not block.
func (t *Table) Wake() {
	select {
	case t.wake <- struct{}{}:
	default: // it is about to ask
	}
}

// Run keeps the table fresh until ctx ends. While the store is away the table stays as it is.
func (t *Table) Run(ctx context.Context) {
	tick := time.NewTicker(t.cfg.Every)
	defer tick.Stop()
	outage := outage.New(t.cfg.Logger, slog.LevelWarn, "overrides may be out of date until the store answers", "overrides are up to date again")
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-t.wake:
		}
		err := t.ask(ctx)
		if ctx.Err() != nil {
			return
		}
		outage.Tried(err)
	}
}

func (t *Table) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return t.Refresh(ctx)
}

// Refresh takes over what has changed in the store.
func (t *Table) Refresh(ctx context.Context) error {
	t.asking.Lock()
	defer t.asking.Unlock()
	changes, err := t.cfg.Store.OverrideChanges(ctx, t.revision)
	if err != nil {
		return fmt.Errorf("read overrides: %w", err)
	}
	if changes.Revision == t.revision {
		return nil
	}
	t.apply(&changes)
	t.revision = changes.Revision
	return nil
}

// apply builds the table anew beside the one in use when there is all of it, because that takes a while.
func (t *Table) apply(c *Changes) {
	if c.All {
		limits := map[limitID]*subjects{}
		n := put(limits, c.Overrides)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.limits = limits
		t.size.Store(n)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.size.Add(put(t.limits, c.Overrides))
}

// put adds and replaces overrides and gives how many were added.
func put(limits map[limitID]*subjects, overrides []Override) (added int64) {
	unsorted := map[*subjects]bool{}
	for _, o := range overrides {
		s := limits[limitID{o.Policy, o.Name}]
		if s == nil {
			s = &subjects{all: map[string]Override{}}
			limits[limitID{o.Policy, o.Name}] = s
		}
		if _, known := s.all[o.Subject]; !known {
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

// bySpecificity orders longer globs first, and those of one length by their text, so that all workers agree.
func bySpecificity(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) }
