package sqlite

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

func TestExpireTableAndJournal(t *testing.T) {
	const now = 1000
	path := filepath.Join(t.TempDir(), "limits.db")
	s := open(t, Config{Path: path, Now: func() time.Time { return time.UnixMilli(now) }})
	setFoldPolicy(s, neverFold)
	write := func(key string, expires int64) {
		t.Helper()
		update(t, s, engine.Batch{Counters: []engine.CounterID{{Key: key, Name: "1m"}}}, func(engine.Snapshot) engine.Changes {
			return engine.Changes{
				Counters: []engine.CounterChange{{State: []byte(key), Spec: []byte("{}"), ExpiresAt: expires}},
			}
		})
	}
	for _, key := range []string{"table", "revived", "later"} {
		write(key, now)
	}
	if _, err := s.foldSome(t.Context(), func() int { return 3 }); err != nil {
		t.Fatal(err)
	}
	// In the table all three have expired; the journal says that revived has not.
	write("revived", now+1)
	write("later", now-1)
	write("journal", now)
	write("fresh", now+1)
	receipts := func(engine.Snapshot) engine.Changes {
		return engine.Changes{Receipts: []engine.Receipt{{ID: "a", ExpiresAt: now}, {ID: "b", ExpiresAt: now + 1}, {ID: "c", ExpiresAt: 1}}}
	}
	update(t, s, engine.Batch{}, receipts)
	for round, want := range []int{2, 2, 1, 0} { // counters 1, 1, 1; receipts 1, 1, 0
		if n, err := s.Expire(t.Context(), 1); err != nil || n != want {
			t.Errorf("round %d: %d, %v; want %d", round, n, err, want)
		}
	}
	for name, s := range map[string]*Store{"here": s, "after a crash": open(t, Config{Path: copyFile(t, s, path)})} {
		for key, want := range map[string]string{"table": "-", "later": "-", "journal": "-", "revived": "revived", "fresh": "fresh"} {
			if got := state(t, s, key); got != want {
				t.Errorf("%s: %s is %q, want %q", name, key, got, want)
			}
		}
		if n := query(t, s, `SELECT count(*) FROM receipts WHERE id = 'b'`) + query(t, s, `SELECT count(*) FROM receipts`); n != 2 {
			t.Errorf("%s: receipts %d", name, n)
		}
	}
}

// TestExpireRemovesOldestFirst, of those in the table and those in the journal alike.
func TestExpireRemovesOldestFirst(t *testing.T) {
	t.Parallel()
	s := open(t, Config{Now: func() time.Time { return time.UnixMilli(1000) }})
	setFoldPolicy(s, neverFold)
	for _, key := range []string{"5", "1", "3", "4", "2", "6"} { // each expires at the time that it is named after
		update(t, s, engine.Batch{Counters: []engine.CounterID{{Key: key, Name: "1m"}}}, func(engine.Snapshot) engine.Changes {
			return engine.Changes{Counters: []engine.CounterChange{{State: []byte(key), Spec: []byte("{}"), ExpiresAt: int64(key[0] - '0')}}}
		})
		if key == "3" {
			fold(t, s, 3)
		}
	}
	for _, key := range []string{"1", "2", "3", "4", "5", "6"} {
		if got := state(t, s, key); got != key {
			t.Errorf("%s is %q before its turn", key, got)
		}
		if n, err := s.Expire(t.Context(), 1); n != 1 || err != nil {
			t.Errorf("removed %d, %v", n, err)
		}
		if got := state(t, s, key); got != "-" {
			t.Errorf("%s is still %q", key, got)
		}
	}
}
