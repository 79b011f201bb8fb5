package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// read reads all rows of one statement; act is how errors call that, and fields are where the columns of a row go.
func read[R any](ctx context.Context, s *Store, act string, fields func(*R) []any, sql string, args ...any) ([]R, error) {
	rows, err := s.relay.Query(ctx, sql, args...)
	all, err := collect(rows, err, fields)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", act, err)
	}
	return all, nil
}

// collect gives all rows, and nil for none.
func collect[R any](rows pgx.Rows, err error, fields func(*R) []any) ([]R, error) {
	if err != nil {
		return nil, err
	}
	return pgx.AppendRows([]R(nil), rows, func(row pgx.CollectableRow) (r R, err error) {
		err = row.Scan(fields(&r)...)
		return r, err
	})
}

// itself is where the one column of a row goes.
func oneColumn[V any](v *V) []any { return []any{v} }

// first gives the first row, if there is one.
func first[R any](all []R, err error) (r R, found bool, _ error) {
	if err != nil || len(all) == 0 {
		return r, false, err
	}
	return all[0], true, nil
}

// exec runs one statement, and gives how many rows it changed; act is how errors call that.
func (s *Store) exec(ctx context.Context, act, sql string, args ...any) (int, error) {
	tag, err := s.relay.Exec(ctx, sql, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", act, err)
	}
	return int(tag.RowsAffected()), nil
}

// attempts bounds how often a transaction is tried that lost a race.
const attempts = 5

// transact runs f in a transaction, again when it lost a race with another. Each statement sees what was committed before
// it began, whatever the database's default.
func (s *Store) transact(ctx context.Context, act string, f func(tx pgx.Tx) error) (err error) {
	for range attempts {
		err = pgx.BeginTxFunc(ctx, s.relay, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, f)
		switch {
		case err == nil:
			return nil
		case !lostRace(err) || ctx.Err() != nil:
			return fmt.Errorf("%s: %w", act, err)
		}
	}
	return fmt.Errorf("%s, %d times: %w", act, attempts, err)
}

// change is exec in a transaction, which may have to be tried again.
func (s *Store) change(ctx context.Context, act, sql string, args ...any) (n int, err error) {
	err = s.transact(ctx, act, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, args...)
		n = int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

func lostRace(err error) bool {
	switch sqlState(err) {
	case serializationFailure, deadlockDetected, lockNotAvailable:
		return true
	}
	return false
}

// document scans a column of JSON into what it points to.
type jsonColumn struct{ into any }

func (d jsonColumn) Scan(src any) error {
	switch text := src.(type) {
	case string:
		return json.Unmarshal([]byte(text), d.into)
	case []byte:
		return json.Unmarshal(text, d.into)
	}
	return fmt.Errorf("a document of type %T", src)
}

// encode gives the JSON of each row, for a column.
func encode[R any](rows []R, document func(*R) any) ([]string, error) {
	all := make([]string, len(rows))
	for i := range rows {
		text, err := json.Marshal(document(&rows[i]))
		if err != nil {
			return nil, err
		}
		all[i] = string(text)
	}
	return all, nil
}

// clean makes text of somebody else's that PostgreSQL takes: without NUL, and UTF-8.
func sanitize(text string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
}
