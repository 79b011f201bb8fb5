package postgres

import (
	"context"
	"fmt"

	"github.com/seed503877ad/limits/internal/columns"
)

// Neither part is unique by itself: copies of a database share the time of its first migration, and
// databases of different servers may share an OID.
const identitySQL = `
SELECT 'postgres ' || current_database() || ', ' || d.oid || '.' || (SELECT extract(epoch FROM min(tstamp))::numeric FROM goose_db_version)
FROM pg_database d WHERE d.datname = current_database()`

// Identity names the database: workers that share their counters have the same. The schema must
// exist.
func (s *Store) Identity(ctx context.Context) (string, error) {
	id, _, err := first(read(ctx, s, "identify the database", columns.One[string], identitySQL))
	return id, err
}

const lastJournalRowSQL = `
SELECT seq, token FROM journal ORDER BY seq DESC LIMIT 1`

// LastJournalRow returns the number and the token of the last row of the journal.
func (s *Store) LastJournalRow(ctx context.Context) (seq, token int64, err error) {
	if err := s.relay.QueryRow(ctx, lastJournalRowSQL).Scan(&seq, &token); err != nil {
		return 0, 0, fmt.Errorf("read the last row of the journal: %w", err)
	}
	return seq, token, nil
}

// A row that is gone from the beginning of the journal says nothing.
const otherJournalSQL = `
SELECT EXISTS (
	SELECT FROM unnest($1::bigint[], $2::bigint[]) AS theirs (seq, token)
	WHERE theirs.seq > (SELECT seq FROM journal ORDER BY seq DESC LIMIT 1)
		OR EXISTS (SELECT FROM journal own WHERE own.seq = theirs.seq AND own.token <> theirs.token)
)`

// OtherJournal reports whether one of the rows, which were committed before the call, is not of this
// journal. A copy of a server's files has the same identity, and its journal shows that it goes its
// own way. Rows that were lost because a backup was restored look the same.
func (s *Store) OtherJournal(ctx context.Context, seqs, tokens []int64) (bool, error) {
	other, _, err := first(read(ctx, s, "look for rows of another journal", columns.One[bool], otherJournalSQL, seqs, tokens))
	return other, err
}
