package sqlite

import (
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/overrides"
)

// TestRemovalsAreForgottenAfterAnHour, with the next removal. Who does not know of them reads all overrides.
func TestRemovalsAreForgottenAfterAnHour(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000)
	s := open(t, Config{Now: func() time.Time { return now }})
	remove := func(subject string) {
		t.Helper()
		id := overrides.ID{Policy: "p", Name: "n", Subject: subject}
		if err := s.PutOverride(t.Context(), overrides.Override{ID: id, Unlimited: true, Reason: "r"}, 10); err != nil {
			t.Fatal(err)
		}
		if found, err := s.DeleteOverride(t.Context(), id); !found || err != nil {
			t.Fatal(found, err)
		}
	}
	want := func(since int64, all bool, removed int) {
		t.Helper()
		c, err := s.OverrideChanges(t.Context(), since)
		if err != nil || c.All != all || len(c.Removed) != removed {
			t.Errorf("since %d: %+v, %v; want all %t, %d removed", since, c, err, all, removed)
		}
	}
	remove("a") // revision 2
	now = now.Add(overrides.KeepRemovals)
	remove("b") // 4
	want(1, false, 2)
	now = now.Add(time.Millisecond)
	remove("c") // 6
	want(1, true, 0)
	want(2, false, 2)
	if n := query(t, s, `SELECT count(*) FROM override_removals`); n != 2 {
		t.Errorf("%d are kept; want 2", n)
	}
}
