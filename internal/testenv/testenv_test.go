package testenv_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// connect opens a connection that ends before the test's cleanup.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func exec1(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func count(t *testing.T, conn *pgx.Conn) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM things").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPostgresDatabasesAreSeparateAndHaveTheSchema(t *testing.T) {
	for range 2 {
		conn := connect(t, testenv.Postgres(t))
		exec1(t, conn, "CREATE TABLE things AS SELECT FROM counters")
		if got := count(t, conn); got != 0 {
			t.Errorf("it has %d counters", got)
		}
	}
}

func TestConnectionsAreClosedAfterTheTest(t *testing.T) {
	t.Parallel()
	var conn *pgx.Conn
	t.Run("inner", func(t *testing.T) {
		var err error
		if conn, err = pgx.Connect(t.Context(), testenv.EmptyPostgres(t)); err != nil { // left open: a test may forget
			t.Fatal(err)
		}
	})
	defer conn.Close(t.Context())
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("the connection still answers")
	}
}

func TestNothingIsLeftOnAGivenServer(t *testing.T) {
	t.Parallel()
	lent := testenv.PostgresServer(t)
	tests := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run", "^(TestPostgresDatabases.*|TestNobodyStays.*)$")
	tests.Env = append(os.Environ(), "TEST_DATABASE_URL="+lent.URL)
	out, err := tests.CombinedOutput()
	if err != nil || bytes.Count(out, []byte("--- PASS: TestPostgresDatabases")) == 0 {
		t.Fatalf("tests on a server that was lent: %v\n%s", err, out)
	}
	var left []string
	err = connect(t, lent.URL).QueryRow(t.Context(), "SELECT array_agg(datname::text) FROM pg_database WHERE datname ~ 'test'").Scan(&left)
	if err != nil || len(left) > 0 {
		t.Errorf("databases %v, %v, want none", left, err)
	}
}

func TestPostgresServerKeepsCommitsThroughKill(t *testing.T) {
	pg := testenv.PostgresServer(t)
	before := connect(t, pg.URL)
	exec1(t, before, "CREATE TABLE things (id int)")
	for range 2 {
		conn := connect(t, pg.URL)
		exec1(t, conn, "INSERT INTO things VALUES (1)")
		pg.Kill()
		if err := conn.Ping(t.Context()); err == nil {
			t.Fatal("the server answers after Kill")
		}
		pg.Start()
	}
	if got := count(t, connect(t, pg.URL)); got != 2 {
		t.Errorf("%d rows after two kills, want 2", got)
	}
	pg.Kill() // and cleanup copes with a server that is not there
}

func publish(t *testing.T, url string) (messages uint64) {
	t.Helper()
	nc := testenv.Connect(t, url)
	js := testenv.JetStream(t, nc)
	stream, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Msgs
}

func TestNATSHasJetStream(t *testing.T) {
	a, b := testenv.NATS(t), testenv.NATS(t)
	if got := publish(t, a.ClientURL()); got != 1 {
		t.Errorf("%d messages, want 1", got)
	}
	if got := publish(t, b.ClientURL()); got != 1 {
		t.Errorf("%d messages on the other server, want 1", got)
	}
}

func TestNATSServerKeepsStreamThroughKill(t *testing.T) {
	s := testenv.NATSServer(t)
	if got := publish(t, s.URL); got != 1 {
		t.Errorf("%d messages, want 1", got)
	}
	s.Kill()
	if nc, err := nats.Connect(s.URL); err == nil {
		nc.Close()
		t.Fatal("the server answers after Kill")
	}
	s.Start()
	if got := publish(t, s.URL); got != 2 {
		t.Errorf("%d messages after a kill, want 2", got)
	}
}

// A killed process runs no cleanup, so its servers must notice its end.
func TestServersDieWithAKilledTestProcess(t *testing.T) {
	const holding = "LIMITS_TESTENV_HOLD"
	if os.Getenv(holding) != "" {
		fmt.Println("URL", testenv.PostgresServer(t).URL)
		<-t.Context().Done() // never: it is killed here
	}
	if runtime.GOOS != "linux" {
		t.Log("holds on Linux only")
		return
	}
	self := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	self.Env = append(os.Environ(), holding+"=1")
	out, err := self.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := self.Start(); err != nil {
		t.Fatal(err)
	}
	var url string
	for lines := bufio.NewScanner(out); url == "" && lines.Scan(); {
		url, _ = strings.CutPrefix(lines.Text(), "URL ")
		if !strings.HasPrefix(url, "postgres://") {
			url = ""
		}
	}
	conn := connect(t, url)
	var data string
	if err := conn.QueryRow(t.Context(), "SHOW data_directory").Scan(&data); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(filepath.Dir(data)) // a later process would sweep it
	if err := self.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = self.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := conn.Exec(ctx, "SELECT pg_sleep(60)"); err == nil || ctx.Err() != nil {
		t.Errorf("the server outlived the process: %v", err)
	}
}
