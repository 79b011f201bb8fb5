package overrides_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed503877ad/limits/internal/overrides"
)

// reads is a source whose reads return what the fields say. Each read notes its name.
type reads struct {
	changed, removed int64
	removals         []overrides.Removal
	set              []overrides.Override
	fail             string // the read that fails
	made             []string
}

func (r *reads) read(name string) error {
	r.made = append(r.made, name)
	if r.fail == name {
		return errors.New("the store is away")
	}
	return nil
}

func (r *reads) source() overrides.Source {
	return overrides.Source{
		Revisions: func() (int64, int64, error) { return r.changed, r.removed, r.read("revisions") },
		Removals:  func(int64) ([]overrides.Removal, error) { return r.removals, r.read("removals") },
		Set:       func(int64) ([]overrides.Override, error) { return r.set, r.read("set") },
	}
}

// TestChangesSince: no change is missed, all have to be listed if one could be, and nothing is read in vain.
func TestChangesSince(t *testing.T) {
	t.Parallel()
	removal := func(subject string, revision, previous int64) overrides.Removal {
		return overrides.Removal{ID: id(subject), Revision: revision, Previous: previous}
	}
	set := []overrides.Override{{ID: id("s"), Limit: 1}}
	all := overrides.Changes{Revision: 9, All: true}
	for name, c := range map[string]struct {
		since    int64
		removals []overrides.Removal // the last of them is of revision 8
		want     overrides.Changes
		reads    []string
	}{
		"nothing is known":                     {-1, nil, all, []string{"revisions"}},
		"what is known is of another store":    {10, nil, all, []string{"revisions"}},
		"nothing has changed":                  {9, nil, overrides.Changes{Revision: 9}, []string{"revisions"}},
		"nothing was removed":                  {8, nil, overrides.Changes{Revision: 9, Overrides: set}, []string{"revisions", "set"}},
		"all removals are kept":                {5, []overrides.Removal{removal("a", 7, 5), removal("b", 8, 7)}, overrides.Changes{Revision: 9, Removed: []overrides.ID{id("a"), id("b")}, Overrides: set}, []string{"revisions", "removals", "set"}},
		"the first is no longer kept":          {5, []overrides.Removal{removal("b", 8, 7)}, all, []string{"revisions", "removals"}},
		"one between them is missing":          {5, []overrides.Removal{removal("a", 6, 2), removal("b", 8, 7)}, all, []string{"revisions", "removals"}},
		"the last was made by an old release":  {5, []overrides.Removal{removal("a", 7, 5)}, all, []string{"revisions", "removals"}},
		"every one was made by an old release": {5, nil, all, []string{"revisions", "removals"}},
	} {
		s := &reads{changed: 9, removed: 8, removals: c.removals, set: set}
		got, err := overrides.ChangesSince(c.since, s.source())
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
		if diff := cmp.Diff(c.reads, s.made); diff != "" {
			t.Errorf("%s: reads (-want +got):\n%s", name, diff)
		}
	}
}

// TestFailedReadOfChangesIsAnError, whichever of them fails: else a table would take the changes for read, and never see them.
func TestFailedReadOfChangesIsAnError(t *testing.T) {
	t.Parallel()
	for _, fail := range []string{"revisions", "removals", "set"} {
		s := &reads{changed: 9, removed: 8, fail: fail, removals: []overrides.Removal{{Revision: 8, Previous: 5}}}
		if c, err := overrides.ChangesSince(5, s.source()); err == nil {
			t.Errorf("%s fail: %+v", fail, c)
		}
	}
}
