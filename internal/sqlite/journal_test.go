package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"modernc.org/sqlite"
	"pgregory.net/rapid"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
	"github.com/seed503877ad/limits/internal/storetest"
)

// neverFold is a policy that folds only when told to.
var neverFold = storetest.FoldPolicies[3]

func TestRecordRoundTrip(t *testing.T) {
	a, b := engine.CounterID{Key: "a", Name: "1m"}, engine.CounterID{Key: "\x00ä", Name: ""}
	r := record(journal.Begin(nil)).
		change(a, &engine.CounterChange{State: []byte{0, 1}, ExpiresAt: -5}).
		remove(b).
		change(b, &engine.CounterChange{Spec: []byte("{}"), ExpiresAt: 1 << 60})
	var got []string
	keep := func(e *entry) {
		got = append(got, fmt.Sprintf("%d %q %q %d %q %q", e.kind, e.key, e.name, e.expires, e.state, e.spec))
	}
	r = journal.Seal(r)
	if err := decode(r, keep); err != nil {
		t.Fatal(err)
	}
	want := []string{`1 "a" "1m" -5 "\x00\x01" ""`, `0 "\x00ä" "" 0 "" ""`, `2 "\x00ä" "" 1152921504606846976 "" "{}"`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestDecodeInvalidContent has rows with a correct checksum and a wrong content.
func TestDecodeInvalidContent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := append(journal.Begin(nil), rapid.SliceOf(rapid.ByteRange(0, 5)).Draw(t, "body")...)
		_ = decode(journal.Seal(body), func(*entry) {}) // does not panic
	})
	head := []byte{changed, 1, 'a', 1, 'b'}
	for name, tail := range map[string]string{
		"no fields": "", "no state": "\x00", "a long state": "\x00\x05xx", "a length without end": "\x00\xff\xff",
		"an unknown kind": "\x00\x00\x07\x00\x00",
	} {
		row := append(append(journal.Begin(nil), head...), tail...)
		if err := decode(journal.Seal(row), func(*entry) {}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// copyFile copies the file of an open store, as a crash between two transactions leaves it.
func copyFile(t testing.TB, s *Store, path string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy.db")
	s.writeLock <- struct{}{}
	defer func() { <-s.writeLock }()
	for _, suffix := range []string{"", "-wal"} {
		data, err := os.ReadFile(path + suffix)
		if err == nil {
			err = os.WriteFile(to+suffix, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

func query(t testing.TB, s *Store, sql string) (n int64) {
	t.Helper()
	if err := s.reader.QueryRowContext(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func state(t testing.TB, s *Store, key string) string {
	t.Helper()
	all, _, err := s.Counters(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		return "-"
	}
	return string(all[0].State)
}

func TestDamagedJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.db")
	s := open(t, Config{Path: path})
	setFoldPolicy(s, neverFold)
	for i := range 3 {
		update(t, s, one, set(fmt.Sprint(i)))
	}
	// A change without a spec of a counter that is neither in the journal nor in the table.
	orphan := journal.Seal(record(journal.Begin(nil)).change(one.Counters[0], &engine.CounterChange{}))
	for name, damage := range map[string]string{
		"a byte":     `UPDATE journal SET changes = CAST(substr(changes, 1, 6) || x'00' || substr(changes, 8) AS BLOB) WHERE seq = 2`,
		"cut":        `UPDATE journal SET changes = substr(changes, 1, 3) WHERE seq = 2`,
		"no counter": fmt.Sprintf(`DELETE FROM journal; INSERT INTO journal VALUES (2, x'%x')`, []byte(orphan)),
	} {
		file := copyFile(t, s, path)
		bad := open(t, Config{Path: file})
		setFoldPolicy(bad, neverFold)
		if _, err := bad.conn.ExecContext(t.Context(), damage); err != nil {
			t.Fatal(err)
		}
		_, err := Open(t.Context(), Config{Path: copyFile(t, bad, file)})
		if err == nil || !strings.Contains(err.Error(), "row 2 of table journal is damaged") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCloseEmptiesTheJournal: a closed file has everything in its tables, and a crashed one does
// not.
func TestCloseEmptiesTheJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.db")
	s := open(t, Config{Path: path})
	setFoldPolicy(s, neverFold)
	update(t, s, one, set("kept"))
	crash := copyFile(t, s, path)
	if n := query(t, s, `SELECT count(*) FROM counters`); n != 0 {
		t.Errorf("%d counters in the table before a fold", n)
	}
	s.Close()
	for name, file := range map[string]string{"closed": path, "crashed": crash} {
		s := open(t, Config{Path: file})
		if got := state(t, s, "a"); got != "kept" {
			t.Errorf("%s: %s", name, got)
		}
		want := map[string]int64{"closed": 0, "crashed": 1}[name]
		if n := query(t, s, `SELECT count(*) FROM journal`); n != want {
			t.Errorf("%s: %d rows of the journal, want %d", name, n, want)
		}
		s.Close()
		if n := query(t, open(t, Config{Path: file}), `SELECT count(*) FROM journal`); n != 0 {
			t.Errorf("%s, and closed again: %d rows of the journal", name, n)
		}
	}
}

// TestFoldOrder: counters are folded in the order in which they became dirty, a few with each
// transaction.
func TestFoldOrder(t *testing.T) {
	s := open(t, Config{})
	setFoldPolicy(s, neverFold)
	touch := func(key string) {
		t.Helper()
		update(t, s, engine.Batch{Counters: []engine.CounterID{{Key: key}}}, set(key))
	}
	for _, key := range []string{"c", "a", "b", "c"} {
		touch(key)
	}
	setFoldPolicy(s, journal.Policy{Rows: 1 << 20, Most: 1 << 30, Least: 1 << 30, Some: 1, Drop: 100})
	for _, want := range []string{"c", "c a", "c a b", "c a b d"} {
		touch("d")
		for key := range strings.SplitSeq(want, " ") {
			if query(t, s, `SELECT count(*) FROM counters WHERE key = '`+key+`'`) != 1 {
				t.Errorf("%s is not folded; want %s", key, want)
			}
		}
		if n := query(t, s, `SELECT count(*) FROM counters`); n != int64(len(strings.Fields(want))) {
			t.Errorf("%d are folded, want %s", n, want)
		}
	}
	// The last transaction has folded d and made it dirty again, so the journal keeps that row
	// only.
	if n := query(t, s, `SELECT count(*) FROM journal`); n != 1 {
		t.Errorf("%d rows in the journal", n)
	}
}

// TestDirtyCountersAndJournalAreBounded charges more counters than may be dirty, and writes more
// bytes than the journal may have.
func TestDirtyCountersAndJournalAreBounded(t *testing.T) {
	t.Parallel()
	const batch = 40
	for name, p := range map[string]journal.Policy{
		"rows":  {After: time.Hour, Rows: 100, PerRow: 1 << 30, Least: 1 << 30, Most: 1 << 30, Some: 8, Drop: 4},
		"bytes": {After: time.Hour, Rows: 1 << 20, PerRow: 1 << 30, Least: 1 << 10, Most: 20 << 10, Some: 8, Drop: 4},
	} {
		s := open(t, Config{})
		setFoldPolicy(s, p)
		for round := range 25 {
			var b engine.Batch
			for i := range batch {
				b.Counters = append(b.Counters, engine.CounterID{Key: fmt.Sprintf("%05d", round*batch+i)})
			}
			update(t, s, b, func(engine.Snapshot) (c engine.Changes) {
				for i := range batch {
					c.Counters = append(c.Counters, engine.CounterChange{Slot: i, State: make([]byte, 100), Spec: []byte("{}")})
				}
				return c
			})
			if n := len(s.dirty.rows); name == "rows" && n > p.Rows+batch {
				t.Fatalf("%d dirty counters", n)
			}
			const aRow = batch * 130
			if n := query(t, s, `SELECT sum(length(changes)) FROM journal`); n > 20<<10+5*aRow {
				t.Fatalf("%s: a journal of %d bytes", name, n)
			}
		}
		if _, err := s.Reset(t.Context(), engine.Selection{}, false); err != nil || len(s.dirty.rows) != 0 {
			t.Errorf("%d dirty after a reset, %v", len(s.dirty.rows), err)
		}
	}
}

// onCommit calls f when a transaction commits; the commit fails if f returns 1.
func onCommit(t *testing.T, s *Store, f func() int32) {
	t.Helper()
	err := s.conn.Raw(func(c any) error {
		c.(sqlite.HookRegisterer).RegisterCommitHook(f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestIdleStoreFolds: counters are folded without any transaction.
func TestIdleStoreFolds(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	update(t, s, one, set("1"))
	done := make(chan struct{})
	s.writeLock <- struct{}{}
	onCommit(t, s, sync.OnceValue(func() int32 { close(done); return 0 }))
	s.foldPolicy.After = -journal.TendEvery
	<-s.writeLock
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was folded")
	}
	s.writeLock <- struct{}{} // the transaction is over
	<-s.writeLock
	if n := query(t, s, `SELECT (SELECT count(*) FROM counters) - (SELECT count(*) FROM journal)`); n != 1 {
		t.Errorf("counters in the table less rows of the journal: %d, want 1", n)
	}
}

// TestIdleStoreBeginsNoTransaction, which would take the file's lock each second for nothing.
func TestIdleStoreBeginsNoTransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := open(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		s.writeLock <- struct{}{}
		begin := s.stmts.begin
		broken, err := s.conn.PrepareContext(t.Context(), `COMMIT`) // outside a transaction
		if err != nil {
			t.Fatal(err)
		}
		s.stmts.begin = broken
		<-s.writeLock
		time.Sleep(time.Hour)
		s.writeLock <- struct{}{}
		s.stmts.begin = begin
		<-s.writeLock
		if log.Len() > 0 {
			t.Error(log.String())
		}
	})
}

// TestCommitUnknown has a commit fail that was not done, and one that was: memory is as the file.
func TestCommitUnknown(t *testing.T) {
	for _, done := range []bool{false, true} {
		s := open(t, Config{})
		setFoldPolicy(s, storetest.FoldPolicies[0])
		for _, v := range []string{"1", "2"} {
			update(t, s, one, set(v))
		}
		commit, fail := s.stmts.commit, func() int32 { return 1 }
		want := "2"
		if done {
			want = "3"
			broken, err := s.conn.PrepareContext(t.Context(), `COMMIT; SELECT lost FROM answer`)
			if err != nil {
				t.Fatal(err)
			}
			s.stmts.commit, fail = broken, func() int32 { return 0 }
		}
		onCommit(t, s, fail)
		if err := s.Update(t.Context(), one, set("3")); !errors.Is(err, engine.ErrCommitUnknown) {
			t.Fatalf("done %t: %v", done, err)
		}
		onCommit(t, s, func() int32 { return 0 })
		s.stmts.commit = commit
		saw := ""
		err := s.Update(t.Context(), one, func(snap engine.Snapshot) engine.Changes {
			saw = string(snap.States[0])
			return engine.Changes{Counters: []engine.CounterChange{{State: append(snap.States[0], '+')}}}
		})
		if err != nil || saw != want || state(t, s, "a") != want+"+" {
			t.Errorf("done %t: saw %q, then %q, want %q, %v", done, saw, state(t, s, "a"), want, err)
		}
	}
}

// TestReadersSeeEverything reads while counters become dirty and clean: none is ever missing, or
// older than before.
func TestReadersSeeEverything(t *testing.T) {
	s := open(t, Config{})
	setFoldPolicy(s, storetest.FoldPolicies[0])
	const n = 30
	ids := make([]engine.CounterID, n)
	for i := range ids {
		ids[i].Key = fmt.Sprintf("%02d", i)
	}
	write := func(round int) error {
		return s.Update(t.Context(), engine.Batch{Counters: ids}, func(snap engine.Snapshot) (c engine.Changes) {
			for i := round % 3; i < n; i += 1 + round%3 {
				c.Counters = append(c.Counters, engine.CounterChange{Slot: i, State: fmt.Appendf(nil, "%06d", round), Spec: []byte("{}")})
			}
			return c
		})
	}
	if err := write(0); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		defer stop()
		for round := 1; round < 300; round++ {
			if err := write(round); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	last := make([]string, n)
	for ctx.Err() == nil {
		page, _, err := s.List(t.Context(), "", engine.CounterID{}, 100)
		if err != nil || len(page) != n {
			t.Fatalf("%d counters, %v", len(page), err)
		}
		for i, c := range page {
			if string(c.State) < last[i] {
				t.Fatalf("%s went from %s to %s", c.Key, last[i], c.State)
			}
			last[i] = string(c.State)
		}
	}
	if err := <-failed; err != nil {
		t.Error(err)
	}
}

// TestFailedFoldIsLogged: nothing is lost, but the journal grows.
func TestFailedFoldIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := open(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		update(t, s, one, set("1"))
		const full = `CREATE TRIGGER full BEFORE INSERT ON counters BEGIN SELECT raise(ABORT, 'no room'); END`
		if _, err := s.conn.ExecContext(t.Context(), full); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		s.cancel()
		<-s.foldLoopDone
		if lines := log.String(); strings.Count(lines, "\n") != 1 || !strings.Contains(lines, "no room") {
			t.Errorf("logged %q; want one line with the reason", lines)
		}
	})
}
