package sqlite

import (
	"context"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/seed503877ad/limits/internal/engine"
)

// model is what a store should hold: plain maps.
type model map[engine.CounterID]counter

type counter struct {
	State, Spec string
	Expires     int64
}

// step does the i-th operation of a random history to a store (unless it is nil) and to the model; i is the time as
// well. pick gives a random number below n.
func (m model) step(ctx context.Context, s *Store, i int, pick func(n int) int) error {
	switch kind := pick(20); {
	case kind == 0:
		return m.reset(ctx, s, engine.Selection{Key: fmt.Sprintf("k%d", pick(60))})
	case kind == 1:
		return m.reset(ctx, s, engine.Selection{Prefix: fmt.Sprintf("k%d", pick(6))})
	case kind == 2:
		return m.expire(ctx, s, int64(i))
	default:
		return m.update(ctx, s, i, pick)
	}
}

func (m model) update(ctx context.Context, s *Store, i int, pick func(n int) int) error {
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
		now := counter{State: fmt.Sprintf("%d:%s", i, strings.Repeat("x", pick(40))), Spec: old.Spec, Expires: int64(i + pick(60))}
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

func (m model) reset(ctx context.Context, s *Store, sel engine.Selection) error {
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

func (m model) expire(ctx context.Context, s *Store, now int64) error {
	want := 0
	for id, c := range m {
		if c.Expires <= now {
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

// diff compares the model with what a store lists, page by page, and with the counters of each key.
func (m model) diff(ctx context.Context, s *Store) (string, error) {
	got, want := make(model), make(model)
	for id, c := range m {
		want[id] = counter{State: c.State, Spec: c.Spec}
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
			got[after] = counter{State: string(c.State), Spec: string(c.Spec)}
			if err := sameAlone(ctx, s, c); err != nil {
				return "", err
			}
		}
	}
	return cmp.Diff(want, got), nil
}

// sameAlone holds that Counters gives what List gave.
func sameAlone(ctx context.Context, s *Store, c engine.StoredCounter) error {
	alone, _, err := s.Counters(ctx, c.Key)
	if err == nil && !slices.ContainsFunc(alone, func(o engine.StoredCounter) bool { return cmp.Equal(o, c) }) {
		err = fmt.Errorf("List gives %v and Counters %v", c, alone)
	}
	return err
}

// tune sets when transactions fold, and ends the folding by itself, which would come at any moment.
func tune(s *Store, p foldPolicy) {
	s.cancel()
	<-s.tended
	s.fold = p
}

// policies fold at once, by number, by size, and never.
var policies = []foldPolicy{
	{rows: math.MaxInt, most: math.MaxInt64, least: math.MaxInt64, some: 3, drop: 2},
	{after: time.Hour, rows: 20, most: math.MaxInt64, least: math.MaxInt64, some: 5, drop: 4},
	{after: time.Hour, rows: math.MaxInt, perRow: 60, least: 100, most: 4000, some: 5, drop: 1},
	{after: time.Hour, rows: math.MaxInt, most: math.MaxInt64, least: math.MaxInt64},
}

// TestModel runs random histories, with folding in between, with reopening, and with what is in memory read again.
func TestModel(t *testing.T) {
	t.Parallel()
	now := 0
	cfg := Config{
		Path: filepath.Join(t.TempDir(), "limits.db"), Now: func() time.Time { return time.UnixMilli(int64(now)) },
	}
	var s *Store
	reopen := func() {
		if s != nil {
			s.Close()
		}
		var err error
		if s, err = Open(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	reopen()
	defer func() { s.Close() }()
	rapid.Check(t, func(t *rapid.T) {
		pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") }
		if _, err := s.Reset(t.Context(), engine.Selection{}, false); err != nil {
			t.Fatal(err)
		}
		m := make(model)
		tune(s, policies[pick(len(policies))])
		for range 1 + pick(25) {
			now++
			switch pick(30) {
			case 0:
				if pick(3) > 0 { // it is dear
					continue
				}
				reopen()
				tune(s, policies[pick(len(policies))])
			case 1:
				s.stale = true // as after a commit whose answer was lost
			}
			if err := m.step(t.Context(), s, now, pick); err != nil {
				t.Fatal(err)
			}
		}
		if diff, err := m.diff(t.Context(), s); diff != "" || err != nil {
			t.Fatalf("(-want +got)\n%s%v", diff, err)
		}
	})
}
