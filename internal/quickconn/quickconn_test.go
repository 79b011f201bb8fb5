package quickconn

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"
)

// pair returns two ends of a connection, the first of them wrapped.
func pair(t *testing.T, network string) (wrapped, plain net.Conn) {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "socket")
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialed, err := net.Dial(network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	plain, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	wrapped = Wrap(dialed)
	t.Cleanup(func() {
		_ = wrapped.Close()
		_ = plain.Close()
	})
	return wrapped, plain
}

// TestConnPassesNettest runs the suite for connections of golang.org/x/net, with either end
// wrapped.
func TestConnPassesNettest(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp", "unix"} {
		for _, first := range []bool{true, false} {
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				wrapped, plain := pair(t, network)
				stop = func() {
					_ = wrapped.Close()
					_ = plain.Close()
				}
				if first {
					return wrapped, plain, stop, nil
				}
				return plain, wrapped, stop, nil
			})
		}
	}
}

// TestWritesLargerThanTheSocketBuffer: writers that wait for room continue where they stopped, and
// do not mix their data.
func TestWritesLargerThanTheSocketBuffer(t *testing.T) {
	t.Parallel()
	wrapped, plain := pair(t, "tcp")
	const writers, size = 4, 4 << 20
	pieces := make([][]byte, writers)
	var all sync.WaitGroup
	for i := range pieces {
		pieces[i] = make([]byte, size)
		_, _ = rand.Read(pieces[i])
		pieces[i][0] = byte(i)
		all.Go(func() {
			if n, err := wrapped.Write(pieces[i]); n != size || err != nil {
				t.Errorf("wrote %d of %d: %v", n, size, err)
			}
		})
	}
	got := make([]byte, size)
	for range writers {
		if _, err := io.ReadFull(plain, got); err != nil {
			t.Fatal(err)
		}
		if i := int(got[0]); i >= writers || !bytes.Equal(got, pieces[i]) {
			t.Fatal("a piece came mixed with another")
		}
	}
	all.Wait()
}

// TestErrorsMatchPackageNet: errors have the form that a connection of package net gives them.
func TestErrorsMatchPackageNet(t *testing.T) {
	t.Parallel()
	buf := make([]byte, 8)
	for name, c := range map[string]struct {
		fail func(t *testing.T, wrapped, plain net.Conn) error
		want error
	}{
		"the other end is closed": {func(t *testing.T, wrapped, plain net.Conn) error {
			_ = plain.Close()
			_, err := wrapped.Read(buf)
			return err
		}, io.EOF},
		"this end is closed": {func(t *testing.T, wrapped, plain net.Conn) error {
			_ = wrapped.Close()
			_, err := wrapped.Read(buf)
			return err
		}, net.ErrClosed},
		"nothing comes in time": {func(t *testing.T, wrapped, plain net.Conn) error {
			_ = wrapped.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err := wrapped.Read(buf)
			return err
		}, os.ErrDeadlineExceeded},
		"no room in time": {func(t *testing.T, wrapped, plain net.Conn) error {
			_ = wrapped.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
			_, err := wrapped.Write(make([]byte, 64<<20))
			return err
		}, os.ErrDeadlineExceeded},
		"the other end is reset": {func(t *testing.T, wrapped, plain net.Conn) error {
			_ = plain.(*net.TCPConn).SetLinger(0)
			_ = plain.Close()
			_, err := wrapped.Read(buf)
			return err
		}, syscall.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wrapped, plain := pair(t, "tcp")
			err := c.fail(t, wrapped, plain)
			if !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			if e := (*net.OpError)(nil); c.want != io.EOF && (!errors.As(err, &e) || e.Net != "tcp" || e.Op != "read" && e.Op != "write" ||
				e.Timeout() != (c.want == os.ErrDeadlineExceeded) || e.Source != wrapped.LocalAddr() || e.Addr != wrapped.RemoteAddr() ||
				strings.Count(err.Error(), "tcp") != 1) {
				t.Errorf("%#v is not as package net words it", err)
			}
		})
	}
}

// TestEmptyReadIsNotTheEnd, and does not wait.
func TestEmptyReadIsNotTheEnd(t *testing.T) {
	t.Parallel()
	wrapped, _ := pair(t, "tcp")
	if n, err := wrapped.Read(nil); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// TestConnectionsWithoutSocketAreNotWrapped: a pipe has no socket, so it is not wrapped.
func TestConnectionsWithoutSocketAreNotWrapped(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if Wrap(a) != a {
		t.Error("a pipe was wrapped")
	}
}

// TestReadsHappenAfterWrites: without what package race is told, the detector takes this for a
// race.
func TestReadsHappenAfterWrites(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(wrapped, plain net.Conn) (net.Conn, net.Conn){
		"written": func(wrapped, plain net.Conn) (net.Conn, net.Conn) { return wrapped, plain },
		"read":    func(wrapped, plain net.Conn) (net.Conn, net.Conn) { return plain, wrapped },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from, to := ends(pair(t, "tcp"))
			told := 0
			go func() {
				told = 1
				_, _ = from.Write([]byte("x"))
			}()
			if _, err := to.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			if told != 1 {
				t.Error("it was read before it was written")
			}
		})
	}
}
