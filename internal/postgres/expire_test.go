package postgres

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed503877ad/limits/internal/engine"
)

// execute runs statements on a connection of its own.
func execute(t *testing.T, s *Store, sql string) {
	t.Helper()
	conn := connect(t, s)
	exec(t, conn, `SET statement_timeout = 0; `+sql)
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// indexReads returns how many index entries scans have read, including dead ones. It ends the
// store's sessions first, since they may only report it then.
func indexReads(t *testing.T, s *Store, index string) (n int) {
	t.Helper()
	s.pool.Reset()
	s.relay.Reset()
	conn := connect(t, s)
	for left := 1; left > 0; {
		scan(t, conn, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
			AND backend_type = 'client backend' AND state <> 'idle in transaction'`, &left)
	}
	if err := conn.QueryRow(t.Context(), `SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = $1`, index).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

func expire(t *testing.T, s *Store, max, want int) {
	t.Helper()
	if n, err := s.Expire(t.Context(), max); n != want || err != nil {
		t.Fatalf("removed %d, %v; want %d", n, err, want)
	}
}

// TestExpireCommitsWithoutSync: expired rows may be back after a crash, so their removal
// commits without a sync, which decisions would wait for. Every other commit syncs.
func TestExpireCommitsWithoutSync(t *testing.T) {
	t.Parallel()
	s, resting := twoStores(t)
	stopFoldLoop(s)
	resting.Rest(t.Context(), true)
	conn := connect(t, s)
	for _, sql := range []string{
		`CREATE TABLE seen (setting text)`,
		`CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN INSERT INTO seen VALUES (TG_TABLE_NAME || ' ' || current_setting('synchronous_commit')); RETURN NULL; END $$`,
		`CREATE TRIGGER see AFTER DELETE ON counters EXECUTE FUNCTION see()`,
		`CREATE TRIGGER see AFTER DELETE ON receipts EXECUTE FUNCTION see()`,
	} {
		exec(t, conn, sql)
	}
	update(t, s, batch("x"), setUntil("1", 1<<45))
	for name, s := range map[string]*Store{"decides": s, "rests": resting} {
		exec(t, conn, `TRUNCATE seen`)
		exec(t, conn, `INSERT INTO counters (key, name, spec, state, expires_at) VALUES ('old', '1m', '{}', '', 1);
			INSERT INTO receipts (id, fingerprint, answer, expires_at) VALUES ('old', '', '', 1)`)
		if n, err := s.Expire(t.Context(), 1); n != 2 || err != nil {
			t.Errorf("who %s removed %d, %v", name, n, err)
		}
		rows, err := conn.Query(t.Context(), `SELECT setting FROM seen ORDER BY setting`)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || !slices.Equal(got, []string{"counters off", "receipts off"}) {
			t.Errorf("who %s removed with %q, %v", name, got, err)
		}
		var after string
		if err := s.relay.QueryRow(t.Context(), `SHOW synchronous_commit`).Scan(&after); err != nil || after != "on" {
			t.Errorf("who %s goes on with %s, %v", name, after, err)
		}
	}
}

// makeDirty makes counters k0 to k(n-1) dirty, with an expiry.
func makeDirty(t *testing.T, s *Store, n int, expires int64) {
	t.Helper()
	var keys []string
	for i := range n {
		keys = append(keys, fmt.Sprint("k", i))
	}
	update(t, s, batch(keys...), setUntil("1", expires))
}

// TestExpireReadsNoMoreThanItRemoves, however many dirty counters have expired: all workers would
// wait for it.
func TestExpireReadsNoMoreThanItRemoves(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	stopFoldLoop(s)
	makeDirty(t, s, 300, 1)
	execute(t, s, `INSERT INTO counters SELECT 'old' || i, '1m', '{}', '', 2 FROM generate_series(1, 1000) i`)
	before := indexReads(t, s, "counters_expires_at")
	expire(t, s, 1, 1)
	if n := indexReads(t, s, "counters_expires_at") - before; n > 1 {
		t.Errorf("it reads %d counters to remove one", n)
	}
}

// TestExpireAcquiresConnectionBeforeWriteLock: all connections of its pool may be busy, and
// decisions would wait as well.
func TestExpireAcquiresConnectionBeforeWriteLock(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	stopFoldLoop(s)
	release, err := acquire(t.Context(), s.writeLock)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { _, err := s.Expire(t.Context(), 1); ended <- err }()
	for began := time.Now(); s.relay.Stat().AcquiredConns() == 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			t.Error("it waits for its turn without a connection")
			break
		}
	}
	release()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestExpireContinuesPastRowsOfDirtyCounters: removing the old table rows of dirty counters counts
// as progress, although it removes no counter.
func TestExpireContinuesPastRowsOfDirtyCounters(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	stopFoldLoop(s)
	const dirty, others = 2*expireBatch + 1, 10
	makeDirty(t, s, dirty, 1<<45)
	execute(t, s, fmt.Sprintf(`INSERT INTO counters SELECT 'k' || i, '1m', '{}', '', 1 FROM generate_series(0, %d) i;
		INSERT INTO counters SELECT 'old' || i, '1m', '{}', '', 2 FROM generate_series(1, %d) i`, dirty-1, others))
	expire(t, s, others-1, others-1)
	expire(t, s, expireBatch, 1)
	if got := state(t, s, "k0"); got != "1" {
		t.Errorf("a dirty counter is %q", got)
	}
}

// TestExpireDoesNotRescanDeletedRows: while another transaction, such as a backup, may see
// deleted rows, they are not scanned for each batch.
func TestExpireDoesNotRescanDeletedRows(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	stopFoldLoop(s)
	backup(t, s)
	const gone, few, times = 20000, 500, 11
	const left = few*times + few/5
	for _, row := range []string{`counters SELECT 'k' || i, '1m', '{}', ''`, `receipts SELECT i, '', ''`} {
		execute(t, s, fmt.Sprintf(`INSERT INTO %s, i FROM generate_series(1, %d) i`, row, gone+left))
	}
	for _, table := range []string{"counters", "receipts"} {
		execute(t, s, fmt.Sprintf(`DELETE FROM %s WHERE expires_at <= %d`, table, gone))
	}
	expire(t, s, few, 2*few)
	var before [2]int
	indexes := [2]string{"counters_expires_at", "receipts_expires_at"}
	for i := range indexes {
		before[i] = indexReads(t, s, indexes[i])
	}
	for range times - 1 {
		expire(t, s, few, 2*few)
	}
	for i := range indexes {
		if n := indexReads(t, s, indexes[i]) - before[i]; n > gone {
			t.Errorf("%d entries of %s were read for %d rows", n, indexes[i], few*(times-1))
		}
	}
	// Rows that are added before them are found too.
	execute(t, s, `INSERT INTO counters VALUES ('late', '1m', '{}', '', 1); INSERT INTO receipts VALUES ('late', '', '', 1)`)
	expire(t, s, few, 2*(left-times*few+1))
}

// TestExpireEndsWhenAllRowsAreLocked by others. It removes them once they are free.
func TestExpireEndsWhenAllRowsAreLocked(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	stopFoldLoop(s)
	s.counterScan.limit = 2
	execute(t, s, `INSERT INTO counters SELECT 'k' || i, '1m', '{}', '', 1 FROM generate_series(1, 5) i`)
	tx := backup(t, s)
	exec(t, tx, `SELECT FROM counters FOR UPDATE`)
	expire(t, s, 10, 0)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	expire(t, s, 10, 5)
}

// TestExpireChecksRowsAgain: where an expired row was found another one may be by now.
func TestExpireChecksRowsAgain(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	stopFoldLoop(s)
	execute(t, s, `INSERT INTO counters VALUES ('live', '1m', '{}', '', 1::bigint << 45);
		INSERT INTO receipts VALUES ('live', '', '', 1::bigint << 45)`)
	for table, found := range map[string]*expiryScan{"counters": &s.counterScan, "receipts": &s.receiptScan} {
		found.ctids = make([]pgtype.TID, 1)
		scan(t, s.pool, `SELECT ctid FROM `+table, &found.ctids[0])
	}
	expire(t, s, 10, 0)
	var left int
	if scan(t, s.pool, `SELECT (SELECT count(*) FROM counters) + (SELECT count(*) FROM receipts)`, &left); left != 2 {
		t.Errorf("%d of 2 rows are left", left)
	}
}

// TestExpiredCounterOfFirstJournalRowStaysRemoved: another counter of that row is dirty since, so
// that a worker that begins reads it.
func TestExpiredCounterOfFirstJournalRowStaysRemoved(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	stopFoldLoop(s)
	s.shuttingDown = true
	update(t, s, batch("x", "y"), func(snap engine.Snapshot) engine.Changes {
		c := setForever("old")(snap)
		c.Counters[0].ExpiresAt = 1
		return c
	})
	fold(t, s, 1)
	expire(t, s, 10, 1)
	begins := open(t, Config{URL: s.pool.Config().ConnString()})
	if x, y := state(t, begins, "x"), state(t, begins, "y"); x != "" || y != "old" {
		t.Errorf("a worker that begins sees %q and %q", x, y)
	}
}
