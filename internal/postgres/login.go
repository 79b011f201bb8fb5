package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// invalidCatalog is the SQLSTATE of a missing database, and invalidAuthorization the class of those
// of a refused login.
const (
	invalidCatalog       = "3D000"
	invalidAuthorization = "28"
)

// LoginRefused reports whether a server refused the role, its password, or the database, so that
// waiting for the server is of no use.
func LoginRefused(err error) bool {
	state := sqlState(err)
	return state == invalidCatalog || strings.HasPrefix(state, invalidAuthorization)
}

// oneLine is an error with another text.
type oneLine struct {
	err  error
	text string
}

func (t oneLine) Error() string { return t.text }
func (t oneLine) Unwrap() error { return t.err }

func connectFailed(err error) error { return fmt.Errorf("connect to database: %w", inOneLine(err)) }

// inOneLine returns the error of a connect with a text of one line. pgx tries each address, with
// TLS and without, and lists all errors. If a server answered with an error, that is the reason;
// that another attempt found no TLS is not.
func inOneLine(err error) error {
	connect, ok := errors.AsType[*pgconn.ConnectError](err)
	if !ok {
		return err
	}
	before, _, several := strings.Cut(err.Error(), "\n") // each attempt has its own line, unless there is only one
	if !several {
		return err
	}
	attempts := attemptsOf(connect)
	answered := slices.ContainsFunc(attempts, func(err error) bool { return sqlState(err) != "" })
	var texts []string
	for _, attempt := range attempts {
		if text := attempt.Error(); !slices.Contains(texts, text) && (!answered || sqlState(attempt) != "") {
			texts = append(texts, text)
		}
	}
	return oneLine{err, before + " " + strings.Join(strings.Fields(strings.Join(texts, "; ")), " ")}
}

// attemptsOf returns the errors of the attempts to connect, or to resolve the names of the hosts.
func attemptsOf(connect *pgconn.ConnectError) []error {
	cause := connect.Unwrap()
	for next := cause; next != nil; next = errors.Unwrap(next) {
		if joined, ok := next.(interface{ Unwrap() []error }); ok {
			return joined.Unwrap()
		}
	}
	return []error{cause}
}

// oneLinePool is a pool whose errors have texts of one line, as of [inOneLine].
type oneLinePool struct{ *pgxpool.Pool }

func (p oneLinePool) Acquire(ctx context.Context) (*pgxpool.Conn, error) {
	c, err := p.Pool.Acquire(ctx)
	return c, inOneLine(err)
}

func (p oneLinePool) Ping(ctx context.Context) error { return inOneLine(p.Pool.Ping(ctx)) }

func (p oneLinePool) Begin(ctx context.Context) (pgx.Tx, error) {
	return p.BeginTx(ctx, pgx.TxOptions{})
}

func (p oneLinePool) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	tx, err := p.Pool.BeginTx(ctx, o)
	return tx, inOneLine(err)
}

func (p oneLinePool) Exec(ctx context.Context, statement string, args ...any) (pgconn.CommandTag, error) {
	tag, err := p.Pool.Exec(ctx, statement, args...)
	return tag, inOneLine(err)
}

func (p oneLinePool) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	rows, err := p.Pool.Query(ctx, query, args...)
	return rows, inOneLine(err)
}

func (p oneLinePool) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return oneLineRow{p.Pool.QueryRow(ctx, query, args...)}
}

type oneLineRow struct{ pgx.Row }

func (r oneLineRow) Scan(into ...any) error { return inOneLine(r.Row.Scan(into...)) }
