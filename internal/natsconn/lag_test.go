package natsconn

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// flood sends one message again and again, always more than is read, until it calms down. Then it
// sends one at a time, and ends.
type flood struct {
	message string
	at      int
	calm    bool
	rest    int
}

func (f *flood) Read(p []byte) (n int, err error) {
	if f.calm {
		if f.rest--; f.rest < 0 {
			return 0, io.EOF
		}
		p = p[:min(len(p), 2*len(f.message)-f.at)]
	}
	for n < len(p) {
		k := copy(p[n:], f.message[f.at:])
		n, f.at = n+k, (f.at+k)%len(f.message)
	}
	return n, nil
}

// TestMessagesGoToTheClientWhileHandlersLag: the client has room for them, and drops what is too
// much. If they waited in the server it would end the connection. Once the handlers have caught up
// they are called again.
func TestMessagesGoToTheClientWhileHandlersLag(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flood{message: message("taken", "r ", strings.Repeat("x", 100))}
		taken := 0
		c := openConn(t, &fakeConn{in: f}, map[string]Handler{"taken": func(_ *Conn, all []Message) int {
			time.Sleep(time.Millisecond)
			taken += len(all)
			return len(all)
		}})
		c.maxLag = maxLag
		p, begin := make([]byte, readSize), time.Now()
		for i := range 100 {
			if n, err := c.Read(p); err != nil || !strings.Contains(f.message+f.message, string(p[:min(n, len(f.message))])) {
				t.Fatalf("%.50q, %v", p[:n], err)
			}
			if i == 0 && taken == 0 {
				t.Error("nothing was taken while it was not clear that it is too much")
			}
		}
		lasted, before := time.Since(begin), taken
		if lasted <= maxLag || lasted > 2*maxLag {
			t.Errorf("handlers were behind for %s", lasted)
		}
		f.calm, f.rest = true, 3
		for err := error(nil); err == nil; {
			if _, err = c.Read(p); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		if taken == before {
			t.Error("they are not called again")
		}
	})
}

// TestSomeHandlersAreCalledWhileOthersLag: their answers must not depend on how much arrives.
func TestSomeHandlersAreCalledWhileOthersLag(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flood{message: message("taken", "r ", strings.Repeat("x", 100)) + message("always", "r ", "")}
		taken, always := 0, 0
		c := openConn(t, &fakeConn{in: f}, nil)
		c.maxLag = maxLag
		c.handlers.Set(map[string]Handler{
			"taken":  func(_ *Conn, all []Message) int { time.Sleep(time.Millisecond); taken += len(all); return len(all) },
			"always": func(_ *Conn, all []Message) int { always += len(all); return len(all) },
		}, "always")
		for p := make([]byte, readSize); always < taken+100; {
			if n, err := c.Read(p); err != nil || strings.Contains(string(p[:n]), "always") {
				t.Fatalf("%.300q, %v, and %d were taken of what is to be always", p[:n], err, always)
			}
		}
	})
}
