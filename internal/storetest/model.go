package storetest

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// FoldPolicies fold at once, by number, by size, and never.
var FoldPolicies = []journal.Policy{
	{Rows: math.MaxInt, Most: math.MaxInt64, Least: math.MaxInt64, Some: 3, Drop: 2},
	{After: time.Hour, Rows: 20, Most: math.MaxInt64, Least: math.MaxInt64, Some: 5, Drop: 4},
	{After: time.Hour, Rows: math.MaxInt, PerRow: 60, Least: 100, Most: 4000, Some: 5, Drop: 1},
	{After: time.Hour, Rows: math.MaxInt, Most: math.MaxInt64, Least: math.MaxInt64},
}

// Model is what a store should have: a plain map.
type Model map[engine.CounterID]modelCounter

// modelCounter is a counter of a Model.
type modelCounter struct {
	State, Spec string
	Expires     int64
}

// Step applies the i-th operation of a random history to the model, and to a store unless it is
// nil. pick returns a random number below n.
func (m Model) Step(ctx context.Context, s Store, i int, pick func(n int) int) error {
	switch kind := pick(20); {
	case kind == 0:
		return m.reset(ctx, s, engine.Selection{Key: fmt.Sprintf("k%d", pick(60))})
	case kind == 1:
		return m.reset(ctx, s, engine.Selection{Prefix: fmt.Sprintf("k%d", pick(6))})
	case kind == 2:
		return m.expire(ctx, s)
	default:
		return m.update(ctx, s, i, pick)
	}
}

func (m Model) update(ctx context.Context, s Store, i int, pick func(n int) int) error {
	var ids []engine.CounterID
	for range 1 + pick(12) {
		ids = append(ids, engine.CounterID{Key: fmt.Sprintf("k%d", pick(60)), Name: []string{"1h", "1m"}[pick(2)]})
	}
	slices.SortFunc(ids, engine.CounterID.Compare)
	ids = slices.Compact(ids)
	var c engine.Changes
	before := maps.Clone(m)
	for slot, id := range ids {
		old, known := m[id]
		if pick(4) == 0 && known {
			continue
		}
		now := modelCounter{State: fmt.Sprintf("%d:%s", i, strings.Repeat("x", pick(40))), Spec: old.Spec, Expires: []int64{past, future}[pick(2)] + int64(pick(60))}
		if known && pick(2) == 0 {
			now.Expires = old.Expires
		}
		change := engine.CounterChange{Slot: slot, State: []byte(now.State), ExpiresAt: now.Expires}
		if !known || pick(8) == 0 {
			now.Spec = fmt.Sprintf(`{"limit":%d}`, pick(3))
			change.Spec = []byte(now.Spec)
		}
		m[id], c.Counters = now, append(c.Counters, change)
	}
	if s == nil {
		return nil
	}
	var saw error
	err := s.Update(ctx, engine.Batch{Counters: ids}, func(snap engine.Snapshot) engine.Changes {
		for slot, id := range ids {
			if string(snap.States[slot]) != before[id].State {
				saw = fmt.Errorf("step %d: %v is %q, want %q", i, id, snap.States[slot], before[id].State)
			}
		}
		return c
	})
	if err == nil {
		err = saw
	}
	return err
}

func (m Model) reset(ctx context.Context, s Store, sel engine.Selection) error {
	var want int64
	for id := range m {
		if id.Key == sel.Key || sel.Key == "" && strings.HasPrefix(id.Key, sel.Prefix) {
			delete(m, id)
			want++
		}
	}
	if s == nil {
		return nil
	}
	for _, dry := range []bool{true, false} {
		if n, err := s.Reset(ctx, sel, dry); err != nil || n != want {
			return fmt.Errorf("reset %+v, dry %t: %d, want %d: %w", sel, dry, n, want, err)
		}
	}
	return nil
}

func (m Model) expire(ctx context.Context, s Store) error {
	want := 0
	for id, c := range m {
		if c.Expires < future {
			delete(m, id)
			want++
		}
	}
	if s == nil {
		return nil
	}
	if n, err := s.Expire(ctx, 10_000); err != nil || n != want {
		return fmt.Errorf("expire: %d, want %d: %w", n, want, err)
	}
	return nil
}

// Diff compares the model with what the store lists, page by page, and with the counters of each
// key.
func (m Model) Diff(ctx context.Context, s Store) (string, error) {
	got, want := make(Model), make(Model)
	for id, c := range m {
		want[id] = modelCounter{State: c.State, Spec: c.Spec}
	}
	var after engine.CounterID
	for {
		page, _, err := s.List(ctx, "", after, 7)
		if err != nil {
			return "", err
		}
		if len(page) == 0 {
			break
		}
		for _, c := range page {
			if c.Compare(after) <= 0 {
				return fmt.Sprintf("%v after %v", c.CounterID, after), nil
			}
			after = c.CounterID
			got[after] = modelCounter{State: string(c.State), Spec: string(c.Spec)}
			if err := checkCounters(ctx, s, c); err != nil {
				return "", err
			}
		}
	}
	return cmp.Diff(want, got), nil
}

// checkCounters returns an error if Counters does not return what List did.
func checkCounters(ctx context.Context, s Store, c engine.StoredCounter) error {
	alone, _, err := s.Counters(ctx, c.Key)
	if err == nil && !slices.ContainsFunc(alone, func(o engine.StoredCounter) bool { return cmp.Equal(o, c) }) {
		err = fmt.Errorf("listed is %v, and alone %v", c, alone)
	}
	return err
}
