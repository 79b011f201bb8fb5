package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Times in Unix milliseconds. floor() is needed because the cast alone would round up.
const (
	nowMillis = `floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint`

	// startMillis is when the statement started: the planner uses no index for clock_timestamp(),
	// which may differ from row to row.
	startMillis = `floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint`
)

// read returns all rows of a query. act names it in errors, and fields returns the scan targets of
// a row.
func read[R any](ctx context.Context, s *Store, act string, fields func(*R) []any, query string, args ...any) ([]R, error) {
	rows, err := s.relay.Query(ctx, query, args...)
	all, err := collect(rows, err, fields)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", act, withAdvice(err))
	}
	return all, nil
}

// collect returns all rows; nil if there are none.
func collect[R any](rows pgx.Rows, err error, fields func(*R) []any) ([]R, error) {
	if err != nil {
		return nil, err
	}
	return pgx.AppendRows([]R(nil), rows, func(row pgx.CollectableRow) (r R, err error) {
		err = row.Scan(fields(&r)...)
		return r, err
	})
}

// first returns the first row, if there is one.
func first[R any](all []R, err error) (r R, found bool, _ error) {
	if err != nil || len(all) == 0 {
		return r, false, err
	}
	return all[0], true, nil
}

// exec runs a statement and returns how many rows it changed. act names it in errors.
func (s *Store) exec(ctx context.Context, act, statement string, args ...any) (int, error) {
	tag, err := s.relay.Exec(ctx, statement, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", act, withAdvice(err))
	}
	return int(tag.RowsAffected()), nil
}

// maxAttempts bounds how often retry runs a transaction that loses races.
const maxAttempts = 5

// transact runs f in a transaction, and again if it lost a race with another one. Each statement
// sees what was committed before it began, whatever the database's default.
func (s *Store) transact(ctx context.Context, act string, f func(tx pgx.Tx) error) error {
	return retry(ctx, act, func() error {
		return pgx.BeginTxFunc(ctx, s.relay, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, f)
	})
}

// retry runs a transaction, and again if it lost a race. A single statement, or a batch outside of a
// transaction, is one by itself (configureSession sets its isolation): it spares the round trips that
// begin and commit.
func retry(ctx context.Context, act string, run func() error) (err error) {
	for range maxAttempts {
		err = run()
		switch {
		case err == nil:
			return nil
		case !lostRace(err) || ctx.Err() != nil:
			return fmt.Errorf("%s: %w", act, withAdvice(err))
		}
	}
	return fmt.Errorf("%s: gave up after %d attempts: %w", act, maxAttempts, err)
}

// change is exec, again if it lost a race.
func (s *Store) change(ctx context.Context, act, statement string, args ...any) (n int, err error) {
	err = retry(ctx, act, func() error {
		tag, err := s.relay.Exec(ctx, statement, args...)
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

// column returns a value of each row, for an array parameter.
func column[R, V any](rows []R, get func(*R) V) []V {
	values := make([]V, len(rows))
	for i := range rows {
		values[i] = get(&rows[i])
	}
	return values
}

// encode returns the JSON of each row, for a column.
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

// sanitize makes foreign text acceptable to PostgreSQL: without NUL, and valid UTF-8.
func sanitize(text string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
}
