package testenv

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/pressly/goose/v3"

	"github.com/seed503877ad/limits/migrations"
)

// Postgres returns the URL of a database of the test's own, with the schema. When the test ends, connections to it are
// terminated. On the server of TEST_DATABASE_URL the database is dropped then; otherwise it is removed with the server.
//
// It is a copy of a template that each test process makes once; a copy takes milliseconds.
func Postgres(tb testing.TB) string {
	tb.Helper()
	return shared.database(tb, shared.migrated)
}

// EmptyPostgres is Postgres without the schema.
func EmptyPostgres(tb testing.TB) string {
	tb.Helper()
	return shared.database(tb, shared.empty)
}

// shared is the server of this test process, started on first use. It is a variable of the package because all tests of the
// process and Main use it.
var shared server

// server is a PostgreSQL server with a template database.
type server struct {
	mu       sync.Mutex
	admin    string // URL of a database from which others are created; empty until started
	err      error  // why it did not start, or has no template; it is tried once and reported to each test
	cluster  *cluster
	template string // the name of a database with the schema; empty until made
	strategy string // how databases are copied, as SQL
}

// database copies the template database for one test.
func (s *server) database(tb testing.TB, template func() (string, error)) string {
	tb.Helper()
	name := newName()
	source, err := template()
	if err == nil {
		err = s.exec("CREATE DATABASE " + name + " TEMPLATE " + source + s.strategy)
	}
	if err != nil {
		tb.Fatalf("testenv: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.discard(name); err != nil {
			tb.Errorf("testenv: discard the test's database: %v", err)
		}
	})
	return s.databaseURL(name)
}

// discard terminates the connections of a database. On a server that is removed at the end it does not drop the database:
// ext4 does not reuse an inode for five seconds and skips each such inode, which took a quarter of the time of tests that
// create many databases.
func (s *server) discard(name string) error {
	if s.cluster != nil {
		return s.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
	}
	return s.exec("DROP DATABASE IF EXISTS " + name + " WITH (FORCE)")
}

// empty and migrated return the name of a template, and start the server on first use. migrated also makes its template.
func (s *server) empty() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return "template0", s.start()
}

func (s *server) migrated() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.start(); err != nil || s.template != "" {
		return s.template, err
	}
	s.template = newName()
	if s.err = s.exec("CREATE DATABASE " + s.template + " TEMPLATE template0"); s.err == nil {
		s.err = migrate(s.databaseURL(s.template))
	}
	return s.template, s.err
}

// migrate makes the schema. It does not use a test's context, because the template is for all tests.
func migrate(databaseURL string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	db, err := sql.Open("pgx", databaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	files, err := fs.Sub(migrations.FS, "postgres")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithDisableGlobalRegistry(true))
	if err == nil {
		_, err = p.Up(ctx)
	}
	if err != nil {
		return fmt.Errorf("migrate a database: %w", err)
	}
	return nil
}

// start finds or starts the server.
func (s *server) start() error {
	if s.admin != "" || s.err != nil {
		return s.err
	}
	if given := os.Getenv("TEST_DATABASE_URL"); given != "" {
		if u, err := url.Parse(given); err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
			s.err = errors.New("TEST_DATABASE_URL: want postgres://user:password@host:port/database")
			return s.err
		} else if u.RawQuery == "" { // tests add parameters with an ampersand
			u.RawQuery = "sslmode=prefer" // the default
			given = u.String()
		}
		s.admin = given
		return nil
	}
	// fsync only protects against a crash of the machine, after which the data of tests is of no use. Without it a killed
	// server still loses nothing. Tests of crashes use PostgresServer.
	s.cluster, s.err = newCluster("fsync=off", "full_page_writes=off", "wal_init_zero=off")
	if s.err != nil {
		return s.err
	}
	s.admin = s.cluster.url
	if s.cluster.version() >= 15 {
		s.strategy = " STRATEGY FILE_COPY" // by default these versions write a copy to their log, too
	}
	return nil
}

// close stops the server, or drops the template on the server of TEST_DATABASE_URL.
func (s *server) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster != nil {
		return s.cluster.remove()
	}
	if s.template == "" {
		return nil
	}
	return s.discard(s.template)
}

func (s *server) exec(sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.admin)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

func (s *server) databaseURL(name string) string {
	u, err := url.Parse(s.admin)
	if err != nil {
		panic(err) // start has parsed it
	}
	u.Path = "/" + name
	return u.String()
}

// newName returns a unique name of a database, because several test processes may share a server.
func newName() string { return "limits_test_" + strings.ToLower(rand.Text()) }
