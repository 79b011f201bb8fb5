package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
)

// read returns all rows of a query. act names it in errors, and fields returns the scan targets of
// a row.
func read[R any](ctx context.Context, s *Store, act string, fields func(*R) []any, query string, args ...any) ([]R, error) {
	var all []R
	prepared, err := s.prepareRead(ctx, query)
	if err == nil {
		var rows *sql.Rows
		rows, err = prepared.QueryContext(ctx, args...)
		all, err = collect(rows, err, fields)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", act, withAdvice(err))
	}
	return all, nil
}

// readInTx returns all rows of a query in the running transaction.
func readInTx[R any](s *Store, fields func(*R) []any, query string, args ...any) ([]R, error) {
	prepared, err := s.stmts.prepareOnce(s.conn, query)
	if err != nil {
		return nil, err
	}
	rows, err := prepared.Query(args...)
	return collect(rows, err, fields)
}

func collect[R any](rows *sql.Rows, err error, fields func(*R) []any) (all []R, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r R
		if err := rows.Scan(fields(&r)...); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// first returns the first row, if there is one.
func first[R any](all []R, err error) (r R, found bool, _ error) {
	if err != nil || len(all) == 0 {
		return r, false, err
	}
	return all[0], true, nil
}

// encode returns JSON for a column.
func encode(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}

// prepareRead prepares a query, which must be a constant, once for each of the connections that read. To prepare the look-up
// of an API key takes twice as long as to run it.
func (s *Store) prepareRead(ctx context.Context, query string) (*sql.Stmt, error) {
	if prepared, ok := s.reads.Load(query); ok {
		return prepared.(*sql.Stmt), nil
	}
	prepared, err := s.reader.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	if first, ok := s.reads.LoadOrStore(query, prepared); ok {
		_ = prepared.Close()
		prepared = first.(*sql.Stmt)
	}
	return prepared, nil
}
