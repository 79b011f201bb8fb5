// Package postgres keeps the state of the service in PostgreSQL: counters, receipts and the outbox,
// and the tables of jobs, API keys, overrides, usage and alerts. Each table has a file, in which
// each query stands beside the method that runs it.
//
// Terms that the package uses throughout:
//
//   - The journal is a table with one row for each transaction that changed counters (journal.go). All
//     workers write it and all read it.
//   - A counter is dirty if its last change is only in the journal, and clean if the table counters has
//     it too. The cache (cache.go) holds all dirty counters and some clean ones.
//   - To fold is to write dirty counters to their table, so that rows of the journal can be deleted
//     (fold.go). A change to a counter that was just read from the table is written through instead.
//   - The turn is an advisory lock of the database: whoever holds it may write the next row of the
//     journal. The server grants it in order of arrival.
//
// The store is an [engine.Store]. A decision takes one round trip if no other worker has written to
// the journal since this one did: the optimistic way (update.go). Otherwise it takes two: the first
// waits for the turn, reads what others wrote and then the clock (turn.go, catchup.go); the second
// writes the changes and commits (tx.go). The statements of a round trip are pipelined.
//
// The package knows nothing of limits: states, specs and answers are bytes to it.
package postgres

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/outage"
)

// Config configures a [Store].
type Config struct {
	// URL is the connection string, as a URL or in key=value form; required. Session settings in it
	// (such as statement_timeout) take precedence over those that the store makes. A pooler in
	// between must pool sessions, not transactions.
	URL string
	// Name is the program's name, as the server lists it for its connections (application_name);
	// "limiter" unless set.
	Name string
	// Logger is told when connections turn out to be dead, and when folding fails for long. Nothing
	// is logged unless it is set.
	Logger *slog.Logger

	// These override the constants in tests.
	maxConns                                                  int32
	lockTimeout, statementTimeout, decisionIdle, relayTimeout time.Duration
}

const (
	// maxConns bounds the connections that decide, of which at most half serve reads beside
	// decisions. Others serve the relay, usage and alerts, so that neither a slow publish nor a long
	// report holds up a decision.
	maxConns = 8
	// maxRelays bounds the calls of Relay that run at the same time.
	maxRelays = 2

	// lockTimeout is how long a statement waits for a lock, above all for the turn to write.
	lockTimeout = time.Second
	// statementTimeout is how long the server lets a statement of a decision run. It does not bound a
	// network that swallows packets, so the context of a decision needs a deadline too. Other calls
	// need none: their statements are given up after decisionTimeout or relayTimeout.
	statementTimeout = 1500 * time.Millisecond
	// An idle transaction makes all others wait for their turn. A decision leaves one idle for
	// microseconds; a transaction that is idle for this long belongs to a worker that hangs or was
	// cut off.
	decisionIdle = 800 * time.Millisecond
	// relayIdle bounds one publish, during which the relay's transaction is idle.
	relayIdle = 30 * time.Second
	// relayStatement bounds a statement of the relay, which may have to count a long outbox.
	relayStatement = 10 * time.Second

	connectTimeout = 2 * time.Second
)

// Store keeps counters, receipts and events in PostgreSQL. Its methods may be called concurrently.
type Store struct {
	log *slog.Logger
	// A network that breaks connections has many of each.
	lostAnswers, lostConns *outage.Log

	// Channels with Slot, Slots or Lock in their name are semaphores; acquire waits for them with a
	// context.

	// pool serves decisions, and reads that run beside them; conns hands out its connections.
	pool  *pgxpool.Pool
	conns *conns
	// readSlots lets those reads have half of pool's connections at most. Without it, many requests
	// with unknown API keys would hold up all decisions.
	readSlots  chan struct{}
	dirtyReads *sharedReads[dirtyQuestion, []engine.StoredCounter]
	keyReads   *sharedReads[string, *keys.Stored]
	// relay serves what may keep a transaction open for long, and what must work without the schema.
	relay oneLinePool
	// relaySlots bounds the calls of Relay that run at the same time.
	relaySlots  chan struct{}
	outboxStart outboxStart
	// reportSlot lets one usage report run at a time, so that long ones keep one connection only.
	reportSlot chan struct{}
	// expireLock guards counterScan and receiptScan: how far each table was searched for expired
	// rows.
	expireLock               chan struct{}
	counterScan, receiptScan expiryScan
	// poisoned counts the successful calls of KeepPoison.
	poisoned atomic.Int64

	// writeLock guards everything below, up to states. It is the process's own lock; the turn to
	// write, which the server grants, is taken inside it.
	writeLock chan struct{}
	// cache holds counters as of row lastSeq of the journal, whose token is lastToken; loaded is
	// false until the journal was read.
	cache              *counterCache
	loaded             bool
	lastSeq, lastToken int64
	// firstSeq is the first row that is still in the journal, as far as this process knows.
	firstSeq int64
	// No row before firstNeeded is needed: they are folded, by whichever process.
	firstNeeded int64
	// lastNaming is the last row that names counters, -1 for none.
	lastNaming int64
	// lastWritten is the last row that this process wrote.
	lastWritten int64
	// journalBytes counts the bytes of the rows that were read and written.
	journalBytes int64
	// complete is set by a row which says that no row before the first one read is needed.
	complete bool
	// caughtUp says that the journal was read to its end, and behindGap that rows are missing before
	// the first one read, but not all of them.
	caughtUp, behindGap bool
	// cleanedTo is the firstNeeded for which rows of the cache were last marked clean; foldedTo marks
	// the one since then, nil if it has not changed.
	cleanedTo int64
	foldedTo  *journal.Mark
	// Rows from retainFrom on are left for other processes to read; nextRetainFrom takes its place.
	retainFrom, nextRetainFrom journal.Mark
	// shuttingDown says that the process is about to end, and retains no rows for others.
	shuttingDown bool

	clock serverClock
	// others are the counters that other processes have changed, or Reset.
	others     engine.Others
	foldPolicy journal.Policy
	// foldTimeout is the constant, unless a test sets it.
	foldTimeout time.Duration
	folding     foldPlan
	// optimistic counts the attempts that failed because another process had written, or for the
	// clock; newIDs those that failed because an id was not new.
	optimistic, newIDs backoff
	inDoubt            inDoubtCommit
	// unconfirmed says that a synchronous standby may lack a transaction that was or may be committed,
	// by this process or by another one. needsStandby says that there has
	// to be one, as far as is known.
	unconfirmed  bool
	needsStandby atomic.Bool
	// tx, rows and states are buffers of the running transaction, kept to be reused.
	tx     tx
	rows   []*row
	states [][]byte

	resting   atomic.Bool
	closeOnce sync.Once
	// stop ends foldLoop, which then closes foldLoopDone.
	stop         context.Context
	cancel       context.CancelFunc
	foldLoopDone chan struct{}
}

var _ engine.Store = (*Store)(nil)

// Open makes a store. It does not connect, so that a worker may start before its database;
// [Store.Ping] and [Store.CheckSchema] do.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	base, err := parse(cfg.URL)
	if err != nil {
		return nil, err
	}
	log := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	s := &Store{
		log:         log,
		lostAnswers: outage.New(log, slog.LevelWarn, "the answer to a commit was lost; the journal shows whether it was committed", "commits are answered again"),
		lostConns: outage.New(log, slog.LevelWarn, "database connection lost or its statements outdated, discarding idle connections",
			"no database connection was lost lately"),
		relaySlots: make(chan struct{}, maxRelays), reportSlot: make(chan struct{}, 1),
		expireLock: make(chan struct{}, 1), writeLock: make(chan struct{}, 1), foldLoopDone: make(chan struct{}),
		dirtyReads: newSharedReads[dirtyQuestion, []engine.StoredCounter](), keyReads: newSharedReads[string, *keys.Stored](),
		counterScan: expiryScan{query: expiredCountersSQL, limit: scanBatch},
		receiptScan: expiryScan{query: expiredReceiptsSQL, limit: scanBatch},
		cache:       newCounterCache(), foldPolicy: journal.Default(maxJournalBytes), foldTimeout: foldTimeout, lastNaming: -1,
		unconfirmed: true,
	}
	s.stop, s.cancel = context.WithCancel(context.Background())
	name, lock := cmp.Or(cfg.Name, "limiter"), cmp.Or(cfg.lockTimeout, lockTimeout)

	decisions := base.Copy()
	decisions.MaxConns = cmp.Or(cfg.maxConns, maxConns)
	decisions.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if err := prepare(ctx, conn); err != nil {
			return err
		}
		return s.learnStandby(ctx, conn)
	}
	setTimeouts(decisions, decisionTimeout)
	configureSession(decisions, name, lock, cmp.Or(cfg.statementTimeout, statementTimeout), cmp.Or(cfg.decisionIdle, decisionIdle))
	s.readSlots = make(chan struct{}, max(1, decisions.MaxConns/2))
	if s.conns, err = newConns(ctx, decisions); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	s.pool = s.conns.pool

	relay := base.Copy()
	// A relay has a second one for a synchronous standby. For usage, one that writes and one that
	// reads; three for alerts; one for what must not wait for any of them.
	relay.MaxConns = 2*maxRelays + 6
	configureSession(relay, name, lock, relayStatement, relayIdle)
	setTimeouts(relay, cmp.Or(cfg.relayTimeout, relayTimeout))
	if s.relay.Pool, err = pgxpool.NewWithConfig(ctx, relay); err != nil {
		s.pool.Close()
		return nil, fmt.Errorf("open database: %w", err)
	}
	go s.foldLoop()
	return s, nil
}

// Close folds the dirty counters, waits for running calls and closes all connections. Only the
// first call does anything. If the server does not answer, Close returns after a few seconds and
// leaves connections open, which the end of the process closes.
func (s *Store) Close() {
	s.closeOnce.Do(func() {
		s.cancel()
		<-s.foldLoopDone
		s.foldAll()
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			s.pool.Close()
			s.relay.Close()
		}()
		select {
		case <-closed:
		case <-time.After(closeTimeout):
			s.log.Warn("database connections left open: the server does not answer")
		}
	})
}

// acquire takes a place in a semaphore; release gives it back.
func acquire(ctx context.Context, lock chan struct{}) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case lock <- struct{}{}:
		return func() { <-lock }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Ping returns an error if the database does not answer within 5 s.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, decisionTimeout)
	defer cancel()
	if err := s.relay.Ping(ctx); err != nil {
		return fmt.Errorf("ping database: %w", err)
	}
	return nil
}

// PingDecisions returns an error if no connection for decisions can be had within 5 s. The schema
// has to be there.
func (s *Store) PingDecisions(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, decisionTimeout)
	defer cancel()
	return s.onConn(ctx, func(c conn) error {
		if err := c.Ping(ctx); err != nil {
			return connectFailed(err)
		}
		return nil
	})
}

// onConn runs f on a connection for decisions.
func (s *Store) onConn(ctx context.Context, f func(c conn) error) error {
	c, err := s.conns.get(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	return f(c)
}
