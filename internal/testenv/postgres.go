package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Postgres returns the URL of a database that is the test's own, migrated by migrate, or empty when migrate is nil.
// Whatever is still connected to it when the test ends is cut off. On a server that was lent it is dropped then; else it goes
// with the server, at the end.
//
// migrate runs once in a test process, on a template that every later database is copied from, which takes
// milliseconds. Functions are told apart by their code: of two closures that differ only in the variables they hold,
// the first serves for both.
func Postgres(tb testing.TB, migrate func(ctx context.Context, url string) error) string {
	tb.Helper()
	name, err := shared.create(migrate)
	if err != nil {
		tb.Fatalf("testenv: %v", err)
	}
	tb.Cleanup(func() {
		if err := shared.discard(name); err != nil {
			tb.Errorf("testenv: discard the test's database: %v", err)
		}
	})
	return shared.databaseURL(name)
}

// shared is the server of this test process, started when first asked for. It has to be known to every test of the
// process and to Main, hence a variable of the package.
var shared server

// server is a PostgreSQL server with template databases.
type server struct {
	mu        sync.Mutex
	admin     string // URL of a database to create others from; empty until started
	err       error  // why it did not start: reported to each test, tried once
	cluster   *cluster
	templates map[uintptr]template
}

type template struct {
	name string
	err  error
}

// create makes a database and returns its name.
func (s *server) create(migrate func(context.Context, string) error) (string, error) {
	source, err := s.template(migrate)
	if err != nil {
		return "", err
	}
	name := newName()
	return name, s.exec("CREATE DATABASE " + name + " TEMPLATE " + source)
}

// discard ends what is connected to a database. Where the server goes soon, too, its files stay: ext4 gives no inode away
// again for five seconds, and steps over each such one, which took a quarter of the time of tests that create many databases.
func (s *server) discard(name string) error {
	if s.cluster != nil {
		return s.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
	}
	return s.exec("DROP DATABASE IF EXISTS " + name + " WITH (FORCE)")
}

// template returns the database to copy, and starts the server and makes the database when it is the first to ask.
func (s *server) template(migrate func(context.Context, string) error) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.start(); err != nil {
		return "", err
	}
	if migrate == nil {
		return "template0", nil
	}
	code := reflect.ValueOf(migrate).Pointer()
	if t, ok := s.templates[code]; ok {
		return t.name, t.err
	}
	t := template{name: newName()}
	t.err = s.exec("CREATE DATABASE " + t.name + " TEMPLATE template0")
	if t.err == nil {
		t.err = s.migrate(t.name, migrate)
	}
	s.templates[code] = t
	return t.name, t.err
}

// migrate has a context of its own, and not the test's, since what it makes is for all tests.
func (s *server) migrate(name string, migrate func(context.Context, string) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := migrate(ctx, s.databaseURL(name)); err != nil {
		return fmt.Errorf("migrate the template database: %w", err)
	}
	return nil
}

// start finds or starts the server.
func (s *server) start() error {
	if s.admin != "" || s.err != nil {
		return s.err
	}
	s.templates = map[uintptr]template{}
	if given := os.Getenv("TEST_DATABASE_URL"); given != "" {
		if u, err := url.Parse(given); err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
			s.err = errors.New("TEST_DATABASE_URL: want postgres://user:password@host:port/database")
			return s.err
		}
		s.admin = given
		return nil
	}
	// Its data is worth nothing after a crash of the machine, and that is all that fsync guards against: a kill
	// loses nothing without it. Tests of crashes have PostgresServer.
	s.cluster, s.err = newCluster("fsync=off", "full_page_writes=off")
	if s.err == nil {
		s.admin = s.cluster.url
	}
	return s.err
}

// close stops the server, or drops the templates on one that was given.
func (s *server) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster != nil {
		return s.cluster.remove()
	}
	var errs []error
	for _, t := range s.templates {
		errs = append(errs, s.discard(t.name))
	}
	return errors.Join(errs...)
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

// newName is unlike any other on a server that several test processes may share.
func newName() string { return "limits_test_" + strings.ToLower(rand.Text()) }
