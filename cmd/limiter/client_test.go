package main

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits/internal/settings"
	"github.com/seed503877ad/limits/internal/testenv"
)

// serveNATS starts a server with one password.
func serveNATS(t *testing.T, port int, password string) *server.Server {
	t.Helper()
	return testenv.NATS(t, func(o *server.Options) { o.Port, o.JetStream, o.Username, o.Password = port, false, "u", password })
}

// TestClientReconnectsAfterAuthorizationErrors: a server that restarts may accept the user again only later.
func TestClientReconnectsAfterAuthorizationErrors(t *testing.T) {
	t.Parallel()
	s := serveNATS(t, server.RANDOM_PORT, "p")
	port := s.Addr().(*net.TCPAddr).Port
	refused, back, closed := make(chan struct{}, 1000), make(chan struct{}, 1), make(chan struct{}, 1)
	f := natsFlags{settings.NATS{NATSURL: "nats://u:p@" + s.Addr().String()}}
	nc, err := f.connect(&session{ctx: t.Context()}, "test", nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrAuthorization) {
				refused <- struct{}{}
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }), nats.ClosedHandler(func(*nats.Conn) { closed <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	wait := func(what string, signal <-chan struct{}) {
		t.Helper()
		select {
		case <-signal:
		case <-closed:
			t.Fatalf("%s: the connection was closed for good: %v", what, nc.LastError())
		case <-time.After(time.Minute):
			t.Fatalf("%s: nothing in a minute", what)
		}
	}
	s.Shutdown()
	s = serveNATS(t, port, "another")
	for range 3 {
		wait("refused", refused)
	}
	s.Shutdown()
	serveNATS(t, port, "p")
	wait("back", back)
}

// TestVerbsTakeAnNkeySeed, and say which file has none.
func TestVerbsTakeAnNkeySeed(t *testing.T) {
	t.Parallel()
	s := testenv.NATSConfig(t, "authorization { users: [{nkey: UBIS2AP52WFSN5HB7TATAQKFTFBO4JSR5HTPGTMCNU27GE2QM4ENBGPA}] }")
	file := filepath.Join(t.TempDir(), "seed")
	for text, want := range map[string]string{"SUAARTO75FCMY73KHRPQUGIJBX3CKJKPOIO3XELZG3VSYC3HEOWQZI4UCQ\n": "", "s3cret": file + ": nkeys: no nkey seed"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f := natsFlags{settings.NATS{NATSURL: s.ClientURL(), NATSCreds: file}}
		nc, err := f.connect(&session{ctx: t.Context()}, "test")
		if err == nil {
			nc.Close()
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("with %q: %v", text, err)
		}
	}
}

// TestVerbsReachAServerThatWantsTLSFirst, if their settings have TLS; else they say what to do.
func TestVerbsReachAServerThatWantsTLSFirst(t *testing.T) {
	t.Parallel()
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	key, err := x509.MarshalPKCS8PrivateKey(web.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, private := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: web.Certificate().Raw}, private: {Type: "PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := testenv.NATSConfig(t, fmt.Sprintf("tls { cert_file: %q, key_file: %q, handshake_first: true, timeout: 1 }", cert, private))
	for _, f := range []natsFlags{{settings.NATS{NATSURL: "nats://" + s.Addr().String()}}, {settings.NATS{NATSURL: "tls://" + s.Addr().String(), NATSTLSCA: cert}}} {
		nc, err := f.connect(&session{ctx: t.Context()}, "test")
		if err == nil {
			nc.Close()
		}
		if (err == nil) != (f.NATSTLSCA != "") || err != nil && !strings.Contains(err.Error(), "if it wants TLS first (handshake_first), write tls://") {
			t.Errorf("%s: %v", f.NATSURL, err)
		}
	}
}
