package natsconn

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/quickconn"
)

// TestAnswersAreWrittenAfterTheLastMessage, in one write, and before what the client writes next.
func TestAnswersAreWrittenAfterTheLastMessage(t *testing.T) {
	t.Parallel()
	s := &fakeConn{in: strings.NewReader(message("taken", "r.1 ", "a") + message("taken", "r.2 ", "bc") + "PING\r\n" + message("taken", "r.3 ", ""))}
	c := openConn(t, s, map[string]Handler{"taken": func(c *Conn, all []Message) int {
		for _, m := range all {
			if err := c.Publish(m.Reply, append(bytes.Clone(m.Data), '!')); err != nil {
				t.Error(err)
			}
		}
		return len(all)
	}})
	p := make([]byte, 100)
	if n, err := c.Read(p); err != nil || string(p[:n]) != "PING\r\n" {
		t.Fatalf("%q, %v", p[:n], err)
	}
	if want := "PUB r.1 2\r\na!\r\nPUB r.2 3\r\nbc!\r\nPUB r.3 1\r\n!\r\n"; s.written() != want || s.writes != 2 {
		t.Fatalf("%q in %d writes", s.written(), s.writes-1)
	}
}

// TestAnswersOfOtherGoroutinesAreWrittenTogether: a goroutine that answers many requests causes few
// writes, before what the client writes, or without it.
func TestAnswersOfOtherGoroutinesAreWrittenTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(fakeConn)
		c := openConn(t, s, nil)
		for name, send := range map[string]func() error{
			"published": func() error { return c.Publish([]byte("r"), []byte("x")) },
			"offered":   func() error { return c.PublishNoWait("r", []byte("x")) },
		} {
			for _, behind := range []string{"", "PONG\r\n"} {
				s.out.Reset()
				for range 2 {
					if err := send(); err != nil {
						t.Fatal(err)
					}
				}
				if behind != "" {
					if _, err := c.Write([]byte(behind)); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				if want := strings.Repeat("PUB r 1\r\nx\r\n", 2) + behind; s.written() != want {
					t.Errorf("%s before %q: %q", name, behind, s.written())
				}
			}
		}
	})
}

// TestTheWriteQueueIsBounded. While handlers run more may be queued, since they must not wait.
func TestTheWriteQueueIsBounded(t *testing.T) {
	t.Parallel()
	for scanning, most := range map[bool]int{false: flushSize, true: maxQueued} {
		s := &fakeConn{in: iotest.ErrReader(io.EOF)}
		c := openConn(t, s, nil)
		c.dispatching = scanning
		for range 3 * most / 1000 {
			if err := c.Publish([]byte("r"), make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
			c.mu.Lock()
			waits := len(c.out)
			c.mu.Unlock()
			if waits > most {
				t.Fatalf("%d bytes wait, scanning: %v", waits, scanning)
			}
		}
		if n := strings.Count(s.written(), "PUB"); n < 2*most/1100 {
			t.Errorf("%d answers were written, scanning: %v", n, scanning)
		}
	}
}

// TestAWriterDoesNotWriteForOthers: the client holds its locks while it writes.
func TestAWriterDoesNotWriteForOthers(t *testing.T) {
	t.Parallel()
	s := new(fakeConn)
	c := openConn(t, s, nil)
	s.fail = errors.New("the second write fails")
	s.good = 1
	c.mu.Lock()
	c.dispatching = true
	c.mu.Unlock()
	s.during = func() { // somebody else answers
		if err := c.Publish([]byte("r"), nil); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		t.Errorf("what was written has failed: %v", err)
	}
}

// TestAConnectionThatCannotBeWrittenToIsClosed, because its stream may end in the middle of an
// answer. Later publishes return the error.
func TestAConnectionThatCannotBeWrittenToIsClosed(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	s := &fakeConn{in: strings.NewReader(message("taken", "r ", "a"))}
	c := openConn(t, s, map[string]Handler{"taken": func(c *Conn, all []Message) int {
		_ = c.Publish(all[0].Reply, nil)
		return 1
	}})
	s.fail = broken
	if n, err := c.Read(make([]byte, 100)); n != 0 || err != nil && !errors.Is(err, broken) && err != io.EOF {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := c.Read(make([]byte, 100)); !errors.Is(err, broken) || !s.closed {
		t.Errorf("%v, closed: %v", err, s.closed)
	}
	if err := c.Publish([]byte("r"), nil); !errors.Is(err, broken) {
		t.Error(err)
	}
	if _, err := c.Write([]byte("PING\r\n")); !errors.Is(err, broken) {
		t.Error(err)
	}
	c = openConn(t, new(fakeConn), nil)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Publish([]byte("r"), nil); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// TestReadingGoesOnWhileTheServerDoesNotRead: the server may stop reading until what it has written
// is read.
func TestReadingGoesOnWhileTheServerDoesNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		var taken atomic.Int64
		c := New(here, taking(func(c *Conn, all []Message) int {
			taken.Add(int64(len(all)))
			return echo(t)(c, all)
		}), time.Second)
		go func() { _, _ = c.Write([]byte("CONNECT {}\r\n")) }()
		if _, err := io.ReadFull(there, make([]byte, len("CONNECT {}\r\n"))); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = c.Read(make([]byte, 100)) }()
		const count = 20
		for i := range count {
			if _, err := there.Write([]byte(message("taken", fmt.Sprintf("r.%d ", i), "x"))); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := taken.Load(); n != count {
			t.Errorf("%d of %d were taken", n, count)
		}
		answers := bufio.NewReader(there)
		for i := range count {
			line, _ := answers.ReadString('\n')
			if _, err := answers.ReadString('\n'); err != nil || line != fmt.Sprintf("PUB r.%d 1\r\n", i) {
				t.Fatalf("answer %d is %q, %v", i, line, err)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestAnswerPublishedDuringAWriteIsWritten, though nothing is read, published or written afterwards: both while the reading
// goroutine writes, and once another one does so instead.
func TestAnswerPublishedDuringAWriteIsWritten(t *testing.T) {
	t.Parallel()
	for _, later := range []time.Duration{0, 2 * briefWrite} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			defer here.Close()
			c := New(here, taking(echo(t)), time.Second)
			go func() { _, _ = c.Write([]byte("CONNECT {}\r\n")) }()
			said := bufio.NewReader(there)
			if _, err := said.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the client has written
			go func() { _, _ = c.Read(make([]byte, 100)) }()
			if _, err := io.WriteString(there, message("taken", "r.1 ", "")); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the answer is being written
			time.Sleep(later)
			if err := c.Publish([]byte("r.2"), nil); err != nil {
				t.Fatal(err)
			}
			_ = there.SetReadDeadline(time.Now().Add(time.Second))
			const want = "PUB r.1 0\r\n\r\nPUB r.2 0\r\n\r\n"
			got := make([]byte, len(want))
			if _, err := io.ReadFull(said, got); err != nil || string(got) != want {
				t.Errorf("published %s later: %q, %v", later, got, err)
			}
		})
	}
}

// TestAnIdleConnectionOutlivesTheWriteTimeout: the deadline of one write must not end a later one.
func TestAnIdleConnectionOutlivesTheWriteTimeout(t *testing.T) {
	t.Parallel()
	here, there := overTCP(t)
	const timeout = 200 * time.Millisecond // a busy machine takes some of it for a write
	c := New(quickconn.Wrap(here), taking(echo(t)), timeout)
	defer c.Close()
	server := bufio.NewReader(there)
	connect(t, c)
	if _, err := server.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = c.Read(make([]byte, 10)) }()
	for range 3 {
		time.Sleep(2 * timeout)
		if _, err := there.Write([]byte(message("taken", "r ", ""))); err != nil {
			t.Fatal(err)
		}
		if line, err := server.ReadString('\n'); err != nil || line != "PUB r 0\r\n" {
			t.Fatalf("%q, %v", line, err)
		}
		if _, err := server.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAServerThatDoesNotReadIsGivenUp within the timeout, whatever deadlines the client sets and
// clears meanwhile.
func TestAServerThatDoesNotReadIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		c := New(here, new(Handlers), time.Second)
		begin := time.Now()
		time.AfterFunc(time.Second/2, func() { _ = c.SetWriteDeadline(time.Time{}) })
		if _, err := c.Write([]byte("CONNECT {}\r\n")); err == nil || time.Since(begin) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a read says %v, not why nothing can be read", err)
		}
	})
}
