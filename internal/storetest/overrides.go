package storetest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/overrides"
)

var overrideTests = []test{
	{"an override keeps all its fields", overrideFields},
	{"overrides by policy, page by page", overridePages},
	{"changes since a revision", overrideChanges},
	{"a removal among many overrides is one change", overrideAmongMany},
	{"the number of overrides is bounded, and replacing adds none", overridesFull},
	{"a reader misses no change of writers at the same time", overrideWriters},
	{"expired overrides are removed in batches", expiredOverrides},
}

const manyOverrides = 1000

func override(policy, name, subject string) overrides.Override {
	return overrides.Override{ID: overrides.ID{Policy: policy, Name: name, Subject: subject}, Limit: 5, Reason: "because"}
}

func putOverride(t *testing.T, s overrides.Store, o overrides.Override) {
	t.Helper()
	if err := s.PutOverride(within(t), o, manyOverrides); err != nil {
		t.Fatalf("put: %v", err)
	}
}

func changes(t *testing.T, s overrides.Store, since int64) overrides.Changes {
	t.Helper()
	c, err := s.OverrideChanges(within(t), since)
	if err != nil {
		t.Fatalf("changes since %d: %v", since, err)
	}
	return c
}

func overrideFields(t *testing.T, s Store) {
	burst := int64(0)
	full := overrides.Override{ID: overrides.ID{Policy: "p'", Name: "n\"", Subject: "a:*:ö😀%"}, Limit: 1, Window: "1h", Burst: &burst,
		ExpiresAt: 2, Reason: "why", By: "who", SetAt: 3}
	lifted := override("q", "n", "s")
	lifted.Limit, lifted.Unlimited = 0, true
	putOverride(t, s, override("p'", "n\"", "a:*:ö😀%")) // replaced
	putOverride(t, s, full)
	putOverride(t, s, lifted)
	want := []overrides.Override{full, lifted}
	got, err := s.ListOverrides(within(t), overrides.Filter{Max: 9})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "list", got, want)
	equal(t, "changes", changes(t, s, 0).Overrides, want)
}

func overridePages(t *testing.T, s Store) {
	all := []overrides.Override{override("P", "a", "z"), override("p", "a", "*"), override("p", "a", "x"), override("p", "b", "w"), override("q", "a", "a")}
	for _, i := range []int{3, 0, 4, 2, 1} {
		putOverride(t, s, all[i])
	}
	for _, c := range []struct {
		filter overrides.Filter
		want   []overrides.Override
	}{
		{overrides.Filter{Max: 9}, all},
		{overrides.Filter{Max: 2}, all[:2]},
		{overrides.Filter{Max: 2, After: all[1].ID}, all[2:4]},
		{overrides.Filter{Max: 9, Policy: "p"}, all[1:4]},
		{overrides.Filter{Max: 1, Policy: "p", After: all[2].ID}, all[3:4]},
		{overrides.Filter{Max: 9, Policy: "p", After: all[3].ID}, nil},
	} {
		got, err := s.ListOverrides(within(t), c.filter)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, fmt.Sprintf("%+v", c.filter), got, c.want)
	}
}

func deleteOverride(t *testing.T, s overrides.Store, id overrides.ID) {
	t.Helper()
	if found, err := s.DeleteOverride(within(t), id); !found || err != nil {
		t.Fatalf("delete %v: %t, %v", id, found, err)
	}
}

func overrideChanges(t *testing.T, s Store) {
	a, b := override("p", "n", "a"), override("p", "n", "b")
	equal(t, "at first", changes(t, s, -1), overrides.Changes{All: true})
	equal(t, "and then", changes(t, s, 0), overrides.Changes{})
	putOverride(t, s, a)
	putOverride(t, s, b)
	both := []overrides.Override{a, b}
	equal(t, "both", changes(t, s, 0), overrides.Changes{Revision: 2, Overrides: both})
	a.Limit = 6
	putOverride(t, s, a)
	equal(t, "the one that changed", changes(t, s, 2), overrides.Changes{Revision: 3, Overrides: []overrides.Override{a}})

	deleteOverride(t, s, a.ID)
	equal(t, "after a deletion", changes(t, s, 3), overrides.Changes{Revision: 4, Removed: []overrides.ID{a.ID}})
	equal(t, "of who knows of the deletion", changes(t, s, 4), overrides.Changes{Revision: 4})
	equal(t, "of who knows nothing", changes(t, s, -1), overrides.Changes{Revision: 4, All: true})
	equal(t, "of who knows a store that is gone", changes(t, s, 99), overrides.Changes{Revision: 4, All: true})
	putOverride(t, s, a)
	equal(t, "after that", changes(t, s, 4), overrides.Changes{Revision: 5, Overrides: []overrides.Override{a}})
	deleteOverride(t, s, b.ID)
	equal(t, "removed, and one of them set again", changes(t, s, 3),
		overrides.Changes{Revision: 6, Removed: []overrides.ID{a.ID, b.ID}, Overrides: []overrides.Override{a}})
	if found, err := s.DeleteOverride(within(t), overrides.ID{Policy: "p", Name: "n", Subject: "c"}); found || err != nil {
		t.Errorf("delete nothing: %t, %v", found, err)
	}
	equal(t, "after that", changes(t, s, 6), overrides.Changes{Revision: 6})
}

// overrideAmongMany: whoever deletes or prunes some of many has nobody read the others.
func overrideAmongMany(t *testing.T, s Store) {
	const many, expired = 40, 20
	for i := range many {
		o := override("p", "n", fmt.Sprint(i))
		if i < expired {
			o.ExpiresAt = 10
		}
		putOverride(t, s, o)
	}
	gone := overrides.ID{Policy: "p", Name: "n", Subject: "30"}
	deleteOverride(t, s, gone)
	equal(t, "after a deletion", changes(t, s, many), overrides.Changes{Revision: many + 1, Removed: []overrides.ID{gone}})
	for range 4 {
		if n, err := s.PruneOverrides(within(t), time.UnixMilli(20), expired/4); n != expired/4 || err != nil {
			t.Fatal(n, err)
		}
	}
	c := changes(t, s, many+1)
	equal(t, "after a prune, all", c.All, false)
	equal(t, "after a prune, set", c.Overrides, nil)
	equal(t, "after a prune, removed", len(c.Removed), expired)
}

func overridesFull(t *testing.T, s Store) {
	a := override("p", "n", "a")
	if err := s.PutOverride(within(t), a, 1); err != nil {
		t.Fatal(err)
	}
	if err := s.PutOverride(within(t), override("p", "n", "b"), 1); !errors.Is(err, overrides.ErrFull) {
		t.Errorf("one too many: %v", err)
	}
	a.Limit = 7
	if err := s.PutOverride(within(t), a, 1); err != nil {
		t.Errorf("replace: %v", err)
	}
	equal(t, "changes", changes(t, s, 0).Overrides, []overrides.Override{a})
}

// overrideWriters follows the changes while others set and delete, as a worker does: what it gathers is
// complete.
func overrideWriters(t *testing.T, s Store) {
	const writers, each = 4, 20
	done := make(chan struct{})
	go func() {
		defer close(done)
		concurrently(t, writers, func(w int) error {
			for i := range each {
				o := override("p", fmt.Sprint(w), fmt.Sprint(i))
				if err := s.PutOverride(within(t), o, manyOverrides); err != nil {
					return err
				}
				if i%2 == 0 {
					continue
				}
				if _, err := s.DeleteOverride(within(t), o.ID); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	seen, revision := map[overrides.ID]bool{}, int64(0)
	for last := false; !last; {
		select {
		case <-done:
			last = true
		default:
		}
		c := changes(t, s, revision)
		for _, id := range c.Removed {
			delete(seen, id)
		}
		for _, o := range c.Overrides {
			seen[o.ID] = true
		}
		revision = c.Revision
	}
	equal(t, "overrides", len(seen), writers*each/2)
}

// expiredOverrides: what expired before a time is removed, in parts, and nothing else.
func expiredOverrides(t *testing.T, s Store) {
	for subject, expires := range map[string]int64{"for good": 0, "a": 10, "b": 19, "c": 15, "not yet": 20} {
		o := override("p", "n", subject)
		o.ExpiresAt = expires
		putOverride(t, s, o)
	}
	for i, c := range []struct{ want, revision int }{{2, 6}, {1, 7}, {0, 7}} {
		n, err := s.PruneOverrides(within(t), time.UnixMilli(20), 2)
		if n != c.want || err != nil {
			t.Errorf("prune %d: %d, %v; want %d", i, n, err, c.want)
		}
		// A worker has something to read if some were removed, and not otherwise.
		equal(t, "revision", changes(t, s, -1).Revision, int64(c.revision))
	}
	var left []string
	all, err := s.ListOverrides(within(t), overrides.Filter{Max: 9})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		left = append(left, o.Subject)
	}
	if len(left) != 2 || !strings.Contains(strings.Join(left, ","), "for good") {
		t.Errorf("left: %q", left)
	}
}
