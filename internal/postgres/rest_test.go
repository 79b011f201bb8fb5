package postgres

import (
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// rows returns how many rows the journal has, and the last one's number.
func rows(t *testing.T, s *Store) (n int, last int64) {
	t.Helper()
	scan(t, s.pool, `SELECT count(*), max(seq) FROM journal`, &n, &last)
	return n, last
}

// TestRestingStoreDoesNotWriteJournal: it has no reason to, and an alerter has no privilege to.
func TestRestingStoreDoesNotWriteJournal(t *testing.T) {
	t.Parallel()
	worker, alerter := twoStores(t)
	stopFoldLoop(worker)
	alerter.Rest(t.Context(), true)
	expiredButNamed(t, worker)
	if got := state(t, alerter, "x"); got != "old" {
		t.Fatalf("x is %q", got)
	}
	_, before := rows(t, worker)
	if n, err := alerter.Expire(t.Context(), 10); n != 1 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}
	alerter.foldAll()
	if _, last := rows(t, worker); last != before {
		t.Errorf("it wrote %d rows", last-before)
	}
}

// TestRestingStoreDoesNotReadJournal, and reads all of it when its rest ends: its next decision
// would have to wait for that.
func TestRestingStoreDoesNotReadJournal(t *testing.T) {
	t.Parallel()
	worker, rests := twoStores(t)
	stopFoldLoop(worker, rests)
	update(t, rests, batch("a"), setForever("1"))
	began := rests.lastSeq
	rests.Rest(t.Context(), true)
	update(t, worker, batch("a"), setForever("2"))
	if more, err := rests.foldAged(t.Context()); more || err != nil || rests.lastSeq != began {
		t.Errorf("while it rests: folded %t, %v; read up to row %d, and up to %d before", more, err, rests.lastSeq, began)
	}
	rests.Rest(t.Context(), false)
	if rests.lastSeq != worker.lastSeq {
		t.Errorf("read up to row %d of %d", rests.lastSeq, worker.lastSeq)
	}
}

// TestStoreThatReadNoJournalFoldsNothing: it has made nothing dirty, and who has will fold it.
func TestStoreThatReadNoJournalFoldsNothing(t *testing.T) {
	t.Parallel()
	worker, other := twoStores(t)
	stopFoldLoop(worker, other)
	update(t, worker, batch("a"), setForever("1"))
	more, err := other.foldSome(t.Context(), func() int { return 1 })
	if more || err != nil || other.loaded {
		t.Errorf("folded %t, %v; read the journal: %t", more, err, other.loaded)
	}
	expectTable(t, "as before", worker, map[string]string{}, 1)
}

// TestRowsDeletedByOthersAreNotDeletedAgain, nor searched row by row.
func TestRowsDeletedByOthersAreNotDeletedAgain(t *testing.T) {
	t.Parallel()
	busy := openAsSoleWriter(t)
	idle := open(t, Config{URL: busy.pool.Config().ConnString()})
	stopFoldLoop(idle)
	if got := state(t, idle, "a"); got != "1" {
		t.Fatalf("a is %q", got)
	}
	for range 100 {
		update(t, busy, batch("a"), setForever("2"))
		if got := state(t, idle, "a"); got != "2" {
			t.Fatalf("a is %q", got)
		}
	}
	look := func(s *Store) {
		t.Helper()
		s.nextRetainFrom.At = s.nextRetainFrom.At.Add(-retainTime)
		if _, err := s.foldSome(t.Context(), func() int { return s.cache.dirty.n }); err != nil {
			t.Fatal(err)
		}
	}
	busy.foldPolicy.Drop = 1000
	for range 4 { // not all at once, so that the idle one's last row is kept
		look(busy)
		if got := state(t, idle, "a"); got != "2" {
			t.Fatalf("a is %q", got)
		}
	}
	_, before := rows(t, busy)
	for range 10 {
		look(idle)
	}
	if n, last := rows(t, busy); last-before > 1 || n > 2 {
		t.Errorf("%d rows are left, of which the idle one wrote %d", n, last-before)
	}
}

// TestCleanStopAfterPauseLeavesOneRow: what was folded and deleted before leaves no more rows than
// what is folded now.
func TestCleanStopAfterPauseLeavesOneRow(t *testing.T) {
	t.Parallel()
	s := openAsSoleWriter(t)
	update(t, s, batch("new"), setForever("1"))
	for n := range 4 {
		s.nextRetainFrom.At = s.nextRetainFrom.At.Add(-retainTime)
		fold(t, s, max(0, 1-n))
	}
	s.foldAll()
	if n, _ := rows(t, s); n != 1 {
		t.Errorf("%d rows are left", n)
	}
}

// TestStopFoldsJournalOfKilledWorker: a limiter without requests folds what a killed one left.
func TestStopFoldsJournalOfKilledWorker(t *testing.T) {
	t.Parallel()
	killed, next := twoStores(t)
	stopFoldLoop(killed, next)
	update(t, killed, batch("a"), setForever("1"))
	if err := next.PingDecisions(t.Context()); err != nil {
		t.Fatal(err)
	}
	next.foldAll()
	if n, _ := rows(t, next); n != 1 {
		t.Errorf("%d rows are left", n)
	}
	expectTable(t, "stopped", next, map[string]string{"a": "1"}, 0)
}

// TestStopLeavesJournalToActiveWorker: the worker that has taken over folds it, and would wait for
// its turn meanwhile.
func TestStopLeavesJournalToActiveWorker(t *testing.T) {
	t.Parallel()
	s := open(t, Config{lockTimeout: 10 * time.Second})
	stopFoldLoop(s)
	update(t, s, batch("a"), setForever("1"))
	other := begin(t, s, turnSQL)
	stopped := make(chan struct{})
	go func() { defer close(stopped); s.foldAll() }()
	waitForLock(t, s)
	exec(t, other, `INSERT INTO journal SELECT max(seq) + 1, 7, '' FROM journal`)
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-stopped
	expectTable(t, "another goes on", s, map[string]string{}, 1)
}

// TestWorkerThatMissedRowsForgetsAllDenials: rows that it never read are gone, and may have freed
// any counter.
func TestWorkerThatMissedRowsForgetsAllDenials(t *testing.T) {
	t.Parallel()
	s, other := twoStores(t)
	stopFoldLoop(s, other)
	ask := func() (others engine.Others) {
		t.Helper()
		update(t, s, batch("a"), func(snap engine.Snapshot) engine.Changes { // may be asked twice
			others.All, others.IDs = others.All || snap.Others.All, append(others.IDs, snap.Others.IDs...)
			return set("1")(snap)
		})
		return others
	}
	for when, want := range []bool{true, false} { // it begins, and goes on
		if got := ask(); got.All != want || len(got.IDs) > 0 {
			t.Errorf("decision %d: %+v", when, got)
		}
	}
	update(t, other, batch("b"), set("1"))
	other.foldAll()
	if got := ask(); !got.All {
		t.Errorf("after it missed rows: %+v", got)
	}
}
