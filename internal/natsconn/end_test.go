package natsconn

import (
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// TestDataThatComesWithAnErrorIsRead: TLS returns both at the same time.
func TestDataThatComesWithAnErrorIsRead(t *testing.T) {
	t.Parallel()
	const last = "-ERR 'Authorization Violation'\r\n"
	for _, first := range []string{"", "CONNECT {}\r\n", "GET / HTTP/1.1\r\n"} {
		taken := 0
		said := last
		if strings.HasPrefix(first, "CONNECT") {
			said = message("taken", "r ", "x") + last
		}
		c := New(&fakeConn{in: iotest.DataErrReader(strings.NewReader(said))}, taking(counting(&taken)), time.Second)
		if _, err := c.Write([]byte(first)); err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 100)
		if n, err := c.Read(p); err != nil || string(p[:n]) != last || len(said) > len(last) && taken != 1 {
			t.Errorf("behind %q: %q, %v, and %d taken", first, p[:n], err, taken)
		}
		if n, err := c.Read(p); n != 0 || err != io.EOF {
			t.Errorf("behind %q: %q and %v at the end", first, p[:n], err)
		}
	}
}

// TestFatalErrorsAreKeptFromTheClient, in whatever pieces they arrive: nats.go closes a connection
// for good at an error that it does not know. It gets the errors that it knows, and all of them
// while it connects.
func TestFatalErrorsAreKeptFromTheClient(t *testing.T) {
	t.Parallel()
	const (
		connecting = "-ERR 'Authentication Timeout'\r\n"
		known      = "-ERR 'Permissions Violation for Publish to \"x\"'\r\n"
		payload    = "-ERR 'Maximum Payload Violation'\r\n"
		line       = "-ERR 'maximum control line exceeded'\r\n"
	)
	for most := 1; most < 40; most++ {
		var told []string
		h := &Handlers{Refused: func(text string) { told = append(told, text) }}
		said := connecting + "PONG\r\n" + known + payload + message("other", "", "-ERR 'x'\r\n") + line + "PING\r\n"
		c := New(&fakeConn{in: chunks{strings.NewReader(said), most}}, h, time.Second)
		connect(t, c)
		got, want := read(t, c, 1+most), connecting+"PONG\r\n"+known+message("other", "", "-ERR 'x'\r\n")+"PING\r\n"
		if got != want {
			t.Errorf("%d at a time: %q, want %q", most, got, want)
		}
		if want := []string{"Maximum Payload Violation", "maximum control line exceeded"}; !slices.Equal(told, want) {
			t.Errorf("%d at a time: told of %q, want %q", most, told, want)
		}
	}
}

// TestUp: a connection is up from when the client clears its connect deadline until something fails
// or the client closes it.
func TestUp(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, end := range map[string]func(s *fakeConn, c *Conn){
		"close": func(_ *fakeConn, c *Conn) { _ = c.Close() },
		"fail":  func(_ *fakeConn, c *Conn) { c.Fail(broken) },
		"read":  func(_ *fakeConn, c *Conn) { _, _ = c.Read(make([]byte, 1)) },
		"write": func(s *fakeConn, c *Conn) { s.fail = broken; _, _ = c.Write([]byte("PING\r\n")) },
	} {
		s := &fakeConn{in: strings.NewReader("")}
		c := New(s, new(Handlers), time.Second)
		for _, deadline := range []time.Time{time.Now().Add(time.Hour), {}} {
			if c.Up() {
				t.Errorf("%s: it is up before the client has connected", name)
			}
			_ = c.SetDeadline(deadline)
		}
		if !c.Up() {
			t.Errorf("%s: it is not up", name)
		}
		end(s, c)
		if _ = c.SetDeadline(time.Time{}); c.Up() {
			t.Errorf("%s: it is up behind that", name)
		}
	}
}

// TestTheFirstErrorIsKept: it says why the connection ended. Those that follow from it do not.
func TestTheFirstErrorIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		c, first := New(here, new(Handlers), time.Minute), errors.New("first")
		written := make(chan error, 1)
		go func() {
			_, err := c.Write([]byte("CONNECT {}\r\n"))
			written <- err
		}()
		synctest.Wait() // it is being written
		c.Fail(first)
		if err := <-written; !errors.Is(err, first) {
			t.Errorf("the write that was cut off says %v", err)
		}
		for name, end := range map[string]func(){"failed": func() { c.Fail(errors.New("second")) }, "closed": func() { _ = c.Close() }} {
			end()
			if err := c.Publish([]byte("r"), nil); !errors.Is(err, first) {
				t.Errorf("%s again, it says %v", name, err)
			}
		}
	})
}

// TestCloseEndsAllWrites: the one that goes on, and those that wait for it.
func TestCloseEndsAllWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		c, ended := New(here, new(Handlers), time.Minute), make(chan error, 2)
		for range cap(ended) {
			go func() {
				_, err := c.Write([]byte("CONNECT {}\r\n"))
				ended <- err
			}()
			synctest.Wait()
		}
		began := time.Now()
		_ = c.Close()
		for range cap(ended) {
			if err := <-ended; err == nil || time.Since(began) > 0 {
				t.Errorf("a write ended %s later: %v", time.Since(began), err)
			}
		}
	})
}
