package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed503877ad/limits/internal/testenv"
)

// TestSessionPoolerIsAccepted: a pooler of sessions accepts both pools, and their settings are in
// effect.
func TestSessionPoolerIsAccepted(t *testing.T) {
	t.Parallel()
	s := open(t, Config{URL: serveBefore(t, testenv.Postgres(t), pool), decisionIdle: decisionIdle})
	if err := s.CheckSessions(t.Context()); err != nil {
		t.Fatal(err)
	}
	update(t, s, batch("a"), set("1"))
	for _, c := range []struct {
		pool *pgxpool.Pool
		want map[string]string
	}{
		{s.pool, map[string]string{
			"lock_timeout": "1s", "statement_timeout": "1500ms", "idle_in_transaction_session_timeout": "800ms",
			"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan", "application_name": "limiter",
		}},
		{s.relay.Pool, map[string]string{"lock_timeout": "1s", "statement_timeout": "10s", "idle_in_transaction_session_timeout": "30s"}},
	} {
		for name, want := range c.want {
			var got string
			if err := c.pool.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&got); err != nil || got != want {
				t.Errorf("%s = %s, %v; want %s", name, got, err, want)
			}
		}
	}
}

// TestTransactionPoolerIsRejected: nothing starts with one in between.
func TestTransactionPoolerIsRejected(t *testing.T) {
	t.Parallel()
	p := &transactions{}
	url := serveBefore(t, testenv.Postgres(t), p.pool)
	t.Cleanup(p.close)
	check := func(act string, err error) {
		if !errors.Is(err, ErrPooled) || !strings.Contains(err.Error(), "check sessions of 127.0.0.1:") {
			t.Errorf("%s: %v", act, err)
		}
	}
	check("check", open(t, Config{URL: url}).CheckSessions(t.Context()))
	_, err := MigrateUp(t.Context(), url)
	check("migrate up", err)
	_, err = MigrateDown(t.Context(), url)
	check("migrate down", err)
	_, err = MigrationStatus(t.Context(), url)
	check("migrate status", err)
}

// TestPoolerWithoutFreeSession: such a pooler accepts connections and does not answer. The error
// says what may be missing.
func TestPoolerWithoutFreeSession(t *testing.T) {
	t.Parallel()
	p := &transactions{}
	url := serveBefore(t, testenv.Postgres(t), p.pool) + "&connect_timeout=1"
	t.Cleanup(p.close)
	p.busy.Lock()
	defer p.busy.Unlock()
	// On a busy machine the second may last longer, or part of it be over when the session is asked for.
	said := regexp.MustCompile(`no answer within [0-9.]+m?s: the server hangs, or a connection pooler has no session left`)
	check := func(act string, err error) {
		if err == nil || !said.MatchString(err.Error()) {
			t.Errorf("%s: %v", act, err)
		}
	}
	check("check", open(t, Config{URL: url}).CheckSessions(t.Context()))
	_, err := MigrateUp(t.Context(), url)
	check("migrate up", err)
}

// TestReusedPoolerSession: prepared statements that another client left in a session do not
// conflict with ours.
func TestReusedPoolerSession(t *testing.T) {
	t.Parallel()
	cfg, err := parse(testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	configureSession(cfg, "limiter", time.Second, time.Second, time.Second)
	conn, err := pgx.ConnectConfig(t.Context(), cfg.ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	for range 2 {
		if err := cfg.ConnConfig.ValidateConnect(t.Context(), conn.PgConn()); err != nil {
			t.Fatal(err)
		}
		if err := prepare(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
	}
}

// serveBefore serves clients in front of a server, each in a goroutine, and returns the URL for them.
func serveBefore(t *testing.T, target string, serve func(client net.Conn, cfg *pgx.ConnConfig)) string {
	t.Helper()
	cfg, err := pgx.ParseConfig(target)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go serve(client, cfg)
		}
	}()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Del("host")
	u.Host, u.RawQuery = l.Addr().String(), q.Encode()
	return u.String()
}

// pool pools sessions. Like PgBouncer it refuses startup parameters that it does not track itself.
func pool(client net.Conn, cfg *pgx.ConnConfig) {
	defer client.Close()
	b := pgproto3.NewBackend(client, client)
	first, err := b.ReceiveStartupMessage()
	begin, is := first.(*pgproto3.StartupMessage)
	if err != nil || !is {
		return
	}
	for name := range begin.Parameters {
		switch name {
		case "user", "database", "application_name", "client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings":
		default:
			b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: " + name})
			_ = b.Flush()
			return
		}
	}
	network, address := pgconn.NetworkAddress(cfg.Host, cfg.Port)
	server, err := net.Dial(network, address)
	if err != nil {
		return
	}
	message, err := begin.Encode(nil)
	if err != nil {
		return
	}
	if _, err := server.Write(message); err != nil {
		return
	}
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, client)
	}()
	_, _ = io.Copy(client, server)
}

// transactions pools transactions over one session: it accepts every client, and each simple query
// has the session to itself.
type transactions struct {
	busy   sync.Mutex
	server *pgconn.HijackedConn
}

func (p *transactions) close() {
	p.busy.Lock()
	defer p.busy.Unlock()
	if p.server != nil {
		_ = p.server.Conn.Close()
	}
}

func (p *transactions) pool(client net.Conn, cfg *pgx.ConnConfig) {
	defer client.Close()
	b := pgproto3.NewBackend(client, client)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for b.Flush() == nil {
		message, err := b.Receive()
		query, is := message.(*pgproto3.Query)
		if err != nil || !is || p.answer(b, query, cfg) != nil {
			return
		}
	}
}

func (p *transactions) answer(b *pgproto3.Backend, query *pgproto3.Query, cfg *pgx.ConnConfig) error {
	p.busy.Lock()
	defer p.busy.Unlock()
	if p.server == nil {
		conn, err := pgconn.ConnectConfig(context.Background(), &cfg.Config)
		if err != nil {
			return err
		}
		if p.server, err = conn.Hijack(); err != nil {
			return err
		}
	}
	p.server.Frontend.Send(query)
	if err := p.server.Frontend.Flush(); err != nil {
		return err
	}
	for {
		message, err := p.server.Frontend.Receive()
		if err != nil {
			return err
		}
		b.Send(message)
		if _, last := message.(*pgproto3.ReadyForQuery); last {
			return nil
		}
		// A received message is valid until the next one.
		if err := b.Flush(); err != nil {
			return err
		}
	}
}
