package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// A connection may go silent without being closed: after a failover that nobody reported, or
	// behind a proxy that hangs. These timeouts bound what waits for one, whatever deadline the
	// caller has.
	//
	// pingTimeout bounds the ping of an idle connection, before the next one is tried.
	pingTimeout = time.Second
	// decisionTimeout and relayTimeout bound the wait for a connection, and a statement until its
	// last row. A server that is there has given up the statement itself by then.
	decisionTimeout = 5 * time.Second
	relayTimeout    = relayStatement + 5*time.Second
	// foldTimeout bounds a transaction that folds: decisions wait for it.
	foldTimeout = 1500 * time.Millisecond
	// rollbackTimeout bounds the rollback of a transaction that writes nothing.
	rollbackTimeout = time.Second
	// closeTimeout bounds the closing of connections to a server that may never answer.
	closeTimeout = 3 * time.Second
)

// timeoutTracer sets a deadline for each operation of a pool. It is a tracer because every
// statement passes one, and runs with the context that the tracer returns.
type timeoutTracer time.Duration

var (
	_ pgx.QueryTracer       = timeoutTracer(0)
	_ pgx.BatchTracer       = timeoutTracer(0)
	_ pgxpool.AcquireTracer = timeoutTracer(0)
)

type (
	cancelKey  struct{}
	timeoutKey struct{}
)

// withStatementTimeout replaces the pool's timeout for statements that are sent with the context.
func withStatementTimeout(ctx context.Context, most time.Duration) context.Context {
	return context.WithValue(ctx, timeoutKey{}, most)
}

// setTimeouts bounds the pool's waits for a connection or a statement.
func setTimeouts(cfg *pgxpool.Config, most time.Duration) {
	cfg.PingTimeout = pingTimeout
	cfg.ConnConfig.Tracer = timeoutTracer(most)
	cfg.BeforeClose = func(conn *pgx.Conn) {
		if !conn.IsClosed() {
			return
		}
		// The connection broke, and pgx waits up to 15 s for the server to close it too, which
		// keeps a place in the pool.
		select {
		case <-conn.PgConn().CleanupDone():
		case <-time.After(pingTimeout):
			_ = conn.PgConn().Conn().Close()
		}
	}
}

func (p timeoutTracer) begin(ctx context.Context) context.Context {
	most, own := ctx.Value(timeoutKey{}).(time.Duration)
	if !own {
		most = time.Duration(p)
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	return context.WithValue(ctx, cancelKey{}, cancel)
}

func (p timeoutTracer) end(ctx context.Context) {
	if cancel, ok := ctx.Value(cancelKey{}).(context.CancelFunc); ok {
		cancel()
	}
}

func (p timeoutTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return p.begin(ctx)
}

func (p timeoutTracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	p.end(ctx)
}

func (p timeoutTracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return p.begin(ctx)
}

func (p timeoutTracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (p timeoutTracer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchEndData) {
	p.end(ctx)
}

func (p timeoutTracer) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	return p.begin(ctx)
}

func (p timeoutTracer) TraceAcquireEnd(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireEndData) {
	p.end(ctx)
}
