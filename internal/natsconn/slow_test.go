package natsconn

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlowServerIsNotGivenUp: the timeout is for writes that make no progress.
func TestSlowServerIsNotGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer here.Close()
		c := New(here, new(Handlers), time.Second)
		const pieces = 5
		go func() {
			for range pieces {
				time.Sleep(time.Second * 9 / 10)
				if _, err := io.ReadFull(there, make([]byte, chunkSize)); err != nil {
					t.Error(err)
				}
			}
		}()
		if n, err := c.Write(make([]byte, pieces*chunkSize)); n != pieces*chunkSize || err != nil {
			t.Errorf("%d bytes were written: %v", n, err)
		}
	})
}

// TestPublishNoWaitDoesNotWait, even if the server does not read: the message is queued after what
// is being written, as long as there is room.
func TestPublishNoWaitDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		c := New(here, new(Handlers), time.Second)
		go func() { _, _ = c.Write([]byte("CONNECT {}\r\n")) }()
		synctest.Wait() // it is being written
		begin := time.Now()
		if err := c.PublishNoWait("a", make([]byte, 2*flushSize)); err != nil {
			t.Error(err)
		}
		for range maxQueued / flushSize {
			_ = c.PublishNoWait("b", make([]byte, flushSize))
		}
		if err := c.PublishNoWait("c", nil); !errors.Is(err, errFull) || !time.Now().Equal(begin) {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
		said := bufio.NewReader(there)
		for _, want := range []string{"CONNECT {}\r\n", fmt.Sprintf("PUB a %d\r\n", 2*flushSize)} {
			if line, err := said.ReadString('\n'); line != want {
				t.Errorf("%.50q, %v, want %q", line, err, want)
			}
		}
		go func() { _, _ = io.Copy(io.Discard, said) }()
		synctest.Wait() // a write that Close ended would fail with the pipe's own error
		_ = c.Close()
		if err := c.PublishNoWait("d", nil); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

// TestPublishNoWaitFailsOverAWebsocket: only the client can write its frames.
func TestPublishNoWaitFailsOverAWebsocket(t *testing.T) {
	t.Parallel()
	s := new(fakeConn)
	c := New(s, new(Handlers), time.Second)
	if _, err := c.Write([]byte("GET / HTTP/1.1\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := c.PublishNoWait("a", nil); !errors.Is(err, errors.ErrUnsupported) || s.written() != "GET / HTTP/1.1\r\n" {
		t.Errorf("%v; %q", err, s.written())
	}
}

// TestLargeWriteIsBoundedAsAWhole, though the server goes on reading: nats.go holds its lock while
// it writes.
func TestLargeWriteIsBoundedAsAWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		c := New(here, new(Handlers), time.Second)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for err := error(nil); err == nil; {
				time.Sleep(time.Second * 9 / 10)
				_, err = io.ReadFull(there, make([]byte, chunkSize))
			}
		}()
		began := time.Now()
		_, err := c.Write(make([]byte, 20*chunkSize))
		if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took != maxChunkTimeouts*time.Second {
			t.Errorf("%v after %s", err, took)
		}
		<-ended
	})
}
