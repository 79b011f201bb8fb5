package sqlite

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

// fold folds up to n counters, and returns whether there was any work.
func fold(t *testing.T, s *Store, n int) bool {
	t.Helper()
	more, err := s.foldSome(t.Context(), func() int { return n })
	if err != nil {
		t.Fatal(err)
	}
	return more
}

// TestJournalIsTrimmedBitByBit: a transaction deletes a few rows at most, however many are not
// needed any more, because requests wait for it. Without requests it goes on by itself.
func TestJournalIsTrimmedBitByBit(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	setFoldPolicy(s, neverFold)
	if fold(t, s, 0) {
		t.Error("a new file has something to fold")
	}
	for range 6 {
		update(t, s, one, set("1"))
	}
	setFoldPolicy(s, storetest.FoldPolicies[0]) // which drops two
	expect := func(after string, want int64) {
		t.Helper()
		if n := query(t, s, `SELECT count(*) FROM journal`); n != want {
			t.Errorf("%d rows after %s, want %d", n, after, want)
		}
	}
	update(t, s, one, set("2"))
	expect("a transaction", 5)
	update(t, s, one, set("2"))
	expect("another one", 4)
	for _, want := range []int64{2, 0} {
		if !fold(t, s, int(want)) { // the second time nothing is dirty any more
			t.Error("nothing was done")
		}
		expect("a fold", want)
	}
	if fold(t, s, 0) {
		t.Error("an empty journal has something to fold")
	}
}

// TestFoldWritesWhatChanged: the expiry and the spec are written if they are not as the table has
// them, which earlier folds may have changed and changed back.
func TestFoldWritesWhatChanged(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	setFoldPolicy(s, neverFold)
	for i, want := range []struct {
		expires int64
		spec    string
	}{{1, "a"}, {2, "a"}, {1, "a"}, {1, "b"}, {1, "a"}, {1, "a"}} {
		update(t, s, one, func(engine.Snapshot) engine.Changes {
			return engine.Changes{Counters: []engine.CounterChange{{State: []byte{byte(i)}, ExpiresAt: want.expires, Spec: []byte(want.spec)}}}
		})
		fold(t, s, 1)
		if i == 0 {
			s.clean.Purge() // so that the table is what is known of it
		}
		got := query(t, s, fmt.Sprintf(`SELECT count(*) FROM counters WHERE state = x'%02x' AND expires_at = %d AND spec = '%s'`, i, want.expires, want.spec))
		if got != 1 {
			t.Errorf("step %d: the table does not have %+v", i, want)
		}
	}
}

// TestSizeOfReadJournalCounts: what a killed process has left in the journal counts for its bound.
func TestSizeOfReadJournalCounts(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits.db")
	s := open(t, Config{Path: path})
	setFoldPolicy(s, neverFold)
	for i := range 5 {
		update(t, s, engine.Batch{Counters: []engine.CounterID{{Key: fmt.Sprint(i)}}}, set("12345"))
	}
	s = open(t, Config{Path: copyFile(t, s, path)})
	setFoldPolicy(s, neverFold)
	d := s.dirtyStats()
	for m := range d.Since {
		want := query(t, s, fmt.Sprintf(`SELECT sum(length(changes)) FROM journal WHERE seq >= %d`, m.Seq))
		if got := d.Journaled - m.Before; got != want {
			t.Errorf("from row %d on the journal is taken for %d bytes; want %d", m.Seq, got, want)
		}
	}
}

// TestResetInDoubtIsKnownAfterwards: a counter that a reset has removed is gone, although its commit
// failed.
func TestResetInDoubtIsKnownAfterwards(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	setFoldPolicy(s, neverFold)
	update(t, s, one, set("1"))
	fold(t, s, 1)
	commit := s.stmts.commit
	broken, err := s.conn.PrepareContext(t.Context(), `COMMIT; SELECT lost FROM answer`)
	if err != nil {
		t.Fatal(err)
	}
	s.stmts.commit = broken
	if _, err := s.Reset(t.Context(), engine.Selection{Key: "a"}, false); !errors.Is(err, engine.ErrCommitUnknown) {
		t.Errorf("reset: %v", err)
	}
	s.stmts.commit = commit
	update(t, s, one, func(snap engine.Snapshot) engine.Changes {
		if snap.States[0] != nil {
			t.Errorf("it is still %q", snap.States[0])
		}
		return engine.Changes{}
	})
}

// TestDryRunCountsNoCounterTwice: one that is folded while a dry run counts is counted in the
// journal, and not in the table as well.
func TestDryRunCountsNoCounterTwice(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	setFoldPolicy(s, neverFold)
	update(t, s, one, set("1"))
	read, err := s.reader.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = read.Rollback() }()
	unfolded, err := s.countUnfolded(t.Context(), read, keySpan(engine.Selection{}))
	if err != nil {
		t.Fatal(err)
	}
	fold(t, s, 1)
	var folded int64
	if err := read.QueryRowContext(t.Context(), `SELECT count(*) FROM counters`).Scan(&folded); err != nil || unfolded != 1 || folded != 0 {
		t.Errorf("%d in the journal, then %d in the table, %v; want 1 and 0", unfolded, folded, err)
	}
}
