package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/overrides"
)

func putOverride(t *testing.T, s *Store, subject string) overrides.ID {
	t.Helper()
	id := overrides.ID{Policy: "p", Name: "n", Subject: subject}
	if err := s.PutOverride(t.Context(), overrides.Override{ID: id, Unlimited: true, Reason: "r"}, 10); err != nil {
		t.Fatal(err)
	}
	return id
}

func deleteOverride(t *testing.T, s *Store, id overrides.ID) {
	t.Helper()
	if found, err := s.DeleteOverride(t.Context(), id); !found || err != nil {
		t.Fatal(found, err)
	}
}

// wantChanges fails unless the changes since a revision are as given.
func wantChanges(t *testing.T, s *Store, since int64, all bool, removed ...string) {
	t.Helper()
	c, err := s.OverrideChanges(t.Context(), since)
	if err != nil {
		t.Fatal(err)
	}
	same := c.All == all && len(c.Removed) == len(removed)
	for i := range c.Removed {
		same = same && c.Removed[i].Subject == removed[i]
	}
	if !same {
		t.Errorf("since %d: %+v; want all %t, removed %q", since, c, all, removed)
	}
}

// deleteAsBefore removes an override as releases do that keep no removals.
func deleteAsBefore(t *testing.T, conn *pgx.Conn, id overrides.ID) {
	t.Helper()
	exec(t, conn, `UPDATE override_revision SET changed = changed + 1, removed = changed + 1 WHERE one`)
	exec(t, conn, `DELETE FROM overrides WHERE policy = $1 AND name = $2 AND subject = $3`, id.Policy, id.Name, id.Subject)
}

// TestRemovalsBesideAnOlderLimiter, as during an upgrade: whoever does not know of a removal that an older one made reads all
// overrides, also when a newer one made the next. And an older one is told of each removal as before.
func TestRemovalsBesideAnOlderLimiter(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	conn := connect(t, s)
	a, b, c, d := putOverride(t, s, "a"), putOverride(t, s, "b"), putOverride(t, s, "c"), putOverride(t, s, "d")
	deleteOverride(t, s, a) // revision 5
	wantChanges(t, s, 4, false, "a")
	deleteAsBefore(t, conn, b) // 6
	wantChanges(t, s, 4, true)
	wantChanges(t, s, 5, true)
	deleteOverride(t, s, c) // 7
	deleteOverride(t, s, d) // 8
	wantChanges(t, s, 4, true)
	wantChanges(t, s, 5, true)
	wantChanges(t, s, 6, false, "c", "d")
	wantChanges(t, s, 7, false, "d")
	wantChanges(t, s, 8, false)
	var changed, removed int64
	scan(t, conn, `SELECT changed, removed FROM override_revision`, &changed, &removed)
	if changed != 8 || removed != 8 {
		t.Errorf("an older limiter sees change %d and removal %d; want 8", changed, removed)
	}
}

// TestRemovalsAreForgottenAfterAnHour, with the next removal, and all of one revision together, however many they are. Who
// does not know of them reads all overrides.
func TestRemovalsAreForgottenAfterAnHour(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	conn := connect(t, s)
	a, b, c := putOverride(t, s, "a"), putOverride(t, s, "b"), putOverride(t, s, "c")
	deleteOverride(t, s, a) // revision 4
	exec(t, conn, `INSERT INTO override_removals SELECT revision, previous, policy, name, 'a' || n, at FROM override_removals, generate_series(1, $1) n`, 2*forgetBatch)
	exec(t, conn, `UPDATE override_removals SET at = at - $1`, overrides.KeepRemovals.Milliseconds()*9/10)
	deleteOverride(t, s, b) // 5
	if r, err := s.OverrideChanges(t.Context(), 3); err != nil || r.All || len(r.Removed) != 2*forgetBatch+2 {
		t.Errorf("before an hour has passed: all %t, %d removed, %v", r.All, len(r.Removed), err)
	}
	exec(t, conn, `UPDATE override_removals SET at = at - $1`, overrides.KeepRemovals.Milliseconds()/9)
	deleteOverride(t, s, c) // 6
	wantChanges(t, s, 3, true)
	wantChanges(t, s, 4, false, "b", "c")
	var kept int
	if scan(t, conn, `SELECT count(*) FROM override_removals`, &kept); kept != 2 {
		t.Errorf("%d are kept; want 2", kept)
	}
}
