package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrPooled says that connections do not keep a session of the server each: a pooler in between pools transactions, or
// statements. Prepared statements would be missing or another's, time limits and advisory locks would be lost, now and then.
var ErrPooled = errors.New("a pooler in between pools transactions or statements, and each connection needs a session of its own; " +
	"set pool_mode = session for this database (PgBouncer), or connect without the pooler")

// A session by its process, and when that began: servers behind one address count their processes each.
const sessionSQL = `
SELECT pid || ' since ' || backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()`

// A pooler that does not reset sessions (PgBouncer with an empty server_reset_query) hands them on with what the one before has
// prepared, under the names that we use.
const deallocateSQL = `DEALLOCATE ALL; `

// sessionRounds is how often two connections are asked. A pooler gives away the session that was used last, so the first
// round tells, unless others use it at the same time.
const sessionRounds = 8

// CheckSessions tells whether the server answers and each connection has a session of its own; else the error is [ErrPooled].
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

// checkSessions does the same with connections that it makes.
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
			return fmt.Errorf("check sessions of %s: two connections have the same one, process %s: %w", a.Conn().RemoteAddr(), one, ErrPooled)
		case first != "" && one != first:
			return fmt.Errorf("check sessions of %s: a connection had process %s and then %s: %w", a.Conn().RemoteAddr(), first, one, ErrPooled)
		}
		first = one
	}
	return nil
}

// sessionOf asks without a prepared statement, which is what a pooler of transactions breaks first.
func sessionOf(ctx context.Context, conn *pgconn.PgConn) (string, error) {
	results, err := execSimple(ctx, conn, sessionSQL)
	if err != nil {
		return "", fmt.Errorf("check sessions of %s: %w", conn.Conn().RemoteAddr(), err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return "", fmt.Errorf("check sessions of %s: the server does not know its own session", conn.Conn().RemoteAddr())
	}
	return string(results[0].Rows[0][0]), nil
}

// migrating sets up the sessions of migrations: without statements that others prepared, and with what a role or database has
// in mind for others left out, as far as it would break them, except what the URL sets. What they wait for locks is left to the
// operator: a step that waits holds up all who come behind it.
func configureMigrationSession(cfg *pgx.ConnConfig) {
	settings := deallocateSQL + encodingSQL + setUnlessInURL(cfg.RuntimeParams, [][2]string{
		{"default_transaction_read_only", "off"},
		{"default_transaction_isolation", "'read committed'"},
		{"statement_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"timezone", "'UTC'"}, // the time of a step is kept without its zone
	})
	validate := cfg.ValidateConnect
	cfg.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if _, err := execSimple(ctx, conn, settings); err != nil || validate == nil {
			return err
		}
		return validate(ctx, conn)
	}
}

// ask sends the first statements of a connection. A pooler lets anybody in, and whoever has no session waits there.
func execSimple(ctx context.Context, conn *pgconn.PgConn, sql string) ([]*pgconn.Result, error) {
	sent := time.Now()
	results, err := conn.Exec(ctx, sql).ReadAll()
	if pgconn.Timeout(err) {
		// Not wrapped: of an error with a timeout in it pgx leaves nothing but the timeout.
		err = fmt.Errorf("no answer in %s: the server hangs, or a pooler in between has no session left (PgBouncer: pool_size, and "+
			"max_db_connections, have to be the connections of all programs together)", time.Since(sent).Round(100*time.Millisecond))
	}
	return results, err
}
