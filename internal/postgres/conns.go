package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// makePause is how long no connection is made after that failed, while others are there.
const makePause = 100 * time.Millisecond

// conns hands out the connections of a pool. Whoever waits for one takes the first that is there: one
// that is released, or a new one. The pool alone would have those wait for a new one who find none
// idle, and fail if there is none, as at a server whose sessions are used up.
//
// The pool has at most as many connections idle or in use as there are tokens. There may be fewer,
// because it closes some by itself; the token of such a one is dropped when it is found missing.
type conns struct {
	pool *pgxpool.Pool
	// free has a token for each connection that nobody uses; who waits longest gets the next.
	free chan struct{}

	mu sync.Mutex
	// tokens counts those of connections in use, too.
	tokens, making int
	// notBefore is when a connection may be made while others are there.
	notBefore time.Time
}

// conn is a connection in use.
type conn struct {
	*pgxpool.Conn
	from *conns
}

// Release gives the connection back. It must be called once.
func (c conn) Release() {
	c.Conn.Release()
	c.from.put()
}

func (c conn) pg() *pgconn.PgConn { return c.Conn.Conn().PgConn() }

// errNoneIdle says that the pool has no idle connection.
var errNoneIdle = errors.New("no connection is idle")

type idleOnlyKey struct{}

func newConns(ctx context.Context, cfg *pgxpool.Config) (*conns, error) {
	cfg.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error {
		if ctx.Value(idleOnlyKey{}) != nil {
			return errNoneIdle
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &conns{pool: pool, free: make(chan struct{}, cfg.MaxConns)}, nil
}

// get returns a connection. It waits until ctx ends, but not longer than decisionTimeout. If no
// connection is left, the error is that of making one.
func (c *conns) get(ctx context.Context) (conn, error) {
	select {
	case <-c.free:
	default:
		return c.wait(ctx)
	}
	got, err := c.idle(ctx)
	if errors.Is(err, errNoneIdle) {
		return c.wait(ctx)
	}
	return got, err
}

// wait makes a connection, and waits for that or another one.
func (c *conns) wait(ctx context.Context) (conn, error) {
	ctx, cancel := context.WithTimeout(ctx, decisionTimeout)
	defer cancel()
	var failed <-chan error
	var failure error
	again := time.NewTicker(makePause)
	defer again.Stop()
	for {
		if failed == nil {
			failed = c.make()
		}
		select {
		case <-c.free:
		case failure = <-failed:
			if failed = nil; c.hasNone() {
				return conn{}, connectFailed(failure)
			}
			continue
		case <-again.C:
			continue
		case <-ctx.Done():
			return conn{}, waitedInVain(ctx, failure)
		}
		if got, err := c.idle(ctx); !errors.Is(err, errNoneIdle) {
			return got, err
		}
	}
}

func waitedInVain(ctx context.Context, failure error) error {
	if failure == nil {
		return connectFailed(ctx.Err())
	}
	return fmt.Errorf("wait for a connection in use: %w; %w", ctx.Err(), connectFailed(failure))
}

// idle returns an idle connection, for which the caller has taken a token.
func (c *conns) idle(ctx context.Context) (conn, error) {
	got, err := c.pool.Acquire(context.WithValue(ctx, idleOnlyKey{}, true))
	switch {
	case err == nil:
		return conn{got, c}, nil
	case errors.Is(err, errNoneIdle):
		c.mu.Lock()
		c.tokens--
		c.mu.Unlock()
		return conn{}, err
	}
	c.put()
	c.resetIfTimedOut(ctx)
	return conn{}, connectFailed(err)
}

// make makes a connection in the background. A failure comes from the channel that it returns; nil if
// none is made. It goes on if whoever called it has got another one: the next may need it.
func (c *conns) make() <-chan error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tokens+c.making >= cap(c.free) || c.tokens > 0 && time.Now().Before(c.notBefore) {
		return nil
	}
	c.making++
	failed := make(chan error, 1)
	go func() {
		made, err := c.pool.Acquire(context.Background()) // which ends after decisionTimeout
		c.mu.Lock()
		c.making--
		if err == nil {
			c.tokens++
		} else {
			c.notBefore = time.Now().Add(makePause)
		}
		c.mu.Unlock()
		if err != nil {
			failed <- err
			return
		}
		conn{made, c}.Release() // to who waits longest
	}()
	return failed
}

func (c *conns) put() { c.free <- struct{}{} }

func (c *conns) hasNone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tokens == 0
}

// resetIfTimedOut discards the idle connections if the transaction has waited until its deadline:
// the others may be as silent as the one it had, and each would cost another deadline. It does not
// while a connection is being made. That may take longer than a transaction waits, and the next one
// needs it.
func (c *conns) resetIfTimedOut(ctx context.Context) {
	if ctx.Err() != nil && c.pool.Stat().ConstructingConns() == 0 {
		c.pool.Reset()
	}
}
