package engine

import (
	"context"
	"encoding/json"
	"fmt"
)

// Status gives the counters of a key that have something used, in order of name. The error wraps
// [ErrUnavailable] or [ErrCorrupt].
func (e *Engine) Status(ctx context.Context, key string) ([]Counter, error) {
	stored, now, err := e.cfg.Store.Counters(ctx, key)
	if err != nil {
		return nil, unavailable("read the counters", err)
	}
	return describe(make([]Counter, 0, len(stored)), stored, now)
}

// List gives up to max counters after the given one that have something used, in order of key and
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

// describe appends those of the stored counters to page that have something used.
func describe(page []Counter, stored []StoredCounter, now int64) ([]Counter, error) {
	for _, s := range stored {
		var spec Spec
		if err := json.Unmarshal(s.Spec, &spec); err != nil {
			return nil, fmt.Errorf("%w: spec of %q %q: %w", ErrCorrupt, s.Key, s.Name, err)
		}
		c, live, err := Describe(s.CounterID, spec, s.State, now)
		if err != nil {
			return nil, fmt.Errorf("counter %q %q: %w", s.Key, s.Name, err)
		}
		if live {
			page = append(page, c)
		}
	}
	return page, nil
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
