package postgres

import (
	"io"
	"net"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed503877ad/limits/internal/testenv"
)

// TestSessionsBehindAPooler holds that a pooler of sessions lets both pools in, and that their settings stand behind it.
func TestSessionsBehindAPooler(t *testing.T) {
	t.Parallel()
	s := open(t, Config{URL: startPooler(t, testenv.Postgres(t, Migrate))})
	if err := s.Update(t.Context(), batch("a"), set("1")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pool *pgxpool.Pool
		want map[string]string
	}{
		{s.pool, map[string]string{
			"lock_timeout": "1s", "statement_timeout": "1500ms", "idle_in_transaction_session_timeout": "800ms",
			"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan", "application_name": "limiter",
		}},
		{s.relay, map[string]string{"lock_timeout": "1s", "statement_timeout": "10s", "idle_in_transaction_session_timeout": "30s"}},
	} {
		for name, want := range c.want {
			var got string
			if err := c.pool.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&got); err != nil || got != want {
				t.Errorf("%s = %s, %v; want %s", name, got, err, want)
			}
		}
	}
}

// startPooler gives the URL of what stands before the server and refuses the beginning of a session as PgBouncer does: with
// each setting that it does not track itself.
func startPooler(t *testing.T, target string) string {
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
			go pool(client, cfg)
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
