package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/storetest"
)

// pagesRead returns how many pages a statement reads.
func pagesRead(t *testing.T, conn *pgx.Conn, sql string, args ...int64) int {
	t.Helper()
	if _, err := conn.Prepare(t.Context(), "looked", sql); err != nil {
		t.Fatal(err)
	}
	values := ""
	if len(args) > 0 {
		values = "(" + strings.Trim(strings.ReplaceAll(fmt.Sprint(args), " ", ", "), "[]") + ")"
	}
	var text []byte
	err := conn.QueryRow(t.Context(), `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE looked`+values).Scan(&text)
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err == nil {
		err = json.Unmarshal(text, &plans)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Deallocate(t.Context(), "looked"); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan.Hit + plans[0].Plan.Read
}

// backup begins a transaction that can still see everything that is deleted from now on, until the
// test ends.
func backup(t *testing.T, s *Store) pgx.Tx {
	t.Helper()
	conn := connect(t, s)
	exec(t, conn, `SET idle_in_transaction_session_timeout = 0`)
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(t.Context(), `SELECT FROM counters`); err != nil { // which takes its snapshot
		t.Fatal(err)
	}
	return tx
}

// TestDeletedJournalRowsAreNotScanned: while another transaction, such as a backup, may see deleted
// rows of the journal, a worker that starts or was away does not scan them. That would take longer
// than a statement may.
func TestDeletedJournalRowsAreNotScanned(t *testing.T) {
	t.Parallel()
	s := openAsSoleWriter(t)
	away := open(t, Config{URL: s.pool.Config().ConnString()})
	stopFoldLoop(away)
	if got := state(t, away, "a"); got != "1" {
		t.Fatalf("a is %q", got)
	}
	var last int64
	scan(t, backup(t, s), `SELECT max(seq) FROM journal`, &last)
	const gone, width = 20000, 1500
	conn := connect(t, s)
	for _, sql := range []string{
		`SET statement_timeout = 0`,
		fmt.Sprintf(`INSERT INTO journal SELECT %d + i, 0, convert_to(repeat('x', %d), 'UTF8') FROM generate_series(1, %d) i`, last, width, gone),
		fmt.Sprintf(`INSERT INTO journal VALUES (%d, 7, ''), (%d, 8, '')`, last+gone+1, last+gone+2),
		fmt.Sprintf(`DELETE FROM journal WHERE seq <= %d`, last+gone),
	} {
		exec(t, conn, sql)
	}
	for name, n := range map[string]int{
		"who begins":                     pagesRead(t, conn, readWholeJournalSQL, journalPage, 0),
		"who was away":                   pagesRead(t, conn, readJournalSQL, away.lastSeq, away.lastSeq+journalPage),
		"who looks for what others drop": pagesRead(t, conn, firstOfJournalSQL),
	} {
		if n > gone*width/8192/4 {
			t.Errorf("%s looks at %d pages", name, n)
		}
	}
	begins := open(t, Config{URL: s.pool.Config().ConnString()})
	stopFoldLoop(begins)
	both := map[string]*Store{"who begins": begins, "who was away": away}
	for name, s := range both {
		if got := state(t, s, "a"); got != "1" {
			t.Errorf("%s finds a to be %q", name, got)
		}
		if s.firstSeq != last+gone+1 || s.lastSeq != last+gone+2 {
			t.Errorf("%s takes the journal for rows %d to %d", name, s.firstSeq, s.lastSeq)
		}
	}
	for name, s := range both {
		update(t, s, batch("a"), setForever("2"))
		if s.firstSeq <= last+gone {
			t.Errorf("%s takes row %d for the first one after a transaction, and would search deleted ones", name, s.firstSeq)
		}
	}
}

// TestFirstJournalRowIsFound, wherever the journal begins and ends.
func TestFirstJournalRowIsFound(t *testing.T) {
	t.Parallel()
	conn := connect(t, open(t, Config{}))
	for _, rows := range [][2]int64{{0, 0}, {0, 1}, {0, 5000}, {1, 4}, {7, 7}, {1 << 50, 1<<50 + 4999}, {3, 1026}, {3, 1027}} {
		exec(t, conn, `TRUNCATE journal`)
		exec(t, conn, `INSERT INTO journal SELECT seq, 0, '' FROM generate_series($1::bigint, $2::bigint) seq`, rows[0], rows[1])
		var first, from, n int64
		if err := conn.QueryRow(t.Context(), firstOfJournalSQL).Scan(&first); err != nil || first != rows[0] {
			t.Errorf("%d: the first is %d, %v", rows, first, err)
		}
		err := conn.QueryRow(t.Context(), `SELECT min(seq), count(*) FROM (`+readWholeJournalSQL+`) j`, journalPage, 0).Scan(&from, &n)
		if err != nil || from != rows[0] || n != min(journalPage, rows[1]-rows[0]+1) {
			t.Errorf("%d: who begins reads %d rows from %d on, %v", rows, n, from, err)
		}
	}
}

// TestMissingFirstJournalRowsAreReported: no row says that those before the first one are folded.
// What the error advises works.
func TestMissingFirstJournalRowsAreReported(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	setFoldPolicy(s, storetest.FoldPolicies[3])
	for _, state := range []string{"1", "2", "3", "4"} {
		write(t, s, state)
	}
	conn := connect(t, s)
	fresh := func() *Store {
		s := open(t, Config{URL: s.pool.Config().ConnString()})
		setFoldPolicy(s, storetest.FoldPolicies[3])
		return s
	}
	exec(t, conn, `DELETE FROM journal WHERE seq < 3`)
	failed := fresh()
	err := failed.Update(t.Context(), batch("a"), set("5"))
	if err == nil || !strings.Contains(err.Error(), "lacks rows before row 3") {
		t.Fatalf("without the rows before: %v", err)
	}
	_, repair, _ := strings.Cut(err.Error(), "INSERT")
	repair, _, _ = strings.Cut(repair, ")")
	exec(t, conn, "INSERT"+repair+")")
	for name, s := range map[string]*Store{"who begins": fresh(), "who failed": failed} {
		if got := state(t, s, "a"); got != "4" {
			t.Errorf("to %s a is %q", name, got)
		}
	}
}
