package engine

import (
	"context"
	"encoding/json"
	"fmt"
)

// MaxKeyCounters is how many counters a key may have for [Engine.Status]: callers name them, so it may have any number.
const MaxKeyCounters = 1000

// Status returns the counters of a key that have something used, in order of name. The error wraps
// [ErrUnavailable], [ErrCorrupt] or [ErrManyCounters].
func (e *Engine) Status(ctx context.Context, key string) ([]Counter, error) {
	stored, now, err := e.cfg.Store.Counters(ctx, key)
	if err != nil {
		return nil, unavailable("read counters", err)
	}
	if len(stored) > MaxKeyCounters {
		return nil, ErrManyCounters
	}
	return describe(make([]Counter, 0, len(stored)), stored, now)
}

// StatusOf returns how each limit stands now, in their order, also where nothing is used: what a check of them finds. It
// counts no denial. The errors are those of a request to the store.
func (e *Engine) StatusOf(ctx context.Context, ls []Limit) ([]Counter, error) {
	d, err := e.Do(ctx, &Request{Verb: Check, Limits: ls, Cost: 1, look: true})
	if err != nil {
		return nil, err
	}
	page := make([]Counter, len(ls))
	for i := range d.Results {
		r := &d.Results[i]
		page[i] = Counter{CounterID: ls[i].CounterID, Spec: ls[i].Spec(), Used: r.Used, Remaining: r.Remaining, ResetAt: r.ResetAt}
	}
	return page, nil
}

// List returns up to max counters after the given one that have something used, in order of key and
// name; more reports whether others follow.
func (e *Engine) List(ctx context.Context, prefix string, after CounterID, max int) (page []Counter, more bool, err error) {
	page = []Counter{}
	for {
		stored, now, err := e.cfg.Store.List(ctx, prefix, after, max+1)
		if err != nil {
			return nil, false, unavailable("list counters", err)
		}
		if page, err = describe(page, stored, now); err != nil {
			return nil, false, err
		}
		if len(page) > max {
			return page[:max], true, nil
		}
		if len(stored) <= max {
			return page, false, nil
		}
		after = stored[len(stored)-1].CounterID
	}
}

// Counter is a stored counter as it stands now.
type Counter struct {
	CounterID
	Spec
	Used, Remaining int64
	// ResetAt is when the whole limit is free again, in Unix milliseconds.
	ResetAt int64
}

// describe appends those of the stored counters to page that have something used.
func describe(page []Counter, stored []StoredCounter, now int64) ([]Counter, error) {
	for i := range stored {
		l, s, err := stored[i].decode()
		if err != nil {
			return nil, err
		}
		s.advance(&l, now)
		if used := s.counting().used(); used > 0 {
			page = append(page, Counter{CounterID: l.CounterID, Spec: l.Spec(), Used: used, Remaining: s.remaining(&l), ResetAt: s.resetAt(now)})
		}
	}
	return page, nil
}

// decode reads the limit and the state of a stored counter. The error wraps [ErrCorrupt].
func (c *StoredCounter) decode() (l Limit, s State, err error) {
	var spec Spec
	if err := json.Unmarshal(c.Spec, &spec); err != nil {
		return l, s, fmt.Errorf("%w: spec of %q %q: %w", ErrCorrupt, c.Key, c.Name, err)
	}
	if l, err = spec.Resolve(c.CounterID); err != nil {
		return l, s, fmt.Errorf("counter %q %q: %w: spec: %w", c.Key, c.Name, ErrCorrupt, err)
	}
	if err := s.Decode(c.State); err != nil {
		return l, s, fmt.Errorf("counter %q %q: %w", c.Key, c.Name, err)
	}
	return l, s, nil
}

// Reset removes counters, or only counts them, and makes all workers forget them.
func (e *Engine) Reset(ctx context.Context, sel Selection, dryRun bool) (int64, error) {
	n, err := e.cfg.Store.Reset(ctx, sel, dryRun)
	if !dryRun {
		// Even a failed reset may have removed some.
		e.forgetAndBroadcast(Forget{Key: sel.Key, Prefix: sel.Prefix, All: sel.Key == "" && sel.Prefix == ""})
	}
	if err != nil {
		return n, unavailable("reset counters", err)
	}
	return n, nil
}

func (e *Engine) forgetAndBroadcast(f Forget) {
	e.Forget(f)
	e.cfg.Broadcast(f)
}

func unavailable(act string, err error) error {
	return fmt.Errorf("%s: %w: %w", act, ErrUnavailable, err)
}
