package natsconn

import (
	"errors"
	"fmt"
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
			if n, err := c.Read(p); err != nil || !strings.HasPrefix(string(p[:n]), "HMSG taken 12 r ") && i == 0 {
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
			"always": counting(&always),
		}, "always")
		for p := make([]byte, readSize); always < taken+100; {
			if n, err := c.Read(p); err != nil || strings.Contains(string(p[:n]), "always") {
				t.Fatalf("%.300q, %v, and %d were taken of what is to be always", p[:n], err, always)
			}
		}
	})
}

// TestWhatGoesToTheClientForALaggingHandlerSaysWhenItArrived: in the client it may wait for long.
func TestWhatGoesToTheClientForALaggingHandlerSaysWhenItArrived(t *testing.T) {
	t.Parallel()
	const own = "NATS/1.0\r\nLimits-Received: 1\r\na:b\r\n\r\n"
	said := message("slow", "r ", "x") + message("slow", "r ", "late") + message("never", "r ", "") +
		fmt.Sprintf("HMSG never 12 r.2 %d %d\r\n%syy\r\n", len(own), len(own)+2, own)
	unchanged := message("other", "r ", "x") + message("never", "", "x") + message("never", "r ", strings.Repeat("x", readSize))
	for _, chunk := range []int{1, 7, readSize} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Hour)
			begin := time.Now()
			h := new(Handlers)
			c := New(&fakeConn{in: chunks{strings.NewReader(said + unchanged), readSize}}, h, time.Second)
			h.Set(map[string]Handler{"never": nil, "slow": func(*Conn, []Message) int { time.Sleep(2 * maxLag); return 1 }})
			connect(t, c)
			c.batchLimit = 1
			time.Sleep(time.Minute) // Set knows since when times are told
			rest := read(t, c, chunk)
			stamped, ok := strings.CutSuffix(rest, unchanged)
			const header = "NATS/1.0\r\nLimits-Received: 60000000000\r\n\r\n"
			want := ""
			for _, m := range [][3]string{{"slow", "r", "late"}, {"never", "r", ""}, {"never", "r.2", "yy"}} {
				want += fmt.Sprintf("HMSG %s 12 %s %d %d\r\n%s%s\r\n", m[0], m[1], len(header), len(header)+len(m[2]), header, m[2])
			}
			if !ok || stamped != want {
				t.Errorf("%d at a time: %.600q, want %q", chunk, rest, want)
			}
			for value, want := range map[string]time.Time{
				"60000000000": begin.Add(time.Minute), "-1": begin.Add(-1), "x": time.Now(), "999999999999999": time.Now(), "": time.Now(),
			} {
				if got := h.ReceivedAt(map[string][]string{"Limits-Received": {value}}); !got.Equal(want) {
					t.Errorf("%q is %s, want %s", value, got, want)
				}
			}
			if got := h.ReceivedAt(map[string][]string{"a": {"b"}}); !got.IsZero() {
				t.Errorf("a message that is passed unchanged arrived at %s", got)
			}
		})
	}
}
