package postgres

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/testenv"
)

// TestOtherJournal: a row that this journal should have tells; one that is gone from its beginning does not.
func TestOtherJournal(t *testing.T) {
	t.Parallel()
	a, b := twoStores(t)
	for range 3 {
		update(t, a, batch("a"), setForever("1"))
	}
	seq, token, err := a.LastJournalRow(t.Context())
	if err != nil || seq != a.lastSeq || token != a.lastToken {
		t.Fatalf("the last row is %d, %d, %v; want %d, %d", seq, token, err, a.lastSeq, a.lastToken)
	}
	exec(t, a.pool, `DELETE FROM journal WHERE seq = 0`)
	for name, c := range map[string]struct {
		seqs, tokens []int64
		want         bool
	}{
		"the last row":          {[]int64{seq}, []int64{token}, false},
		"a row that is gone":    {[]int64{0}, []int64{1}, false},
		"another row":           {[]int64{seq}, []int64{token + 1}, true},
		"a row that is to come": {[]int64{seq + 1}, []int64{1}, true},
		"one of several":        {[]int64{seq, seq + 1}, []int64{token, 1}, true},
		"none":                  {[]int64{}, []int64{}, false},
	} {
		if other, err := b.OtherJournal(t.Context(), c.seqs, c.tokens); other != c.want || err != nil {
			t.Errorf("%s: %t, %v", name, other, err)
		}
	}
}

// TestPromotedStandbyHasAnotherJournal, once the primary goes on, and has the identity of the primary.
func TestPromotedStandbyHasAnotherJournal(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t).Migrated()
	standby := server.Standby()
	conn, err := pgx.Connect(t.Context(), standby.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var promoted bool
	if scan(t, conn, `SELECT pg_promote()`, &promoted); !promoted {
		t.Fatal("not promoted")
	}
	primary, copied := open(t, Config{URL: server.URL}), open(t, Config{URL: standby.URL})
	update(t, primary, batch("a"), setForever("1"))
	var ids [2]string
	for i, s := range []*Store{primary, copied} {
		if ids[i], err = s.Identity(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if ids[0] != ids[1] {
		t.Errorf("identities %q", ids)
	}
	for s, want := range map[*Store]bool{primary: false, copied: true} {
		if other, err := s.OtherJournal(t.Context(), []int64{primary.lastSeq}, []int64{primary.lastToken}); other != want || err != nil {
			t.Errorf("another journal: %t, want %t; %v", other, want, err)
		}
	}
}
