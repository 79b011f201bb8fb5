package overrides_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// pruner is a store whose expired overrides a job removes.
type pruner interface {
	overrides.Store
	PruneOverrides(ctx context.Context, before time.Time, max int) (int, error)
}

// counting counts the overrides that are read from a store.
type counting struct {
	pruner
	read atomic.Int64
}

func (c *counting) OverrideChanges(ctx context.Context, since int64) (overrides.Changes, error) {
	changes, err := c.pruner.OverrideChanges(ctx, since)
	c.read.Add(int64(len(changes.Overrides)))
	return changes, err
}

func (c *counting) ListOverrides(ctx context.Context, f overrides.Filter) ([]overrides.Override, error) {
	page, err := c.pruner.ListOverrides(ctx, f)
	c.read.Add(int64(len(page)))
	return page, err
}

// TestRemovalsReadNoOtherOverrides: a worker with many of them would otherwise answer late for each removal. Both one that
// was deleted and those that a job removes are gone, and the rest is there.
func TestRemovalsReadNoOtherOverrides(t *testing.T) {
	t.Parallel()
	eachstore.Run(t, func(t *testing.T, s pruner) {
		const expired, left = 90, 10
		store := &counting{pruner: s}
		here, other := table(t, overrides.Config{Store: store}), table(t, overrides.Config{Store: store})
		for i := range expired {
			set(t, here, fmt.Sprintf("old:%d", i), 1, 10)
		}
		for i := range left {
			set(t, here, fmt.Sprintf("new:%d", i), 2, 0)
		}
		set(t, here, "new:*", 3, 0)
		set(t, here, "new:1*", 4, 0)
		if err := other.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := store.read.Swap(0); n < expired+left {
			t.Fatalf("%d were read", n)
		}
		for _, subject := range []string{"new:7", "new:1*"} {
			if found, err := here.Delete(t.Context(), id(subject)); !found || err != nil {
				t.Fatal(found, err)
			}
		}
		for n := 1; n > 0; {
			var err error
			if n, err = s.PruneOverrides(t.Context(), time.UnixMilli(20), 20); err != nil {
				t.Fatal(err)
			}
		}
		for _, table := range []*overrides.Table{here, other} {
			if err := table.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			want(t, table, "old:7", 0, 0)
			want(t, table, "new:8", 0, 2)
			want(t, table, "new:7", 0, 3) // the glob
			want(t, table, "new:1x", 0, 3)
		}
		if n := store.read.Load(); n > 0 {
			t.Errorf("%d overrides were read for removals", n)
		}
	})
}

// many is a store with n overrides, each page of which takes a while, as it does on a slow server.
type many struct {
	overrides.Store
	n, pages int
	failing  int // the page that cannot be read; none if it is 0
	pageTime time.Duration
}

func (m *many) OverrideChanges(context.Context, int64) (overrides.Changes, error) {
	return overrides.Changes{Revision: 1, All: true}, nil
}

func (m *many) ListOverrides(ctx context.Context, f overrides.Filter) (page []overrides.Override, err error) {
	if m.pages++; m.pages == m.failing {
		return nil, errors.New("the store is away")
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(m.pageTime):
	}
	next := 0
	if f.After.Subject != "" {
		if _, err := fmt.Sscan(f.After.Subject, &next); err != nil {
			return nil, err
		}
		next++
	}
	for ; next < m.n && len(page) < f.Max; next++ {
		page = append(page, overrides.Override{ID: id(fmt.Sprint(next)), Limit: 1, Reason: "r"})
	}
	return page, nil
}

// TestReadOfAllLeavesHalfOfTheTime to decisions, of which there are none before the first read. However long it takes, it
// is not given up as long as pages arrive.
func TestReadOfAllLeavesHalfOfTheTime(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1000, 1001} {
		synctest.Test(t, func(t *testing.T) {
			s := &many{n: n, pageTime: 4 * time.Second}
			table := table(t, overrides.Config{Store: s})
			for _, pauses := range []bool{false, true} {
				s.pages = 0
				began := time.Now()
				if err := table.Refresh(t.Context()); err != nil {
					t.Fatal(err)
				}
				least := time.Duration(s.pages) * s.pageTime
				if pauses {
					least += time.Duration(s.pages-1) * s.pageTime
				}
				if took := time.Since(began); s.pages < 4 || took != least {
					t.Errorf("%d pages took %s; want %s", s.pages, took, least)
				}
				for _, i := range []int{0, n / 2, n - 1} {
					want(t, table, fmt.Sprint(i), 0, 1)
				}
			}
		})
	}
}

// TestReadOfAllThatFailsLeavesTheTable as it was: what was on the page that failed would be missing.
func TestReadOfAllThatFailsLeavesTheTable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &many{n: 1000}
		table := table(t, overrides.Config{Store: s})
		if err := table.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, failing := range []int{1, 2, 5} {
			s.pages, s.failing = 0, failing
			if err := table.Refresh(t.Context()); err == nil {
				t.Errorf("page %d failed, and no error", failing)
			}
			want(t, table, "0", 0, 1)
			want(t, table, "999", 0, 1)
		}
	})
}

// TestReadOfAllEndsWithItsContext, also between two pages, and leaves the table as it was.
func TestReadOfAllEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &many{n: 1000, pageTime: time.Second}
		table := table(t, overrides.Config{Store: s})
		if err := table.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.n, s.pages = 999, 0
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		if err := table.Refresh(ctx); !errors.Is(err, context.DeadlineExceeded) || s.pages != 1 {
			t.Errorf("%v, after %d pages", err, s.pages)
		}
		want(t, table, "999", 0, 1)
	})
}
