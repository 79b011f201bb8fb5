package postgres

import (
	"maps"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// setForever is set for counters that do not expire.
func setForever(state string) func(engine.Snapshot) engine.Changes { return setUntil(state, 1<<45) }

// table returns the states in the table, whatever the journal says.
func table(t *testing.T, s *Store) map[string]string {
	t.Helper()
	all := make(map[string]string)
	var key, state string
	rows, _ := s.pool.Query(t.Context(), `SELECT key, convert_from(state, 'UTF8') FROM counters`)
	if _, err := pgx.ForEachRow(rows, []any{&key, &state}, func() error { all[key] = state; return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// openAsSoleWriter opens a worker that folds only when told to, and that takes itself for the last
// writer. The table has counters a, b and c in state 1.
func openAsSoleWriter(t *testing.T) *Store {
	t.Helper()
	before, s := twoStores(t)
	stopFoldLoop(before, s)
	update(t, before, batch("a", "b", "c"), setForever("1"))
	before.foldAll()
	if got := state(t, s, "a"); got != "1" {
		t.Fatalf("a is %q", got)
	}
	s.lastWritten = s.lastSeq
	return s
}

// expectTable checks the states in the table, and how many counters are dirty.
func expectTable(t *testing.T, when string, s *Store, want map[string]string, dirty int) {
	t.Helper()
	if got := table(t, s); !maps.Equal(got, want) || s.cache.dirty.n != dirty {
		t.Errorf("%s: the table has %v, and %d counters are dirty; want %v and %d", when, got, s.cache.dirty.n, want, dirty)
	}
}

func TestCounterReadForChangeIsWrittenThrough(t *testing.T) {
	t.Parallel()
	s := openAsSoleWriter(t)
	update(t, s, batch("a", "new", "c"), setForever("2"))
	expectTable(t, "two were read, and one is new", s, map[string]string{"a": "2", "b": "1", "c": "2"}, 1)
	update(t, s, batch("a", "new", "c"), setForever("3"))
	expectTable(t, "all are remembered", s, map[string]string{"a": "2", "b": "1", "c": "2"}, 3)
	s.foldAll()
	expectTable(t, "folded", s, map[string]string{"a": "3", "b": "1", "c": "3", "new": "3"}, 0)
	another := open(t, Config{URL: s.pool.Config().ConnString()})
	if got := state(t, another, "a"); got != "3" {
		t.Errorf("another worker sees %q", got)
	}
}

// A counter whose row has moved becomes dirty, and is folded.
func TestMovedCounterIsFolded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql       string
		at        string // the counter whose ctid a is given
		left, end map[string]string
	}{
		"the row has moved": {
			`UPDATE counters SET state = state WHERE key = 'a'`, "a",
			map[string]string{"a": "1", "b": "2", "c": "1"}, map[string]string{"a": "2", "b": "2", "c": "1"},
		},
		"the row is gone": {
			`DELETE FROM counters WHERE key = 'a'`, "a",
			map[string]string{"b": "2", "c": "1"}, map[string]string{"a": "2", "b": "2", "c": "1"},
		},
		"another row is there": {
			`SELECT`, "c",
			map[string]string{"a": "1", "b": "2", "c": "1"}, map[string]string{"a": "2", "b": "2", "c": "1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openAsSoleWriter(t)
			update(t, s, batch("a", "b", "c"), nothing)
			row := func(key string) *row { return s.cache.get(engine.CounterID{Key: key, Name: "1m"}) }
			row("a").ctid = row(c.at).ctid
			exec(t, s.pool, c.sql)
			update(t, s, batch("a", "b"), setForever("2"))
			expectTable(t, "changed", s, c.left, 2) // which of both has moved is unknown
			s.foldAll()
			expectTable(t, "folded", s, c.end, 0)
			if got := state(t, open(t, Config{URL: s.pool.Config().ConnString()}), "a"); got != "2" {
				t.Errorf("another worker sees %q", got)
			}
		})
	}
}

// TestCTIDIsForgottenAfterChange: a ctid is known only until the row is changed.
func TestCTIDIsForgottenAfterChange(t *testing.T) {
	t.Parallel()
	s := openAsSoleWriter(t)
	for _, step := range []struct {
		decide func(engine.Snapshot) engine.Changes
		known  bool
	}{{nothing, true}, {setForever("2"), false}, {setForever("3"), false}} {
		update(t, s, batch("a", "b"), step.decide)
		for _, id := range slices.Collect(maps.Keys(s.cache.rows)) {
			if got := s.cache.rows[id].ctid != (tid{}); got != step.known {
				t.Errorf("the place of %s is known: %t, want %t", id.Key, got, step.known)
			}
		}
	}
}

// If others write too, they take a changed counter for dirty, and fold it.
func TestNoWriteThroughWhileOthersWrite(t *testing.T) {
	t.Parallel()
	s := openAsSoleWriter(t)
	other := open(t, Config{URL: s.pool.Config().ConnString()})
	stopFoldLoop(other)
	update(t, other, batch("b"), setForever("other"))
	update(t, s, batch("a"), setForever("2"))
	expectTable(t, "another wrote before", s, map[string]string{"a": "1", "b": "1", "c": "1"}, 2)
	update(t, s, batch("c"), setForever("2"))
	expectTable(t, "none did", s, map[string]string{"a": "1", "b": "1", "c": "2"}, 2)
	update(t, s, batch("a"), setForever("3"))
	expectTable(t, "it has changed since it was read", s, map[string]string{"a": "1", "b": "1", "c": "2"}, 2)
}

// TestCleanStopEmptiesJournal, even if the last change needs no folding: an older
// schema has no journal.
func TestCleanStopEmptiesJournal(t *testing.T) {
	t.Parallel()
	s := openAsSoleWriter(t)
	s.shuttingDown = true // so that the row of the change is the first one that stays
	update(t, s, batch("a"), setForever("2"))
	s.foldAll()
	var rows, longest int
	scan(t, s.pool, `SELECT count(*), max(length(changes)) FROM journal`, &rows, &longest)
	if rows != 1 || longest > 16 { // as the migration asks
		t.Errorf("%d rows, the longest of %d bytes", rows, longest)
	}
	before := s.lastSeq
	if s.foldAll(); s.lastSeq != before {
		t.Errorf("it goes on, with row %d behind %d", s.lastSeq, before)
	}
}

// TestInfrequentReaderKeepsItsCache: rows that are not needed stay for some seconds, or until there
// are some megabytes of them. Otherwise a worker that seldom reads the journal would reset its cache
// each time.
func TestInfrequentReaderKeepsItsCache(t *testing.T) {
	t.Parallel()
	for name, age := range map[string]func(*journal.Mark){
		"for some seconds":   func(m *journal.Mark) { m.At = m.At.Add(-retainTime) },
		"for some megabytes": func(m *journal.Mark) { m.Before -= retainBytes },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			infrequentReader(t, age)
		})
	}
}

// infrequentReader has a worker write while another reads seldom. age makes a row old enough to be
// deleted.
func infrequentReader(t *testing.T, age func(*journal.Mark)) {
	s := openAsSoleWriter(t)
	other := open(t, Config{URL: s.pool.Config().ConnString()})
	stopFoldLoop(other)
	rows := func() (n int) {
		t.Helper()
		scan(t, s.pool, `SELECT count(*) FROM journal`, &n)
		return n
	}
	if got := state(t, other, "a"); got != "1" {
		t.Fatalf("a is %q", got)
	}
	known := other.cache
	for _, key := range []string{"a", "b", "c"} {
		update(t, s, batch(key), setForever("2"))
	}
	if got := state(t, other, "a"); got != "2" || other.cache != known {
		t.Errorf("a is %q; forgotten: %t", got, other.cache != known)
	}
	for i, more := range []bool{false, true, false} { // nextRetainFrom becomes retainFrom, and then nothing is left to delete
		age(&s.nextRetainFrom)
		if did, err := s.foldSome(t.Context(), func() int { return 0 }); err != nil || did != more {
			t.Errorf("look %d: folded %t, %v; %d rows", i, did, err, rows())
		}
	}
	if n := rows(); n != 1 {
		t.Errorf("%d rows are left", n)
	}
}
