package bus

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// names answers every DNS question with these addresses until the test ends. It replaces the
// system's resolver, so tests that use it cannot run in parallel.
func names(t *testing.T, addresses ...string) {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if err := m.Unpack(buf[:n]); err != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				for _, a := range addresses {
					m.Answers = append(m.Answers, dnsmessage.Resource{
						Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60},
						Body:   &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()},
					})
				}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = server.WriteTo(answer, from)
			}
		}
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	resolver(t, server.LocalAddr())
}

// resolver has names looked up at the address until the test ends. A look-up that was abandoned
// goes on in the background, so its dialer must not read the variable that the test restores.
func resolver(t *testing.T, at net.Addr) {
	t.Helper()
	before := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{Resolver: new(net.Resolver)}).DialContext(ctx, "udp", at.String())
	}}
	t.Cleanup(func() { net.DefaultResolver = before })
}

// deadPort returns a port at which this machine does not answer, at any of its addresses: its
// accept queue is full and nobody accepts.
func deadPort(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(at.(*syscall.SockaddrInet4).Port)
	for range 1000 { // some systems keep more waiting than was asked for
		c, err := net.DialTimeout("tcp", "127.0.0.1:"+port, 100*time.Millisecond)
		if err != nil {
			return port
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Fatal("1000 connections were made to a port where nobody accepts; want a system that bounds them")
	return ""
}

// TestAllAddressesOfANameShareOneTimeout: a worker is without NATS for as long as it tries dead
// addresses.
func TestAllAddressesOfANameShareOneTimeout(t *testing.T) {
	names(t, "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
	cfg := ConnectConfig{URL: "nats://many.example:" + deadPort(t), Name: "x", Logger: slog.New(slog.DiscardHandler)}
	opts, err := cfg.options(new(dialer))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	nc, err := nats.Connect(cfg.URL, opts...)
	if err == nil {
		nc.Close()
		t.Fatal("somebody answers where nobody is")
	}
	if took := time.Since(began); took < dialTimeout/2 || took > 2*dialTimeout {
		t.Errorf("it gave up after %s, want about %s: %v", took, dialTimeout, err)
	}
}

// TestDNSLookupCountsTowardsTimeout: the name server does not answer.
func TestDNSLookupCountsTowardsTimeout(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	resolver(t, silent.LocalAddr())
	began := time.Now()
	if c, err := new(dialer).Dial("tcp", "many.example:4222"); err == nil {
		_ = c.Close()
		t.Fatal("a name was found that nobody tells of")
	}
	if took := time.Since(began); took > 2*dialTimeout {
		t.Errorf("it gave up after %s, want about %s", took, dialTimeout)
	}
}

// TestConnectionsSpreadOverTheAddressesOfAName. A connection succeeds as long as one of them
// answers.
func TestConnectionsSpreadOverTheAddressesOfAName(t *testing.T) {
	names(t, "127.0.0.2", "127.0.0.3", "127.0.0.4")
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	seen := map[string]bool{}
	for range 1000 { // some systems keep more waiting than was asked for
		c, err := new(dialer).Dial("tcp", "many.example:"+port)
		if err != nil {
			t.Fatal(err)
		}
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		seen[host] = true
		_ = c.Close()
		if len(seen) == 3 {
			break
		}
	}
	if len(seen) != 3 {
		t.Errorf("of three addresses only %v are used", seen)
	}
	one, err := net.Listen("tcp4", "127.0.0.3:0")
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	_, port, _ = net.SplitHostPort(one.Addr().String())
	for range 20 {
		c, err := new(dialer).Dial("tcp", "many.example:"+port)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
}

// tlsConfig returns the part of a server's configuration for a certificate, and its files. It lacks
// its last brace, so that a test can add to it.
func tlsConfig(t *testing.T, cert []byte, private any) (config, certFile, keyFile string) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("tls { cert_file: %q, key_file: %q }", certFile, keyFile), certFile, keyFile
}

// TestCertificateMustMatchConfiguredName, not the address that was found for it. The test's
// certificate is valid for both.
func TestCertificateMustMatchConfiguredName(t *testing.T) {
	names(t, "127.0.0.1")
	web := httptest.NewTLSServer(nil) // its certificate is for example.com and 127.0.0.1
	defer web.Close()
	tls, certFile, _ := tlsConfig(t, web.Certificate().Raw, web.TLS.Certificates[0].PrivateKey)
	server := testenv.NATSConfig(t, tls+"\nwebsocket { listen: \"127.0.0.1:-1\", "+tls+" }")
	for scheme, at := range map[string]string{"tls": server.ClientURL(), "wss": server.WebsocketURL()} {
		u, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		for host, want := range map[string]bool{"example.com": true, "other.example": false} {
			cfg := ConnectConfig{URL: scheme + "://" + host + ":" + u.Port(), TLSCA: certFile, Name: "x", Logger: slog.New(slog.DiscardHandler)}
			opts, err := cfg.options(new(dialer))
			if err != nil {
				t.Fatal(err)
			}
			nc, err := nats.Connect(cfg.URL, opts...)
			if (err == nil) != want {
				t.Errorf("connect to %s: %v", cfg.URL, err)
			}
			if err != nil {
				continue
			}
			s, err := NewService(ServiceConfig{Conn: nc, Engine: &fakeEngine{submit: allowing}, Logger: cfg.Logger})
			if err != nil {
				t.Fatal(err)
			}
			if m := ask(t, nc, limits.SubjectConsume, hot); !strings.HasPrefix(string(m.Data), `{"allowed":true`) {
				t.Errorf("%s: %s", scheme, m.Data)
			}
			// A websocket cannot be read, so what is asked there comes to nats.go.
			if taken := s.current.inlineStats[limits.SubjectConsume].requests.Load(); (taken == 1) != (scheme == "tls") {
				t.Errorf("%s: %d requests were taken where they are read", scheme, taken)
			}
			nc.Close()
		}
	}
}

// TestClusterPeersMustMatchConfiguredName: a server announces the others by address, and nats.go
// does not tell which name that address belongs to.
func TestClusterPeersMustMatchConfiguredName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		urls  string
		dials []string // and made TLS to
		want  string
	}{
		{"tls://a.example:4222", []string{"a.example:4222"}, "a.example"},
		{"tls://a.example:4222", []string{"a.example:4222", "10.0.0.2:4222"}, "a.example"},
		{"tls://u:p@a.example,tls://b.example/", []string{"a.example:4222", "b.example:4222", "10.0.0.2:4222"}, "b.example"},
		{"a.example, 10.0.0.1:4333", []string{"a.example:4222", "10.0.0.1:4333"}, "10.0.0.1"},
		{"tls://[::1]:4222,a.example", []string{"a.example:4222", "[::1]:4222"}, "::1"},
		{"tls://10.0.0.1", []string{"10.0.0.1:4222", "10.0.0.2:4222"}, "10.0.0.2"},
	} {
		d := &dialer{listedHosts: urlHosts(c.urls)}
		for _, at := range c.dials {
			d.host, _, _ = net.SplitHostPort(at)
			d.noteTLSHost()
		}
		if got := d.serverName(); got != c.want {
			t.Errorf("of %s, behind %v: %s, want %s", c.urls, c.dials, got, c.want)
		}
	}
}

// certificate returns a self-signed certificate for a name, and its key.
func certificate(t *testing.T, name string) (cert []byte, key *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	if cert, err = x509.CreateCertificate(rand.Reader, template, template, key.Public(), key); err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// TestReconnectToAnnouncedAddress: the certificate there is valid only for the name.
func TestReconnectToAnnouncedAddress(t *testing.T) {
	names(t, "127.0.0.1")
	cert, key := certificate(t, "one.example")
	tls, certFile, _ := tlsConfig(t, cert, key)
	cluster := "\ncluster { name: c, listen: \"127.0.0.1:-1\", routes: [%s] }"
	server := testenv.NATSConfig(t, tls+fmt.Sprintf(cluster, ""))
	testenv.NATSConfig(t, tls+fmt.Sprintf(cluster, fmt.Sprintf("%q", "nats-route://"+server.ClusterAddr().String())))
	u, err := url.Parse(server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := Connect(t.Context(), ConnectConfig{
		URL: "tls://one.example:" + u.Port(), TLSCA: certFile, Name: "x", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	waitFor(t, "the server tells of another", func() bool { return len(nc.DiscoveredServers()) > 0 })
	for tries := 0; !strings.Contains(nc.ConnectedUrl(), "127.0.0.1"); tries++ {
		if tries == 10 {
			t.Fatalf("connected to %s, of %v", nc.ConnectedUrl(), nc.Servers())
		}
		before := nc.Stats().Reconnects
		if err := nc.ForceReconnect(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "there is another connection", func() bool { return nc.Stats().Reconnects > before && nc.IsConnected() })
	}
}

// TestClientCertificateIsSent. Without one the error says what is wrong.
func TestClientCertificateIsSent(t *testing.T) {
	names(t, "127.0.0.1")
	cert, key := certificate(t, "one.example")
	tls, certFile, keyFile := tlsConfig(t, cert, key)
	server := testenv.NATSConfig(t, strings.TrimSuffix(tls, "}")+fmt.Sprintf(", ca_file: %q, verify: true }", certFile))
	u, err := url.Parse(server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	other, otherKey := certificate(t, "one.example")
	_, otherFile, _ := tlsConfig(t, other, otherKey)
	for name, c := range map[string]struct {
		cfg  ConnectConfig
		want string // of the error; empty for none
	}{
		"with one":                 {ConnectConfig{TLSCA: certFile, TLSCert: certFile, TLSKey: keyFile}, ""},
		"without":                  {ConnectConfig{TLSCA: certFile}, "certificate required"},
		"of another authority":     {ConnectConfig{TLSCA: otherFile, TLSCert: certFile, TLSKey: keyFile}, "tls error: tls: failed to verify certificate"},
		"a file that is no key":    {ConnectConfig{TLSCA: certFile, TLSCert: certFile, TLSKey: certFile}, "error loading client certificate"},
		"a file that is missing":   {ConnectConfig{TLSCA: certFile, TLSCert: certFile, TLSKey: keyFile + ".gone"}, "no such file"},
		"a file that says nothing": {ConnectConfig{TLSCA: os.DevNull}, "failed to parse root certificate"},
	} {
		c.cfg.URL, c.cfg.Name, c.cfg.Logger = "nats://one.example:"+u.Port(), "x", slog.New(slog.DiscardHandler)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		nc, err := Connect(ctx, c.cfg)
		cancel()
		if err == nil {
			nc.Close()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestServerThatSendsPlainTextBeforeTLSIsRefused: anybody on the way could insert plain text after
// INFO, and nats.go would take it for something that came over TLS.
func TestServerThatSendsPlainTextBeforeTLSIsRefused(t *testing.T) {
	t.Parallel()
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	_, certFile, _ := tlsConfig(t, web.Certificate().Raw, web.TLS.Certificates[0].PrivateKey)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, `INFO {"server_id":"x","version":"2.11.0","proto":1,"max_payload":1048576,"tls_required":true}`+"\r\nPONG\r\nMSG a 1 1\r\nx\r\n")
			go func() {
				defer c.Close()
				_, _ = io.Copy(io.Discard, tls.Server(c, &tls.Config{Certificates: web.TLS.Certificates}))
			}()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	nc, err := Connect(ctx, ConnectConfig{URL: "tls://" + l.Addr().String(), TLSCA: certFile, Name: "x", Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		nc.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "tls error: received plain text") {
		t.Errorf("%v", err)
	}
}
