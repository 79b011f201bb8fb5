package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed503877ad/limits/internal/storetest"
)

// manyKeys returns so many keys that rows of the cache are not marked clean for each row of the
// journal.
func manyKeys() (keys []string) {
	for i := range 4 * cleanPart {
		keys = append(keys, fmt.Sprint("key:", i))
	}
	return keys
}

// TestCountersFoldedByOthersAreClean to a worker that has read the journal.
func TestCountersFoldedByOthersAreClean(t *testing.T) {
	t.Parallel()
	s, other := twoStores(t)
	stopFoldLoop(s, other)
	update(t, other, batch(manyKeys()...), setForever("1"))
	for i, want := range []int{len(manyKeys()), 0} {
		if got := state(t, s, "key:0"); got != "1" || s.cache.dirty.n != want {
			t.Errorf("read %d: the state is %q, and %d counters are dirty; want %d", i, got, s.cache.dirty.n, want)
		}
		fold(t, other, want)
	}
}

// TestCounterFoldedAndChangedIsDirtySinceThen: a worker that has read both needs no earlier row of
// the journal.
func TestCounterFoldedAndChangedIsDirtySinceThen(t *testing.T) {
	t.Parallel()
	s, other := twoStores(t)
	stopFoldLoop(s)
	setFoldPolicy(other, storetest.FoldPolicies[0]) // which folds with each transaction
	for _, want := range []string{"1", "2"} {
		update(t, other, batch("a"), setForever(want))
		if got := state(t, s, "a"); got != want || s.cache.dirty.n != 1 || s.cache.dirty.oldest().dirtySince.Seq != s.lastSeq {
			t.Errorf("the state is %q, and %d counters are dirty since row %d; want %q and row %d",
				got, s.cache.dirty.n, s.cache.dirty.oldest().dirtySince.Seq, want, s.lastSeq)
		}
	}
}

// TestJournalOfKilledWorkerIsTrimmed by one that makes no decisions.
func TestJournalOfKilledWorkerIsTrimmed(t *testing.T) {
	t.Parallel()
	killed, idle := twoStores(t)
	stopFoldLoop(killed, idle)
	update(t, killed, batch("a"), setForever("1"))
	if got := state(t, idle, "a"); got != "1" {
		t.Fatalf("a is %q", got)
	}
	for range 4 {
		idle.nextRetainFrom.At = idle.nextRetainFrom.At.Add(-retainTime)
		if _, err := idle.foldSome(t.Context(), func() int { return idle.cache.dirty.n }); err != nil {
			t.Fatal(err)
		}
	}
	var first int64
	scan(t, idle.pool, `SELECT min(seq) FROM journal`, &first)
	if first <= killed.lastSeq {
		t.Errorf("the journal begins with row %d; want it behind row %d", first, killed.lastSeq)
	}
}

// TestFoldsBeforeRestoreAreForgotten: the table and the journal are restored to what they were before
// a fold, so the counter that was folded is dirty again.
func TestFoldsBeforeRestoreAreForgotten(t *testing.T) {
	t.Parallel()
	s, other := twoStores(t)
	stopFoldLoop(s, other)
	other.shuttingDown = true // so that the journal begins with the row of a, from which on all are needed
	update(t, other, batch("before"), setForever("1"))
	fold(t, other, 1)
	update(t, other, batch("a"), setForever("1"))
	update(t, other, batch(manyKeys()...), setForever("1"))
	conn := connect(t, s)
	exec(t, conn, `CREATE TABLE backup AS SELECT * FROM journal`)
	if got := state(t, s, "a"); got != "1" {
		t.Fatalf("a is %q", got)
	}
	fold(t, other, 1)
	s.optimistic.skips = 1
	update(t, s, batch("a"), nothing)
	if s.foldedTo == nil {
		t.Fatal("the worker has not read of the fold, or has marked the counter clean at once")
	}
	exec(t, conn, `DELETE FROM counters; DELETE FROM journal; INSERT INTO journal SELECT * FROM backup`)
	if got := state(t, s, "a"); got != "1" {
		t.Errorf("a is %q", got)
	}
}

// TestJournalOfSeveralPagesIsRead by a worker that begins, and by one that was away.
func TestJournalOfSeveralPagesIsRead(t *testing.T) {
	t.Parallel()
	away := openAsSoleWriter(t)
	last := away.lastSeq
	execute(t, away, fmt.Sprintf(`INSERT INTO journal SELECT %d + i, i, '' FROM generate_series(1, %d) i`, last, 2*journalPage+1))
	last += 2*journalPage + 1
	for name, s := range map[string]*Store{"who begins": open(t, Config{URL: away.pool.Config().ConnString()}), "who was away": away} {
		if got := state(t, s, "a"); got != "1" || s.lastSeq != last {
			t.Errorf("%s finds a to be %q, and has read up to row %d of %d", name, got, s.lastSeq, last)
		}
	}
	update(t, away, batch("a"), setForever("2"))
	if got := state(t, away, "a"); got != "2" {
		t.Errorf("a is %q after a decision", got)
	}
}

// TestSizeOfReadJournalCounts: what others have written counts for the bound of the journal.
func TestSizeOfReadJournalCounts(t *testing.T) {
	t.Parallel()
	s, other := twoStores(t)
	stopFoldLoop(s, other)
	for _, key := range []string{"a", "b", "c"} {
		update(t, other, batch(key), setForever("12345"))
	}
	if got := state(t, s, "a"); got != "12345" {
		t.Fatalf("a is %q", got)
	}
	d := s.dirtyStats()
	for m := range d.Since {
		var want int64
		scan(t, s.pool, fmt.Sprintf(`SELECT sum(length(changes)) FROM journal WHERE seq >= %d`, m.Seq), &want)
		if got := d.Journaled - m.Before; got != want {
			t.Errorf("from row %d on the journal is taken for %d bytes; want %d", m.Seq, got, want)
		}
	}
}

// journalRow is the statement that writes a row of the journal which changes nothing, and says that
// no row before first is needed.
func journalRow(seq, first int64) string {
	var r record
	r.begin(first)
	r.seal()
	return fmt.Sprintf(`INSERT INTO journal VALUES (%d, %d, '\x%x')`, seq, seq, r.data)
}

// TestRowsBelowWhatIsNeededMayBeMissing: limiters from before rows were kept for others delete only
// some of those that newer ones keep.
func TestRowsBelowWhatIsNeededMayBeMissing(t *testing.T) {
	t.Parallel()
	for name, rows := range map[string][]string{
		"one row":    {journalRow(8665, 8660), journalRow(8667, 8667)},
		"several":    {journalRow(8661, 8660), journalRow(8663, 8660), journalRow(8665, 8663), journalRow(8666, 8665)},
		"many pages": {journalRow(1, 0), journalRow(2, 1), journalRow(1<<14+1, 1<<14+1)},
		"behind a page": {
			journalRow(1, 1), fmt.Sprintf(`INSERT INTO journal SELECT i, i, '' FROM generate_series(2, %d) i`, journalPage),
			journalRow(1<<14, 3), journalRow(1<<14+1, 1<<14),
		},
	} {
		s := openAsSoleWriter(t)
		conn := connect(t, s)
		exec(t, conn, `DELETE FROM journal`)
		for _, sql := range rows {
			exec(t, conn, sql)
		}
		var last int64
		scan(t, s.pool, `SELECT max(seq) FROM journal`, &last)
		for who, s := range map[string]*Store{"who begins": open(t, Config{URL: s.pool.Config().ConnString()}), "who was there": s} {
			got := state(t, s, "a")
			if got != "1" || s.lastSeq != last {
				t.Errorf("%s: %s finds a to be %q, and has read up to row %d; want %d", name, who, got, s.lastSeq, last)
			}
		}
	}
}

// TestWorkerBehindMissingRowsReadsOn: the rows that it has not read were deleted as no longer needed,
// but not the last one that it has read.
func TestWorkerBehindMissingRowsReadsOn(t *testing.T) {
	t.Parallel()
	s := openAsSoleWriter(t)
	last := s.lastSeq
	conn := connect(t, s)
	exec(t, conn, `UPDATE counters SET state = '2'`)
	for _, sql := range []string{
		journalRow(last+2, last+2),
		fmt.Sprintf(`INSERT INTO journal SELECT i, i, '' FROM generate_series(%d, %d) i`, last+3, last+2*journalPage),
	} {
		exec(t, conn, sql)
	}
	if got := state(t, s, "a"); got != "2" || s.lastSeq != last+2*journalPage {
		t.Errorf("a is %q, and rows were read up to %d; want 2 and %d", got, s.lastSeq, last+2*journalPage)
	}
}

// TestLostRowsAreReported: a row is missing that no other one says is folded. What the error
// advises works.
func TestLostRowsAreReported(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"one is lost":                        `DELETE FROM journal WHERE seq = 3`,
		"two are lost":                       `DELETE FROM journal WHERE seq = 3 OR seq = 5`,
		"one is lost, and another was empty": `DELETE FROM journal WHERE seq = 3; UPDATE journal SET changes = '' WHERE seq = 5`,
	} {
		s := open(t, Config{})
		setFoldPolicy(s, storetest.FoldPolicies[3])
		for _, state := range []string{"1", "2", "3", "4", "5", "6"} {
			write(t, s, state)
		}
		conn := connect(t, s)
		exec(t, conn, damage)
		fresh := open(t, Config{URL: s.pool.Config().ConnString()})
		setFoldPolicy(fresh, storetest.FoldPolicies[3])
		for range strings.Count(damage, " OR ") + 1 { // each repair is for one place
			_, _, failed := fresh.Counters(t.Context(), "a")
			err := fresh.Update(t.Context(), batch("a"), set("7"))
			if failed == nil || err == nil || !strings.Contains(err.Error(), "not known to be folded") {
				t.Fatalf("%s: %v; a status: %v", name, err, failed)
			}
			_, repair, _ := strings.Cut(err.Error(), "INSERT")
			repair, _, _ = strings.Cut(repair, ")")
			exec(t, conn, "INSERT"+repair+")")
		}
		if got := state(t, fresh, "a"); got != "6" {
			t.Errorf("%s: after the repair a is %q", name, got)
		}
	}
}
