// Package postgres keeps the state of the service in PostgreSQL: counters, receipts and the outbox, one file per
// table, each query beside the method that runs it; and what jobs, usage and alerts keep.
//
// What a transaction does to counters it writes as one row of a journal (journal.go), which all processes read. Until they
// are folded into their table (fold.go) they stand in memory (memory.go); one that was read for its change is written there at once.
//
// It is an [engine.Store]. A decision takes one round trip when nobody else has written to the journal since this process
// did (update.go), else two: one that waits for the turn to write, reads what others wrote and then the clock, and one that
// writes the changes and commits (turn.go). Everything in a round trip is pipelined, so its cost is that of one message each
// way.
//
// The package knows nothing of limits: states, specs and answers are bytes to it.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
	"github.com/seed503877ad/limits/internal/quickconn"
)

// Config configures a [Store].
type Config struct {
	// URL is the connection string, as a URL or in key=value form; required. Settings of the session that it
	// names (such as statement_timeout) win over the ones below. Behind a pooler, it must pool sessions.
	URL string
	// MaxConns is how many connections decide at the same time, and half of them answer queries; 8 unless set. Eight more
	// at most serve the relay, usage and alerts, so that neither a slow publish nor a long report holds up a decision.
	MaxConns int
	// LockTimeout is how long a statement waits for a lock, 1 s unless set: for the turn to write, above all.
	LockTimeout time.Duration
	// StatementTimeout is how long a statement of a decision may take, 1.5 s unless set. The context of a decision needs a
	// deadline too: a network that swallows packets is not bounded by it. Of what else is called without one, a statement
	// that gets no answer ends after 5 s, and on the connections of the relay after 15 s.
	StatementTimeout time.Duration
	// Name is the program's, for who looks at the connections of the server (application_name); "limiter" unless set.
	Name string
	// Logger is told when connections turn out to be dead, and when the journal cannot be folded for long; nothing is logged
	// unless set.
	Logger *slog.Logger

	// patience is relayPatience unless a test sets it.
	patience time.Duration
}

const (
	// An idle transaction keeps all others waiting for their turn. A decision is idle for microseconds; what is idle for
	// this long belongs to a worker that was cut off or stopped.
	decisionIdle = 800 * time.Millisecond
	// relayIdle bounds one publish.
	relayIdle = 30 * time.Second
	// relayStatement bounds a statement of the relay, which may have to count a long outbox.
	relayStatement = 10 * time.Second

	connectTimeout = 2 * time.Second
	// relays is how many run at the same time; one more connection is for what should not wait for them.
	relays = 2
)

// Store keeps counters, receipts and events in PostgreSQL. Its methods may be called at the same time.
type Store struct {
	pool *pgxpool.Pool
	// reading has a value for each connection of pool that a read beside decisions has: half of them at most, or many
	// requests with keys that nobody has would hold up all decisions.
	reading chan struct{}
	// relay serves what may hold a transaction for long, and whatever must work without the schema.
	relay *pgxpool.Pool
	// relaying has a value for each relay that runs.
	relaying chan struct{}
	outbox   outboxFront
	// reporting has a value while a question about usage is answered: a long one keeps no more than its connection.
	reporting chan struct{}
	// expiring has a value while what expired is removed, as far as that is known.
	expiring           chan struct{}
	counters, receipts expiry
	log                *slog.Logger
	// poisoned counts the messages that KeepPoison was given.
	poisoned atomic.Int64

	// turn is a lock that can be waited for with a context: who has put a value in may use what follows.
	turn chan struct{}
	// memory is as behind row seq of the journal, with that token, unless nothing was loaded yet; rows before first are
	// folded, whoever did it, and journaled counts the bytes that were read and written.
	memory           *memory
	loaded           bool
	seq, token       int64
	first, journaled int64
	// whole says that a row that was read tells that none before the first that was read is needed.
	whole bool
	// washed is what first was when memory was brought to it, and unwashed what it is since; nil when it is the same.
	washed   int64
	unwashed *journal.Mark
	clock    serverClock
	// others are counters that other processes changed, as the journal says, or Reset.
	others engine.Others
	fold   journal.Policy
	// folding and keep are what a transaction folds, and the first row of the journal that is needed behind it; rows before dropped are
	// gone, and those before leave go with it.
	folding              []*row
	keep, dropped, leave int64
	// said is the last row of the journal that names counters, -1 for none, and wrote the last that this process wrote. From older on rows are
	// left for others to read; newer takes its place.
	said, wrote  int64
	older, newer journal.Mark
	// leaves says that the process is about to end, and leaves no rows for others.
	leaves bool
	// skip counts down the transactions that take their turn at once; penalty is what it starts at next time.
	skip, penalty int
	// doubt is what the last transaction wrote, for when nobody knows whether it was committed.
	doubt doubt
	// tx, rows and states are what a transaction reads and writes, kept to be used again.
	tx     tx
	rows   []*row
	states [][]byte

	resting atomic.Bool
	closing sync.Once
	// stop ends tend, which closes tended.
	stop   context.Context
	cancel context.CancelFunc
	tended chan struct{}
}

var _ engine.Store = (*Store)(nil)

// Open makes a store. It does not connect: a worker may start before its database. [Store.Ping] and
// [Store.CheckSchema] do.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	base, err := parse(cfg.URL)
	if err != nil {
		return nil, err
	}
	s := &Store{
		log: cfg.Logger, relaying: make(chan struct{}, relays), reporting: make(chan struct{}, 1), expiring: make(chan struct{}, 1),
		counters: expiry{look: expiredCountersSQL, most: lookAtOnce}, receipts: expiry{look: expiredReceiptsSQL, most: lookAtOnce},
		turn: make(chan struct{}, 1), memory: newMemory(), fold: journal.Default(journalMost), tended: make(chan struct{}),
		said: -1,
	}
	s.stop, s.cancel = context.WithCancel(context.Background())
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	name, lock := cmp.Or(cfg.Name, "limiter"), orDefault(cfg.LockTimeout, time.Second)

	decisions := base.Copy()
	decisions.MaxConns = int32(orDefault(cfg.MaxConns, 8))
	decisions.AfterConnect = prepare
	patient(decisions, decisionPatience)
	session(decisions, name, lock, orDefault(cfg.StatementTimeout, 1500*time.Millisecond), decisionIdle)
	s.reading = make(chan struct{}, max(1, decisions.MaxConns/2))
	if s.pool, err = pgxpool.NewWithConfig(ctx, decisions); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}

	relay := base.Copy()
	relay.MaxConns = relays + 6 // with one that writes usage, one that reads it, and three for alerts
	session(relay, name, lock, relayStatement, relayIdle)
	patient(relay, orDefault(cfg.patience, relayPatience))
	if s.relay, err = pgxpool.NewWithConfig(ctx, relay); err != nil {
		s.pool.Close()
		return nil, fmt.Errorf("open database: %w", err)
	}
	go s.tend()
	return s, nil
}

// Close folds what is dirty, waits for running calls and closes all connections, once. It waits no longer than a few
// seconds for a server that does not answer: the end of the process closes what is left.
func (s *Store) Close() {
	s.closing.Do(func() {
		s.cancel()
		<-s.tended
		s.foldAll()
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			s.pool.Close()
			s.relay.Close()
		}()
		select {
		case <-closed:
		case <-time.After(closePatience):
			s.log.Warn("database connections were left open: the server does not answer")
		}
	})
}

// acquire takes a lock; the returned function gives it back.
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

// Ping tells whether the database answers.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, decisionPatience)
	defer cancel()
	if err := s.relay.Ping(ctx); err != nil {
		return fmt.Errorf("ping database: %w", inOneLine(err))
	}
	return nil
}

// PingDecisions tells whether a connection for decisions can be had. The schema has to be there.
func (s *Store) PingDecisions(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, decisionPatience)
	defer cancel()
	if err := s.pool.Ping(ctx); err != nil {
		return connectFailed(err)
	}
	return nil
}

func orDefault[T int | time.Duration](v, unset T) T {
	if v <= 0 {
		return unset
	}
	return v
}

// CheckURL holds that a database URL can be read, as [Open] does.
func CheckURL(text string) error {
	_, err := parse(text)
	return err
}

// parse reads the connection string. Its errors do not quote the string and carry no cause, because the string
// holds a password and a malformed one cannot be masked reliably.
func parse(text string) (*pgxpool.Config, error) {
	if text == "" {
		return nil, errors.New("read database URL: it is empty")
	}
	const want = "want postgres://user:password@host:port/database?sslmode=…, with / and @ of a password written as %2F and %40"
	// pgx takes what follows an @ or / of a password for a host or a database, and names both in its errors.
	if scheme, rest, _ := strings.Cut(text, "://"); scheme == "postgres" || scheme == "postgresql" {
		rest, _, _ = strings.Cut(rest, "?")
		if i := strings.IndexAny(rest, "@/"); i >= 0 && strings.Contains(rest[i+1:], "@") {
			return nil, errors.New("read database URL: it has an @ behind the user and password; " + want)
		}
	}
	cfg, err := pgxpool.ParseConfig(text)
	if err == nil {
		// Unset, pgx waits for two minutes.
		if cfg.ConnConfig.ConnectTimeout == 0 || !strings.Contains(text, "connect_timeout") {
			cfg.ConnConfig.ConnectTimeout = connectTimeout
		}
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return quickconn.Wrap(conn), nil
		}
		return cfg, nil
	}
	u, urlErr := url.Parse(text)
	if urlErr != nil || u.Host == "" {
		return nil, errors.New("read database URL: it is malformed; " + want)
	}
	// What pgx says is helpful, such as which setting is bad. Only its last part is: the first quotes the string.
	_, reason, _ := strings.Cut(err.Error(), "`: ")
	if password, set := u.User.Password(); reason == "" || set && strings.Contains(reason, password) {
		return nil, errors.New("read database URL: " + want)
	}
	return nil, errors.New("read database URL: " + reason + "; " + want)
}

// session sets the settings of every connection, except those that the URL sets.
//
// They are set by a statement, because a pooler refuses a connection that begins with settings it does not know, or leaves
// them out: PgBouncer's ignore_startup_parameters. Nor is a session new behind one.
//
// The plans of all statements here are known: nested loops over indexes. The planner would choose them from
// statistics, which a fresh table does not have and a table that grows fast has late, so the alternatives are turned
// off and the plan is made once per connection.
func session(cfg *pgxpool.Config, name string, lock, statement, idle time.Duration) {
	params := cfg.ConnConfig.RuntimeParams
	if !names(params, "application_name") {
		params["application_name"] = name
	}
	settings := forgetSQL + encodingSQL
	if !names(params, "synchronous_commit") {
		settings += durableSQL
	}
	settings += unlessSet(params, [][2]string{
		{"lock_timeout", millis(lock)},
		{"statement_timeout", millis(statement)},
		{"idle_in_transaction_session_timeout", millis(idle)},
		// A statement alone is a transaction that says neither.
		{"default_transaction_isolation", "'read committed'"},
		{"default_transaction_read_only", "off"},
		{"plan_cache_mode", "force_generic_plan"},
		{"enable_seqscan", "off"},
		{"enable_bitmapscan", "off"},
		{"enable_hashjoin", "off"},
		{"enable_mergejoin", "off"},
		{"enable_material", "off"},
		// A plan with a disabled node looks expensive enough to be compiled.
		{"jit", "off"},
	})
	// Each host of the URL that lets us in is asked. In a switchover an address may lead to a standby for a moment, and a
	// connection that was made then would be kept.
	cfg.ConnConfig.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if _, err := ask(ctx, conn, settings); err != nil {
			return fmt.Errorf("set up the session: %w", err)
		}
		err := pgconn.ValidateConnectTargetSessionAttrsReadWrite(ctx, conn)
		if err != nil && !conn.IsClosed() { // it did answer
			err = fmt.Errorf("%w: %w", errReadOnly, err)
		}
		return err
	}
}

const (
	// What is sent and read is UTF-8, whatever a role or database has in mind for others. The server takes the bytes as they
	// are where both encodings are its own: it checks that they are UTF-8 if that is what it has, and one with a letter for
	// each byte (LATIN1, SQL_ASCII) keeps what it has no letters for, which it could not if it were told that this is UTF-8.
	encodingSQL = `SELECT set_config('client_encoding', current_setting('server_encoding'), false); `

	// What was answered has to be there after a crash of the server. What is more than that (remote_apply), or does not wait
	// for a standby (local), is left as the operator has it.
	durableSQL = `SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'; `
)

// option is a setting among the options of the server's command line.
var option = regexp.MustCompile(`(?:^|\s)(?:-c\s*|--)([\w-]+)=`)

// names tells whether the URL has a setting, by itself or in options=-c….
func names(params map[string]string, setting string) bool {
	for name := range params {
		if strings.EqualFold(name, setting) {
			return true
		}
	}
	for _, o := range option.FindAllStringSubmatch(params["options"], -1) {
		if strings.EqualFold(strings.ReplaceAll(o[1], "-", "_"), setting) {
			return true
		}
	}
	return false
}

// unlessSet are statements for the settings that the URL leaves unset.
func unlessSet(params map[string]string, all [][2]string) string {
	var sql strings.Builder
	for _, s := range all {
		if !names(params, s[0]) {
			sql.WriteString("SET " + s[0] + " = " + s[1] + "; ")
		}
	}
	return sql.String()
}

func millis(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) }

// prepare prepares the statements of a decision on a new connection, in one round trip.
func prepare(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	pc := conn.PgConn()
	all := new(prepared)
	p := pc.StartPipeline(ctx)
	for i, sql := range decisionSQL {
		p.SendPrepare("limits_"+strconv.Itoa(i), sql, nil)
	}
	err := p.Sync()
	for i := 0; err == nil && i < len(decisionSQL); i++ {
		if all[i], err = description(p); err == nil {
			all[i].Name, all[i].SQL = "limits_"+strconv.Itoa(i), decisionSQL[i]
		}
	}
	if closeErr := p.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("prepare statements: %w", err)
	}
	pc.CustomData()[preparedKey] = all
	return nil
}
