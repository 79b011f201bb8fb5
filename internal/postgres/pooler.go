package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrPooled says that connections do not have a server session each, because a pooler in between
// pools transactions or statements. Prepared statements would be missing or belong to another
// client, and timeouts and advisory locks would be lost at times.
var ErrPooled = errors.New("a connection pooler pools transactions or statements, but each connection needs its own session; " +
	"set pool_mode = session for this database (PgBouncer), or connect without the pooler")

// A session is named by its server process and when that began, because servers behind one address
// number their processes independently.
const sessionSQL = `
SELECT pid || ' since ' || backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()`

// A pooler that does not reset sessions (PgBouncer with an empty server_reset_query) passes them on
// with the statements that the previous client prepared, under the names that we use.
const deallocateSQL = `DEALLOCATE ALL; `

// sessionRounds is how often two connections are compared. A pooler hands out the session that was
// used last, so the first round shows it unless others use the pooler at the same time.
const sessionRounds = 8

// CheckSessions returns an error if the server does not answer, and [ErrPooled] if connections do
// not have a session of their own.
func (s *Store) CheckSessions(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, decisionTimeout)
	defer cancel()
	var both [2]*pgconn.PgConn
	for i := range both {
		c, err := s.relay.Acquire(ctx)
		if err != nil {
			return connectFailed(err)
		}
		defer c.Release()
		both[i] = c.Conn().PgConn()
	}
	return checkDistinct(ctx, both[0], both[1])
}

// checkSessionsOf is CheckSessions with connections of its own.
func checkSessionsOf(ctx context.Context, cfg *pgx.ConnConfig) error {
	ctx, cancel := context.WithTimeout(ctx, decisionTimeout)
	defer cancel()
	var both [2]*pgconn.PgConn
	for i := range both {
		c, err := pgx.ConnectConfig(ctx, cfg)
		if err != nil {
			return connectFailed(err)
		}
		defer c.Close(ctx)
		both[i] = c.PgConn()
	}
	return checkDistinct(ctx, both[0], both[1])
}

func checkDistinct(ctx context.Context, a, b *pgconn.PgConn) error {
	var first string
	for range sessionRounds {
		one, err := sessionOf(ctx, a)
		if err != nil {
			return err
		}
		other, err := sessionOf(ctx, b)
		if err != nil {
			return err
		}
		switch {
		case one == other:
			return fmt.Errorf("check sessions of %s: two connections share one, process %s: %w", a.Conn().RemoteAddr(), one, ErrPooled)
		case first != "" && one != first:
			return fmt.Errorf("check sessions of %s: one connection had process %s and then %s: %w", a.Conn().RemoteAddr(), first, one, ErrPooled)
		}
		first = one
	}
	return nil
}

// sessionOf uses no prepared statement, which is what a pooler of transactions would break first.
func sessionOf(ctx context.Context, conn *pgconn.PgConn) (string, error) {
	results, err := execSimple(ctx, conn, sessionSQL)
	if err != nil {
		return "", fmt.Errorf("check sessions of %s: %w", conn.Conn().RemoteAddr(), err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return "", fmt.Errorf("check sessions of %s: the server did not return its own session", conn.Conn().RemoteAddr())
	}
	return string(results[0].Rows[0][0]), nil
}

// configureMigrationSession sets up the sessions of migrations: it drops prepared statements of
// others, and overrides those defaults of the role or database that would break a migration, unless
// the URL sets them. lock_timeout is left to the operator: a step that waits holds up everything
// that comes after it.
func configureMigrationSession(cfg *pgx.ConnConfig) {
	settings := deallocateSQL + encodingSQL + setUnlessInURL(cfg.RuntimeParams, [][2]string{
		{"default_transaction_read_only", "off"},
		{"default_transaction_isolation", "'read committed'"},
		{"statement_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"timezone", "'UTC'"}, // goose stores the time of a step without its zone
	})
	validate := cfg.ValidateConnect
	cfg.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if _, err := execSimple(ctx, conn, settings); err != nil || validate == nil {
			return err
		}
		return validate(ctx, conn)
	}
}

// execSimple sends the first statements of a connection. A pooler accepts any number of clients,
// and those without a session wait there.
func execSimple(ctx context.Context, conn *pgconn.PgConn, sql string) ([]*pgconn.Result, error) {
	sent := time.Now()
	results, err := conn.Exec(ctx, sql).ReadAll()
	if pgconn.Timeout(err) {
		// Not wrapped: pgx would reduce an error that wraps a timeout to the timeout.
		err = fmt.Errorf("no answer within %s: the server hangs, or a connection pooler has no session left (PgBouncer: pool_size and "+
			"max_db_connections must cover the connections of all programs together)", time.Since(sent).Round(100*time.Millisecond))
	}
	return results, err
}
