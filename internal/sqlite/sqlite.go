// Package sqlite keeps the state of the service in one SQLite file, for a worker that runs alone:
// counters, receipts and the outbox, and the tables of jobs, API keys, overrides, usage and alerts.
// Each table has a file, in which each query stands beside the method that runs it.
//
// Terms that the package shares with package postgres:
//
//   - The journal is a table with one row for each transaction that changed counters (journal.go).
//   - A counter is dirty if its last change is only in the journal, and clean if the table counters has
//     it too. All dirty counters are in memory (overlay.go), which takes precedence over the table.
//   - To fold is to write dirty counters to their table, so that rows of the journal can be deleted
//     (fold.go).
//
// The store is an [engine.Store]. One connection writes, behind a lock, so transactions run one
// after another; other connections read beside it. The file belongs to one process at a time, which
// keeps parts of it in memory. The caller has to make sure that no other process has the file open,
// as package app does for the data folder, and for the file if the path is a symbolic link.
//
// The package knows nothing of limits: states, specs and answers are bytes to it.
package sqlite

import (
	"cmp"
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
	// Path is the database file; required. It is created with mode 0600, and its folder with mode
	// 0700. SQLite puts its write-ahead log beside it (-wal, -shm).
	Path string
	// Now is the store's clock, [time.Now] unless set.
	Now func() time.Time
	// Logger is told when folding fails for long. Nothing is logged unless it is set.
	Logger *slog.Logger
}

// Store keeps counters, receipts and events in an SQLite file. Its methods may be called
// concurrently.
type Store struct {
	now     func() time.Time
	log     *slog.Logger
	storeID string
	reader  *sql.DB
	// reads has the prepared statements of reader, *sql.Stmt, by their texts. They are closed with it.
	reads sync.Map
	// writer holds conn, the one connection that writes, with its prepared statements.
	writer *sql.DB
	conn   *sql.Conn
	stmts  statements
	// writeLock and relayLock are semaphores of one, which [acquire] waits for with a context.
	writeLock, relayLock chan struct{}
	files                []openFile
	// poisoned counts the successful calls of KeepPoison.
	poisoned atomic.Int64

	// writeLock guards everything below, up to states. The file belongs to this process, so memory
	// is up to date without reading it again, unless stale is set.
	stale bool
	// others are the counters that Reset has removed.
	others engine.Others
	// dirty holds the counters whose last change is in the journal but not yet in the table counters;
	// clean caches others as they are in the table.
	dirty      *overlay
	clean      *simplelru.LRU[engine.CounterID, *row]
	foldPolicy journal.Policy
	folding    foldPlan
	// firstSeq and lastSeq number the first and the last row of the journal, which is empty when
	// firstSeq is greater.
	firstSeq, lastSeq int64
	// journalBytes counts the bytes of the journal's rows since the file was opened.
	journalBytes int64
	// record, rows and states are buffers of the running transaction, kept to be reused.
	record record
	rows   []*row
	states [][]byte

	closeOnce sync.Once
	// stop ends foldLoop, which then closes foldLoopDone.
	stop         context.Context
	cancel       context.CancelFunc
	foldLoopDone chan struct{}
}

// maxClean bounds the clean rows in memory.
const maxClean = 1 << 17

var _ engine.Store = (*Store)(nil)

// Open opens the file, which no other process may have open. It creates the file if there is none,
// and brings its schema to the version that this program knows.
func Open(ctx context.Context, cfg Config) (_ *Store, err error) {
	if cfg.Path == "" {
		return nil, errors.New("open database: the path is empty")
	}
	path, err := filepath.Abs(cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", cfg.Path, err)
	}
	clean, err := simplelru.NewLRU[engine.CounterID, *row](maxClean, nil)
	if err != nil {
		return nil, err
	}
	s := &Store{
		now: cfg.Now, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), storeID: newStoreID(),
		writeLock: make(chan struct{}, 1), relayLock: make(chan struct{}, 1), foldLoopDone: make(chan struct{}),
		stale: true, dirty: newOverlay(), clean: clean, foldPolicy: journal.Default(maxJournalBytes),
	}
	s.stop, s.cancel = context.WithCancel(context.Background())
	if s.now == nil {
		s.now = time.Now
	}
	defer func() {
		if err != nil {
			s.close()
			err = fmt.Errorf("open database %s: %w", cfg.Path, withAdvice(err))
		}
	}()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := s.create(path); err != nil {
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
	if s.files, err = openFiles(path); err != nil {
		return nil, err
	}
	go s.foldLoop()
	return s, nil
}

// create creates the file with mode 0600. SQLite would make it readable by everybody, and it gives
// the files beside it the mode of this one. A file that is there and empty is one that a start has
// just made and did not fill, or what is left of a copy that was not finished, so it is told of.
func (s *Store) create(path string) error {
	if info, err := os.Stat(path); err == nil && info.Size() == 0 {
		s.log.Warn("the database file is empty: all counters, API keys and overrides begin anew; if it was restored, its backup is empty", "file", path)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// maxReaders bounds the connections that read. They stay open, because to open one takes as long as ten small reads.
const maxReaders = 4

func (s *Store) connect(ctx context.Context, path string) (err error) {
	if s.writer, err = sql.Open("sqlite", dsn(path, "rw")); err != nil {
		return err
	}
	s.writer.SetMaxOpenConns(1)
	if s.conn, err = s.writer.Conn(ctx); err != nil {
		return err
	}
	s.reader = sql.OpenDB(&readers{s, dsn(path, "ro")})
	s.reader.SetMaxOpenConns(maxReaders)
	s.reader.SetMaxIdleConns(maxReaders)
	return s.stmts.prepare(s.conn)
}

// dsn returns the data source name of a file, with the settings of each connection.
// synchronous(FULL) makes a commit wait for the disk. The busy timeout is for tools that look into
// the file while the service runs. A checkpoint of the write-ahead log is part of a commit, and all
// requests in flight wait for it; with one every 400 pages instead of SQLite's 1000 there are more
// of them, but each is short. Sorts are in memory, because the data folder may be the only one that
// is writable, and SQLite puts temporary files elsewhere.
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
		q["_pragma"] = []string{"busy_timeout(1000)", "query_only(1)", "temp_store(MEMORY)"}
	}
	return "file://" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
}

// Close waits for the running transaction, folds the dirty counters and closes the file. Only the
// first call does anything, and nothing else may be called afterwards. It waits without a bound,
// because the caller then gives the data folder back: a process that opened the file during a
// running transaction would not have in memory what that commits. It returns no error, as one would
// mean nothing: committed data is on disk, and the next process reads the journal and the
// write-ahead log.
func (s *Store) Close() {
	s.closeOnce.Do(func() {
		s.cancel()
		<-s.foldLoopDone
		s.foldAll()
		s.writeLock <- struct{}{}
		s.close()
	})
}

// close closes what is open. The last connection that closes checkpoints the write-ahead log, so
// that is the writer.
func (s *Store) close() {
	if s.reader != nil {
		_ = s.reader.Close()
	}
	if s.conn != nil {
		s.stmts.close()
		_ = s.conn.Close()
	}
	if s.writer != nil {
		_ = s.writer.Close()
	}
}

// Ping returns an error if the file cannot be read, or was moved or replaced.
func (s *Store) Ping(ctx context.Context) error {
	err := s.checkFiles()
	if err == nil {
		err = s.reader.PingContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("ping database: %w", err)
	}
	return nil
}

// Identity names the database. The file belongs to this process, so no other one has the same.
func (s *Store) Identity(context.Context) (string, error) { return s.storeID, nil }

func newStoreID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	return "sqlite on " + host + ", " + rand.Text()
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
