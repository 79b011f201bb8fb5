// Package sqlite keeps the state of the service in one SQLite file, for a worker that runs alone: counters,
// receipts and the outbox, one file per table, each query beside the method that runs it.
//
// What a transaction does to counters it writes as one row of a journal (journal.go). Until they are folded into their
// table (fold.go) they stand in memory over it (overlay.go).
//
// It is an [engine.Store]. One connection writes, behind a lock, so transactions run one after another; others read
// beside it. The file belongs to one process at a time, which keeps in memory what is in it: who opens one must see to it that
// nobody else has it open, as package app does for the whole data folder.
//
// The package knows nothing of limits: states, specs and answers are bytes to it.
package sqlite

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	_ "modernc.org/sqlite"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// Config configures a [Store].
type Config struct {
	// Path is the database file; required. It is created with mode 0600, and its folder with mode 0700. Beside it
	// stands the write-ahead log (-wal, -shm).
	Path string
	// Now is the store's clock, [time.Now] unless set.
	Now func() time.Time
	// Logger is told when the journal cannot be folded for long; nothing is logged unless set.
	Logger *slog.Logger
}

// Store keeps counters, receipts and events in an SQLite file. Its methods may be called at the same time.
type Store struct {
	now      func() time.Time
	log      *slog.Logger
	identity string
	reader   *sql.DB
	// writer holds the one connection that writes; write and relay are locks that can be waited for with a context:
	// who has put a value in may go on.
	writer       *sql.DB
	write, relay chan struct{}
	conn         *sql.Conn
	st           statements
	closing      sync.Once
	places       []place
	// poisoned counts the messages that KeepPoison was given.
	poisoned atomic.Int64
	// What follows is used by who holds the write lock. The file belongs to this process, so what it knows of the file
	// need not be read again, unless stale says so.
	stale bool
	// others are counters that Reset has removed.
	others engine.Others
	// dirty holds what is in the journal and not in the table yet; recent, rows as they are in the table.
	dirty  *overlay
	recent *simplelru.LRU[engine.CounterID, *row]
	fold   journal.Policy
	// first and seq are the numbers of the journal's first and last row; it is empty when first is greater.
	first, seq int64
	// journaled counts the bytes of the journal's rows, since the file was opened.
	journaled int64
	// record is the row of the journal that a transaction writes; folding and keep are what it folds, and the first row
	// of the journal that it leaves.
	record  record
	folding []*row
	keep    int64
	// rows and states are what a transaction reads, kept to be used again.
	rows   []*row
	states [][]byte

	// stop ends tend, which closes tended.
	stop   context.Context
	cancel context.CancelFunc
	tended chan struct{}
}

// recentMost bounds the rows in recent.
const recentMost = 1 << 17

var _ engine.Store = (*Store)(nil)

// Open opens the file, which nobody else may have open, creates it when there is none, and brings its schema to the version
// this program knows.
func Open(ctx context.Context, cfg Config) (_ *Store, err error) {
	if cfg.Path == "" {
		return nil, errors.New("open database: the path is empty")
	}
	path, err := filepath.Abs(cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", cfg.Path, err)
	}
	recent, err := simplelru.NewLRU[engine.CounterID, *row](recentMost, nil)
	if err != nil {
		return nil, err
	}
	s := &Store{
		now: cfg.Now, log: cfg.Logger, identity: newIdentity(), write: make(chan struct{}, 1), relay: make(chan struct{}, 1),
		stale: true, dirty: newOverlay(), recent: recent, fold: journal.Default(journalMost), tended: make(chan struct{}),
	}
	s.stop, s.cancel = context.WithCancel(context.Background())
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	defer func() {
		if err != nil {
			_ = s.close()
			err = fmt.Errorf("open database %s: %w", cfg.Path, explained(err))
		}
	}()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := create(path); err != nil {
		return nil, err
	}
	if err := migrate(ctx, path); err != nil {
		return nil, err
	}
	if err := s.connect(ctx, path); err != nil {
		return nil, err
	}
	if err := s.load(); err != nil {
		return nil, err
	}
	if s.places, err = places(path); err != nil {
		return nil, err
	}
	go s.tend()
	return s, nil
}

// create makes the file with a mode of its own: SQLite would make it readable by everybody, and gives the files
// beside it the mode of this one.
func create(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

func (s *Store) connect(ctx context.Context, path string) (err error) {
	if s.writer, err = sql.Open("sqlite", dsn(path, "rw")); err != nil {
		return err
	}
	s.writer.SetMaxOpenConns(1)
	if s.conn, err = s.writer.Conn(ctx); err != nil {
		return err
	}
	s.reader = sql.OpenDB(&readers{s, dsn(path, "ro")})
	s.reader.SetMaxOpenConns(4)
	return s.st.prepare(ctx, s.conn)
}

// dsn names a file and the settings of each connection to it. FULL makes a commit wait for the disk. The busy timeout
// is for tools that look into the file while the service runs. A checkpoint of the log is part of a commit, for which all that
// is in flight waits: after 400 pages, not SQLite's 1000, there are more of them, each short.
func dsn(path, mode string) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // C:/…
	}
	q := url.Values{"mode": {mode}, "_pragma": {
		"busy_timeout(1000)", "journal_mode(WAL)", "synchronous(FULL)", "wal_autocheckpoint(400)", "temp_store(MEMORY)",
		"cache_size(-32768)",
	}}
	if mode == "ro" {
		q["_pragma"] = []string{"busy_timeout(1000)", "query_only(1)"}
	}
	return "file://" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
}

// Close waits for the running transaction, folds what is dirty and closes the file, once. Nothing else may be called
// afterwards. It waits without a bound: behind it the data folder is given back, and a process that opened the file under a
// transaction that still runs would not have in memory what that commits. An error would mean nothing: what was committed is on
// disk, and the journal and the log that are left are read by the next process.
func (s *Store) Close() {
	s.closing.Do(func() {
		s.cancel()
		<-s.tended
		s.foldAll()
		s.write <- struct{}{}
		_ = s.close()
	})
}

// close closes what is open. The last connection to go folds the log into the file, so that is the writer.
func (s *Store) close() error {
	var errs []error
	if s.reader != nil {
		errs = append(errs, s.reader.Close())
	}
	if s.conn != nil {
		errs = append(errs, s.st.close(), s.conn.Close())
	}
	if s.writer != nil {
		errs = append(errs, s.writer.Close())
	}
	return errors.Join(errs...)
}

// Ping tells whether the file can be read, and is where it was.
func (s *Store) Ping(ctx context.Context) error {
	err := s.inPlace()
	if err == nil {
		err = s.reader.PingContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("ping database: %w", err)
	}
	return nil
}

// Identity names what this store counts in. The file is this process's alone, so nobody else has the same.
func (s *Store) Identity(context.Context) (string, error) { return s.identity, nil }

func newIdentity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	return "sqlite on " + host + ", " + rand.Text()
}

// acquire takes one of the locks; the returned function gives it back.
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
