package postgres

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unique"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
	"github.com/seed503877ad/limits/internal/storetest"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestRecordRoundTrip(t *testing.T) {
	a, b, c := engine.CounterID{Key: "a", Name: "1m"}, engine.CounterID{Key: "\x01ä", Name: ""}, engine.CounterID{Key: "c", Name: "1h"}
	var r record
	r.begin(300)
	r.change(a, -5, []byte{0, 1}, unique.Make("{}"))
	r.remove(b)
	r.change(b, 1<<60, nil, unique.Make("other"))
	r.change(c, 7, []byte("x"), unique.Make("{}"))
	r.seal()
	var got []string
	keep := func(e *entry) {
		spec := ""
		if !e.removed {
			spec = e.spec.Value()
		}
		got = append(got, fmt.Sprintf("%t %q %q %d %q %q", e.removed, e.key, e.name, e.expires, e.state, spec))
	}
	first, err := decode(r.data, keep)
	if err != nil || first != 300 {
		t.Fatal(first, err)
	}
	want := []string{
		`false "a" "1m" -5 "\x00\x01" "{}"`, `true "\x01ä" "" 0 "" ""`, `false "\x01ä" "" 1152921504606846976 "" "other"`,
		`false "c" "1h" 7 "x" "{}"`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestDecodeInvalidContent has rows with a correct checksum and a wrong content.
func TestDecodeInvalidContent(t *testing.T) {
	row := func(body []byte) []byte {
		r := record{data: body}
		r.seal()
		return r.data
	}
	rapid.Check(t, func(t *rapid.T) {
		body := append(journal.Begin(nil), rapid.SliceOf(rapid.ByteRange(0, 5)).Draw(t, "body")...)
		_, _ = decode(row(body), func(*entry) {}) // does not panic
	})
	head := append(journal.Begin(nil), 0, changed, 1, 'a', 1, 'b')
	for name, tail := range map[string]string{
		"no fields": "", "no state": "\x00", "a long state": "\x00\x05xx", "a length without end": "\x00\xff\xff",
		"no spec": "\x00\x00", "a spec that was not met": "\x00\x00\x00",
	} {
		if _, err := decode(row(append(head[:len(head):len(head)], tail...)), func(*entry) {}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// setFoldPolicy sets when transactions fold, and stops foldLoop.
func setFoldPolicy(s *Store, p journal.Policy) {
	stopFoldLoop(s)
	s.foldPolicy = p
}

// stopFoldLoop stops foldLoop, which would fold at any moment.
func stopFoldLoop(all ...*Store) {
	for _, s := range all {
		s.cancel()
		<-s.foldLoopDone
		s.foldTimeout = time.Minute // which a busy machine may need
	}
}

// fold folds up to n counters.
func fold(t *testing.T, s *Store, n int) {
	t.Helper()
	if _, err := s.foldSome(t.Context(), func() int { return n }); err != nil {
		t.Fatal(err)
	}
}

// kill ends a store as if its process was killed: it folds nothing.
func kill(s *Store) {
	s.pool.Close()
	s.relay.Close()
}

// TestModel runs random histories on several workers of one database. They fold in between,
// restart, start with an empty cache, reset their cache, and decide in turn as well as
// optimistically.
func TestModel(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	workers := make([]*Store, 3)
	begin := func(w, policy int) {
		if workers[w] != nil {
			kill(workers[w])
		}
		s, err := Open(t.Context(), Config{URL: url, maxConns: 2, decisionIdle: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		workers[w] = s
		setFoldPolicy(s, storetest.FoldPolicies[policy])
	}
	for w := range workers {
		begin(w, w)
		defer func() { workers[w].Close() }()
	}
	i := 0
	rapid.Check(t, func(t *rapid.T) {
		pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") }
		if _, err := workers[0].Reset(t.Context(), engine.Selection{}, false); err != nil {
			t.Fatal(err)
		}
		m := make(storetest.Model)
		for range 1 + pick(25) {
			i++
			w := pick(len(workers))
			switch pick(25) {
			case 0:
				begin(w, pick(len(storetest.FoldPolicies)))
			case 1:
				workers[w].resetCache()
			case 2:
				workers[w].foldAll()
				workers[w].foldPolicy = storetest.FoldPolicies[pick(len(storetest.FoldPolicies))]
			}
			s := workers[w]
			if pick(2) == 0 {
				s.optimistic = backoff{}
			}
			if s.shuttingDown = pick(2) == 0; !s.shuttingDown && pick(2) == 0 { // some time has passed
				s.nextRetainFrom.At = s.nextRetainFrom.At.Add(-retainTime)
			}
			if _, _, err := s.Counters(t.Context(), "k0"); err != nil { // it has read the journal
				t.Fatal(err)
			}
			if pick(2) == 0 {
				s.lastWritten = s.lastSeq // it takes itself for the sole writer, and writes through
			}
			s.counterScan.limit = 1 + pick(5)
			if err := m.Step(t.Context(), s, i, pick); err != nil {
				t.Fatal(err)
			}
		}
		if diff, err := m.Diff(t.Context(), workers[pick(len(workers))]); diff != "" || err != nil {
			t.Fatalf("(-want +got)\n%s%v", diff, err)
		}
	})
}

// TestFoldedJournalRowsAreDeleted, whichever worker folds.
func TestFoldedJournalRowsAreDeleted(t *testing.T) {
	a, b := twoStores(t)
	for _, s := range []*Store{a, b} {
		setFoldPolicy(s, storetest.FoldPolicies[0])
	}
	for i := range 200 {
		if err := []*Store{a, b}[i%2].Update(t.Context(), batch("x", "y"), set(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	a.foldAll()
	var rows int
	if err := connect(t, a).QueryRow(t.Context(), `SELECT count(*) FROM journal`).Scan(&rows); err != nil || rows != 1 {
		t.Errorf("%d rows, %v; want 1", rows, err)
	}
	if got := state(t, b, "x"); got != "199" {
		t.Errorf("state %q", got)
	}
	if b.cache.dirty.n != 0 {
		t.Errorf("%d counters are dirty to the one that did not fold", b.cache.dirty.n)
	}
}

// TestJournalIsTrimmedBitByBit: a transaction deletes a few rows at most, however many are not
// needed any more, because requests of all workers wait for it.
func TestJournalIsTrimmedBitByBit(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	setFoldPolicy(s, storetest.FoldPolicies[3])
	for range 5 { // with the row that is always there, six
		update(t, s, batch("a"), set("1"))
	}
	setFoldPolicy(s, storetest.FoldPolicies[0]) // which drops two
	s.shuttingDown = true                       // so that none is retained for others
	for _, want := range []int{5, 4, 3, 2, 1, 1} {
		update(t, s, batch("a"), set("2"))
		if n, _ := rows(t, s); n != want {
			t.Errorf("%d rows, want %d", n, want)
		}
	}
}

// TestRestoredJournalIsNoticed has the database restored to an older state while a worker runs: the
// worker notices, however many rows were written since.
func TestRestoredJournalIsNoticed(t *testing.T) {
	s, other := twoStores(t)
	write(t, s, "1")
	conn := connect(t, s)
	exec(t, conn, `CREATE TABLE backup AS SELECT * FROM journal`)
	write(t, s, "2")
	write(t, s, "3")
	exec(t, conn, `DELETE FROM journal; INSERT INTO journal SELECT * FROM backup`)
	for _, state := range []string{"a", "b"} {
		update(t, other, batch("a", "b"), set(state))
	}
	var saw string
	if err := s.Update(t.Context(), batch("a", "b"), func(snap engine.Snapshot) engine.Changes {
		saw = string(snap.States[0])
		return set("4")(snap)
	}); err != nil || saw != "b" {
		t.Errorf("saw %q, %v; want what is there now", saw, err)
	}
}

func TestDamagedJournal(t *testing.T) {
	s := open(t, Config{})
	setFoldPolicy(s, storetest.FoldPolicies[3])
	for _, state := range []string{"1", "2", "3"} {
		write(t, s, state)
	}
	exec(t, connect(t, s), `UPDATE journal SET changes = set_byte(changes, 6, get_byte(changes, 6) # 16) WHERE seq = 2`)
	fresh := open(t, Config{URL: s.pool.Config().ConnString()})
	err := fresh.Update(t.Context(), batch("a"), set("4"))
	if err == nil || !strings.Contains(err.Error(), "row 2 of table journal is damaged") {
		t.Errorf("update: %v", err)
	}
}

func TestCachedCleanRowsAreBounded(t *testing.T) {
	t.Parallel()
	for _, dirty := range []int{0, 10, maxRows - cleanReserve, maxRows} {
		m := newCounterCache()
		numbered := func(i int) engine.CounterID { return engine.CounterID{Key: fmt.Sprint(i)} }
		for i := range dirty {
			m.markDirty(&row{id: numbered(-1 - i)}, &journal.Mark{})
		}
		for i := range 2 * maxRows {
			m.addClean(&row{id: numbered(i)})
			m.evict()
			if m.get(numbered(0)) == nil {
				t.Fatalf("what is used all the time was dropped after %d", i)
			}
		}
		if want := max(cleanReserve, maxRows-dirty); m.clean.n != want || len(m.rows) != want+dirty {
			t.Errorf("%d clean rows and %d in all with %d dirty ones, want %d and %d", m.clean.n, len(m.rows), dirty, want, want+dirty)
		}
	}
}

// TestExpiredDirtyRowsAreFound, without a scan of all if none has.
func TestExpiredDirtyRowsAreFound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m, pick := newCounterCache(), func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") }
		for seq := range int64(1 + pick(40)) {
			id := engine.CounterID{Key: fmt.Sprint(pick(6))}
			r := m.rows[id]
			switch {
			case r == nil || pick(3) == 0:
				if r == nil {
					r = &row{id: id}
				}
				r.expires = int64(pick(10))
				m.markDirty(r, &journal.Mark{Seq: seq})
			case r.dirtySince != nil && pick(2) == 0:
				m.markClean(r)
			default:
				m.remove(r)
			}
			now := int64(pick(10))
			var want, got []string
			for r := m.dirty.oldest(); r != nil; r = m.dirty.next(r) {
				if r.expires <= now {
					want = append(want, r.id.Key)
				}
			}
			for _, r := range m.expired(now) {
				got = append(got, r.id.Key)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("(-want +got)\n%s", diff)
			}
			if len(got) == 0 && m.dirty.n > 0 && m.nextExpiry <= now {
				t.Fatalf("it goes over all rows at %d again", now)
			}
		}
	})
}

func TestFoldOfFewerDirtyRowsThanAsked(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	stopFoldLoop(s)
	update(t, s, batch("a"), set("1"))
	more, err := s.foldSome(t.Context(), func() int { return 2 })
	if dirty := s.cache.dirty.n; !more || err != nil || dirty != 0 {
		t.Errorf("more %t, %d dirty rows, %v", more, dirty, err)
	}
}

// A worker without requests caches no more clean rows than one with requests.
func TestIdleWorkerEvictsCleanRows(t *testing.T) {
	t.Parallel()
	idle, busy := twoStores(t)
	stopFoldLoop(idle, busy)
	update(t, idle, batch("first"), set("1"))
	const batches = 2 * maxCleanLag
	const each = maxRows * 11 / 10 / batches
	for n := range batches {
		keys := make([]string, each)
		for i := range keys {
			keys[i] = fmt.Sprint("key:", n*each+i)
		}
		update(t, busy, batch(keys...), set("1"))
	}
	for range batches - 1 { // all at once would delete rows that the idle one has not read
		fold(t, busy, each)
		fold(t, idle, 0)
	}
	if clean, dirty := idle.cache.clean.n, idle.cache.dirty.n; clean > max(cleanReserve, maxRows-dirty) || dirty > each*batches/2 {
		t.Errorf("%d clean rows and %d dirty ones of %d", clean, dirty, each*batches)
	}
}

// setUntil is set with an expiry.
func setUntil(state string, expires int64) func(engine.Snapshot) engine.Changes {
	return func(snap engine.Snapshot) engine.Changes {
		c := set(state)(snap)
		for i := range c.Counters {
			c.Counters[i].ExpiresAt = expires
		}
		return c
	}
}

// expiredButNamed makes x expired and clean while the journal still names it, because y is dirty
// since. Rows before that are deleted.
func expiredButNamed(t *testing.T, s *Store) {
	t.Helper()
	s.shuttingDown = true
	for _, w := range []struct {
		key     string
		expires int64
	}{{"x", 1}, {"y", 1 << 45}, {"x", 1}} {
		update(t, s, batch(w.key), setUntil("old", w.expires))
	}
	fold(t, s, 1)
}

// Another worker charges an expired counter again, while the one that has removed it from the table
// waits to say so in the journal.
func TestExpireKeepsCounterChargedMeanwhile(t *testing.T) {
	t.Parallel()
	a, b := twoStores(t)
	stopFoldLoop(a, b)
	const future = 1 << 45
	expiredButNamed(t, a)
	update(t, b, batch("z"), setUntil("1", future))
	charge := batch("x")
	charge.Turn = awaitTurn(t, b)
	expired := make(chan error, 1)
	go func() { _, err := a.Expire(t.Context(), 10); expired <- err }()
	waitForLock(t, b)
	update(t, b, charge, setUntil("live", future))
	if err := <-expired; err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*Store{"who removed": a, "who charged": b} {
		if got := state(t, s, "x"); got != "live" {
			t.Errorf("%s sees %q of a counter that was charged", name, got)
		}
	}
}

// A counter that was removed as expired, and looked up once more, stays removed: the journal says
// so.
func TestExpiredCounterStaysRemovedAfterLookup(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	stopFoldLoop(s)
	expiredButNamed(t, s)
	update(t, s, batch("x"), nothing)
	if n, err := s.Expire(t.Context(), 10); n != 1 || err != nil {
		t.Fatalf("removed %d, %v", n, err)
	}
	if got := state(t, open(t, Config{URL: s.pool.Config().ConnString()}), "x"); got != "" {
		t.Errorf("it is there again: %q", got)
	}
}

// A worker that finds its rows deleted while it waits to write a removal does not know which
// counters were charged meanwhile.
func TestExpireRemovesNothingAfterCacheReset(t *testing.T) {
	t.Parallel()
	s := open(t, Config{lockTimeout: 10 * time.Second})
	stopFoldLoop(s)
	expiredButNamed(t, s)
	other := begin(t, s, turnSQL)
	expired := make(chan error, 1)
	go func() { _, err := s.Expire(t.Context(), 10); expired <- err }()
	waitForLock(t, s)
	for _, sql := range []string{ // another worker charges it again, folds everything, and deletes rows
		`INSERT INTO counters (key, name, spec, state, expires_at) VALUES ('x', '1m', '{}', 'live', 1::bigint << 45)`,
		`INSERT INTO journal SELECT max(seq) + 1, 7, '' FROM journal`,
		`DELETE FROM journal WHERE seq < (SELECT max(seq) FROM journal)`,
	} {
		exec(t, other, sql)
	}
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-expired; err != nil {
		t.Fatal(err)
	}
	if got := state(t, s, "x"); got != "live" {
		t.Errorf("what was charged is %q", got)
	}
}
