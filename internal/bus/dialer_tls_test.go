package bus

import (
	"bytes"
	"context"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestTLSFirst: a server that begins with TLS says nothing before, so the second attempt does too. Requests are still taken
// where they are read.
func TestTLSFirst(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t, "localhost")
	tls, certFile, _ := tlsConfig(t, cert, key)
	server := testenv.NATSConfig(t, strings.TrimSuffix(tls, "}")+", handshake_first: true, timeout: 0.1 }")
	u, err := url.Parse(server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	log, logged := new(bytes.Buffer), make(chan struct{}, 100)
	at := "tls://localhost:" + u.Port()
	nc, err := Connect(t.Context(), ConnectConfig{URL: at, TLSCA: certFile, Name: "x",
		Logger: slog.New(slog.NewTextHandler(&signalWriter{log, logged}, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	s, err := NewService(ServiceConfig{Conn: nc, Engine: &fakeEngine{submit: allowing}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	client, err := nats.Connect(at, nats.RootCAs(certFile), nats.TLSHandshakeFirst())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if m := ask(t, client, limits.SubjectConsume, hot); !strings.HasPrefix(string(m.Data), `{"allowed":true`) || s.current.inlineStats[limits.SubjectConsume].requests.Load() != 1 {
		t.Errorf("%s, taken by %d", m.Data, s.current.inlineStats[limits.SubjectConsume].requests.Load())
	}
	if text := log.String(); strings.Count(text, "cannot connect") != 1 || !strings.Contains(text, "the next attempt begins with TLS") {
		t.Error(text)
	}
	before := nc.Stats().Reconnects
	if err := nc.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "there is another connection", func() bool { return nc.Stats().Reconnects > before && nc.IsConnected() })
}

// TestTLSFirstIsNamed: without TLS in its settings, a client does not begin with TLS by itself.
func TestTLSFirstIsNamed(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t, "localhost")
	tls, certFile, _ := tlsConfig(t, cert, key)
	first := testenv.NATSConfig(t, strings.TrimSuffix(tls, "}")+", handshake_first: true, timeout: 0.1 }").Addr().String()
	other, otherKey := certificate(t, "localhost")
	_, otherFile, _ := tlsConfig(t, other, otherKey)
	for want, cfg := range map[string]ConnectConfig{
		"if it wants TLS first (handshake_first), write tls://": {URL: "nats://" + first},
		"tls: failed to verify certificate":                     {URL: "tls://" + first, TLSCA: otherFile},
		"cannot validate certificate for 127.0.0.1":             {URL: "nats://" + first, TLSCA: certFile},
	} {
		cfg.Name = "x"
		log, logged := new(bytes.Buffer), make(chan struct{}, 100)
		cfg.Logger = slog.New(slog.NewTextHandler(&signalWriter{log, logged}, nil))
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-logged
			<-logged
			<-logged
			cancel()
		}()
		nc, err := Connect(ctx, cfg)
		if err == nil {
			nc.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestServerThatIsSlowIsNotTakenForTLSFirst for good.
func TestServerThatIsSlowIsNotTakenForTLSFirst(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t, "localhost")
	tls, certFile, _ := tlsConfig(t, cert, key)
	server := testenv.NATSConfig(t, tls)
	u, err := url.Parse(server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	cfg := ConnectConfig{URL: "tls://localhost:" + u.Port(), TLSCA: certFile, Name: "x", Logger: slog.New(slog.DiscardHandler)}
	d := new(dialer)
	opts, err := cfg.options(d)
	if err != nil {
		t.Fatal(err)
	}
	d.tlsFirst = map[string]bool{"localhost:" + u.Port(): true}
	for attempt, want := range []string{"tls error", ""} {
		nc, err := nats.Connect(cfg.URL, opts...)
		if err == nil {
			nc.Close()
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("attempt %d: %v, want %q", attempt, err, want)
		}
	}
}
