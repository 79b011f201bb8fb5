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
	equal(t, "changes", changes(t, s, -1).Overrides, want)
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

func overrideChanges(t *testing.T, s Store) {
	a, b := override("p", "n", "a"), override("p", "n", "b")
	equal(t, "at first", changes(t, s, -1), overrides.Changes{All: true})
	equal(t, "and then", changes(t, s, 0), overrides.Changes{})
	putOverride(t, s, a)
	putOverride(t, s, b)
	equal(t, "both", changes(t, s, 0), overrides.Changes{Revision: 2, Overrides: []overrides.Override{a, b}})
	a.Limit = 6
	putOverride(t, s, a)
	equal(t, "the one that changed", changes(t, s, 2), overrides.Changes{Revision: 3, Overrides: []overrides.Override{a}})

	if found, err := s.DeleteOverride(within(t), a.ID); !found || err != nil {
		t.Fatalf("delete: %t, %v", found, err)
	}
	all := overrides.Changes{Revision: 4, All: true, Overrides: []overrides.Override{b}}
	equal(t, "after a deletion", changes(t, s, 3), all)
	equal(t, "of who knows of the deletion", changes(t, s, 4), overrides.Changes{Revision: 4})
	equal(t, "of who knows a store that is gone", changes(t, s, 99), all)
	putOverride(t, s, a)
	equal(t, "after that", changes(t, s, 4), overrides.Changes{Revision: 5, Overrides: []overrides.Override{a}})
	if found, err := s.DeleteOverride(within(t), overrides.ID{Policy: "p", Name: "n", Subject: "c"}); found || err != nil {
		t.Errorf("delete nothing: %t, %v", found, err)
	}
	equal(t, "after that", changes(t, s, 5), overrides.Changes{Revision: 5})
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
	equal(t, "changes", changes(t, s, -1).Overrides, []overrides.Override{a})
}

// overrideWriters follows the changes while others write, as a worker does: what it gathers is
// complete.
func overrideWriters(t *testing.T, s Store) {
	const writers, each = 4, 20
	done := make(chan struct{})
	go func() {
		defer close(done)
		concurrently(t, writers, func(w int) error {
			for i := range each {
				if err := s.PutOverride(within(t), override("p", fmt.Sprint(w), fmt.Sprint(i)), manyOverrides); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	seen, revision := map[overrides.ID]bool{}, int64(-1)
	for last := false; !last; {
		select {
		case <-done:
			last = true
		default:
		}
		c := changes(t, s, revision)
		for _, o := range c.Overrides {
			seen[o.ID] = true
		}
		revision = c.Revision
	}
	equal(t, "overrides", len(seen), writers*each)
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
		// A worker has to read all overrides again if some were removed, and not otherwise.
		equal(t, "revision", changes(t, s, -1).Revision, int64(c.revision))
	}
	var left []string
	for _, o := range changes(t, s, 5).Overrides {
		left = append(left, o.Subject)
	}
	if len(left) != 2 || !strings.Contains(strings.Join(left, ","), "for good") {
		t.Errorf("left: %q", left)
	}
}
