package natsconn

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/quickconn"
)

// overTCP returns the two ends of a TCP connection.
func overTCP(t *testing.T) (here, there net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if here, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = here.Close() })
	if there, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = there.Close() })
	return here, there
}

// secured returns a connection that has started TLS after the server's first line, and the server's
// end.
func secured(t *testing.T, h *Handlers) (c *Conn, there *tls.Conn) {
	t.Helper()
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	here, plain := overTCP(t)
	c = New(quickconn.Wrap(here), h, time.Minute)
	there = tls.Server(plain, &tls.Config{Certificates: certified.TLS.Certificates})
	t.Cleanup(func() { _ = c.Close() })
	if c.ServerSpoke() {
		t.Error("it has heard something before anything was said")
	}
	const info = "INFO {}\r\n"
	if _, err := io.WriteString(plain, info); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, len(info))); err != nil || !c.ServerSpoke() {
		t.Fatal(err, c.ServerSpoke())
	}
	shaken := make(chan error, 1)
	go func() { shaken <- there.Handshake() }()
	roots := x509.NewCertPool()
	roots.AddCert(certified.Certificate())
	if err := errors.Join(c.StartTLS(&tls.Config{RootCAs: roots, ServerName: "example.com"}), <-shaken); err != nil {
		t.Fatal(err)
	}
	return c, there
}

// TestMessagesAreTakenOverTLS: messages are parsed above TLS, and reading does not wait for answers
// to be written.
func TestMessagesAreTakenOverTLS(t *testing.T) {
	t.Parallel()
	const count, size = 200, 20_000
	taken := make(chan struct{}, count)
	c, there := secured(t, taking(func(c *Conn, all []Message) int {
		for _, m := range all {
			if err := c.Publish(m.Reply, []byte(strings.Repeat("a", size))); err != nil {
				t.Error(err)
			}
			taken <- struct{}{}
		}
		return len(all)
	}))
	go func() {
		if _, err := c.Write([]byte("CONNECT {}\r\n")); err != nil {
			t.Error(err)
		}
	}()
	server := bufio.NewReader(there)
	if line, err := server.ReadString('\n'); line != "CONNECT {}\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	passed := make(chan string, 1)
	go func() {
		p := make([]byte, 100)
		n, _ := c.Read(p)
		passed <- string(p[:n])
	}()
	for i := range 20 { // more than fits anywhere may wait, so no more than that
		if _, err := io.WriteString(there, message("taken", fmt.Sprintf("r.%d ", i), "x")); err != nil {
			t.Fatal(err)
		}
		<-taken
	}
	for i := range 20 {
		line, err := server.ReadString('\n')
		if want := fmt.Sprintf("PUB r.%d %d\r\n", i, size); err != nil || line != want {
			t.Fatalf("%q, %v, want %q", line, err, want)
		}
		if _, err := server.Discard(size + 2); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(there, "PING\r\n"); err != nil {
		t.Fatal(err)
	}
	if got := <-passed; got != "PING\r\n" {
		t.Errorf("the client got %q", got)
	}
}

// TestPlainTextBeforeTLSIsRefused: anybody on the way may have inserted it.
func TestPlainTextBeforeTLSIsRefused(t *testing.T) {
	t.Parallel()
	s := &fakeConn{in: strings.NewReader("INFO {}\r\nPONG\r\n" + message("taken", "r ", "x"))}
	c := New(s, new(Handlers), time.Second)
	p := make([]byte, readSize)
	if n, err := c.Read(p); err != nil || string(p[:n]) != "INFO {}\r\n" {
		t.Fatalf("the client got %q, %v", p[:n], err)
	}
	if err := c.StartTLS(new(tls.Config)); !errors.Is(err, errEarly) || s.written() != "" {
		t.Errorf("%v; %q was sent", err, s.written())
	}
}

// TestReadingBeforeTheClientWrites returns a line at a time, in pieces if there is less room.
// Handlers get messages only after the client has written.
func TestReadingBeforeTheClientWrites(t *testing.T) {
	t.Parallel()
	for _, chunk := range []int{1, 5, readSize} {
		taken := 0
		c := New(&fakeConn{in: chunks{strings.NewReader("INFO {}\r\n-ERR\r\nPONG\r\n" + message("taken", "r ", "x")), chunk}}, taking(counting(&taken)), time.Second)
		said := ""
		for said != "INFO {}\r\n-ERR\r\n" {
			p := make([]byte, 7)
			n, err := c.Read(p)
			if said += string(p[:n]); err != nil || n == 0 || strings.Contains(strings.TrimSuffix(said, "\n"), "\nP") {
				t.Fatalf("%d at a time: %q, %v", chunk, said, err)
			}
		}
		connect(t, c)
		if rest := read(t, c, 7); rest != "PONG\r\n" || taken != 1 {
			t.Errorf("%d at a time: %q, and %d taken", chunk, rest, taken)
		}
	}
}

// TestAHandshakeThatFailsSendsNothing: what the client would send next is a secret.
func TestAHandshakeThatFailsSendsNothing(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe()
	c := New(here, new(Handlers), time.Second)
	said := make(chan []byte, 1)
	go func() {
		all, _ := io.ReadAll(there)
		said <- all
	}()
	go func() { _, _ = io.WriteString(there, "HTTP/1.1 400 Bad Request\r\n\r\n") }()
	err := c.StartTLS(&tls.Config{ServerName: "example.com", MinVersion: tls.VersionTLS12})
	if err == nil {
		t.Fatal("there was no TLS")
	}
	c.Fail(err)
	if _, err := c.Write([]byte("CONNECT {\"pass\":\"secret\"}\r\n")); err == nil {
		t.Error("it was written")
	}
	if all := <-said; strings.Contains(string(all), "secret") {
		t.Errorf("%q", all)
	}
}

// TestAHandshakeThatHangsIsGivenUp: nats.go holds its lock meanwhile.
func TestAHandshakeThatHangsIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		go func() { _, _ = io.Copy(io.Discard, there) }() // it listens, and says nothing
		begin := time.Now()
		err := New(here, new(Handlers), time.Second).StartTLS(&tls.Config{ServerName: "example.com"})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
	})
}

// TestHandlersCanLagOverTLS: TLS returns at most one record at a time, so the size of a read does
// not tell whether more is waiting.
func TestHandlersCanLagOverTLS(t *testing.T) {
	t.Parallel()
	taken := make(chan struct{}, 1)
	c, there := secured(t, taking(func(_ *Conn, all []Message) int {
		time.Sleep(time.Millisecond)
		select {
		case taken <- struct{}{}:
		default:
		}
		return len(all)
	}))
	go func() { _, _ = io.Copy(io.Discard, there) }()
	connect(t, c)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		some := []byte(strings.Repeat(message("taken", "r ", "x"), 1000))
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := there.Write(some); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	begin, p := time.Now(), make([]byte, readSize)
	if n, err := c.Read(p); err != nil || !strings.HasPrefix(string(p[:n]), "HMSG taken") || time.Since(begin) < maxLag {
		t.Errorf("%.50q, %v after %s", p[:n], err, time.Since(begin))
	}
	<-taken // as long as it was not too much
	close(stop)
	go func() {
		for {
			if _, err := c.Read(p); err != nil {
				return
			}
		}
	}()
	<-stopped
	for caughtUp := false; !caughtUp; {
		if _, err := io.WriteString(there, message("taken", "r ", "x")); err != nil {
			t.Fatal(err)
		}
		select {
		case <-taken:
			caughtUp = true
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// securedPipe returns a connection that has made TLS over a pipe, the server's end, and what the
// handshake is to the server. It is for tests with synctest.
func securedPipe(t *testing.T, certified *httptest.Server, asked tls.ClientAuthType) (c *Conn, there *tls.Conn, shaken chan error) {
	t.Helper()
	here, plain := net.Pipe()
	// A session ticket would wait for the client to read.
	there = tls.Server(plain, &tls.Config{Certificates: certified.TLS.Certificates, ClientAuth: asked, SessionTicketsDisabled: true})
	shaken = make(chan error, 1)
	go func() { shaken <- there.Handshake() }()
	c = New(here, new(Handlers), time.Second)
	roots := x509.NewCertPool()
	roots.AddCert(certified.Certificate())
	if err := c.StartTLS(&tls.Config{RootCAs: roots, ServerName: "example.com"}); err != nil {
		t.Fatal(err)
	}
	return c, there, shaken
}

// TestRefusalBehindTheHandshakeIsTold: the client's handshake is over before the server has seen
// that it has no certificate. The failure of the first write alone would not tell.
func TestRefusalBehindTheHandshakeIsTold(t *testing.T) {
	t.Parallel()
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	synctest.Test(t, func(t *testing.T) {
		c, _, shaken := securedPipe(t, certified, tls.RequireAnyClientCert)
		_, err := c.Write([]byte("CONNECT {}\r\n"))
		if err == nil || !strings.Contains(err.Error(), "certificate required") {
			t.Errorf("%v does not tell what the server wants", err)
		}
		if err := <-shaken; err == nil {
			t.Error("the server has refused nothing")
		}
	})
}

// TestWaitForARefusalIsBounded: the server may say nothing, and a client that reads already gets the
// refusal itself.
func TestWaitForARefusalIsBounded(t *testing.T) {
	t.Parallel()
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	for reads, want := range map[bool]time.Duration{false: time.Second + refusalTimeout, true: time.Second} {
		synctest.Test(t, func(t *testing.T) {
			c, there, shaken := securedPipe(t, certified, tls.NoClientCert)
			if err := <-shaken; err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			if close(ended); reads {
				go func() { _, _ = there.Read(make([]byte, 100)) }()
				connect(t, c)
				ended = make(chan struct{})
				go func() { defer close(ended); _, _ = c.Read(make([]byte, 100)) }()
				synctest.Wait() // the client reads
			}
			began := time.Now()
			_, err := c.Write([]byte("CONNECT {}\r\n"))
			if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took != want {
				t.Errorf("the client reads: %t: %v after %s, want %s", reads, err, took, want)
			}
			<-ended
		})
	}
}
