package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// A connection may go silent without an end: a failover that nobody told us of, a proxy that hangs. What waits for one
	// waits no longer than these, whatever deadline its caller has or lacks.
	//
	// pingTimeout bounds the ping of a connection that was idle, before the next one is tried.
	pingTimeout = time.Second
	// decisionPatience and relayPatience bound a wait for a connection, and a statement from its sending to its last row.
	// The server has given up by itself by then, if it is there.
	decisionPatience = 5 * time.Second
	relayPatience    = relayStatement + 5*time.Second
	// foldPatience bounds a transaction that folds: decisions wait for it.
	foldPatience = 1500 * time.Millisecond
	// rollbackPatience bounds the end of a transaction that writes nothing.
	rollbackPatience = time.Second
	// closePatience bounds the closing of connections, whose server may never answer.
	closePatience = 3 * time.Second
)

// patience gives what a pool does a deadline. It is a tracer because all statements pass there, and what it returns is the
// context that they run with.
type patience time.Duration

var (
	_ pgx.QueryTracer       = patience(0)
	_ pgx.BatchTracer       = patience(0)
	_ pgxpool.AcquireTracer = patience(0)
)

type (
	cancelKey   struct{}
	patienceKey struct{}
)

// withPatience makes a statement that is sent with the context wait for so long, whatever the patience of the pool.
func withPatience(ctx context.Context, most time.Duration) context.Context {
	return context.WithValue(ctx, patienceKey{}, most)
}

// patient makes a pool wait no longer than that for a connection or a statement.
func patient(cfg *pgxpool.Config, most time.Duration) {
	cfg.PingTimeout = pingTimeout
	cfg.ConnConfig.Tracer = patience(most)
	cfg.BeforeClose = func(conn *pgx.Conn) {
		if !conn.IsClosed() {
			return
		}
		// It broke off, and pgx waits up to 15 s for the server to say so too, which keeps a place in the pool.
		select {
		case <-conn.PgConn().CleanupDone():
		case <-time.After(pingTimeout):
			_ = conn.PgConn().Conn().Close()
		}
	}
}

func (p patience) begin(ctx context.Context) context.Context {
	most, own := ctx.Value(patienceKey{}).(time.Duration)
	if !own {
		most = time.Duration(p)
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	return context.WithValue(ctx, cancelKey{}, cancel)
}

func (p patience) end(ctx context.Context) {
	if cancel, ok := ctx.Value(cancelKey{}).(context.CancelFunc); ok {
		cancel()
	}
}

func (p patience) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return p.begin(ctx)
}

func (p patience) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	p.end(ctx)
}

func (p patience) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return p.begin(ctx)
}

func (p patience) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (p patience) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchEndData) {
	p.end(ctx)
}

func (p patience) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	return p.begin(ctx)
}

func (p patience) TraceAcquireEnd(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireEndData) {
	p.end(ctx)
}
