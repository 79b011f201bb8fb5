package natsconn

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// TestWhatComesWithTheEndIsRead: TLS gives both at a time.
func TestWhatComesWithTheEndIsRead(t *testing.T) {
	t.Parallel()
	const last = "-ERR 'Authorization Violation'\r\n"
	for _, first := range []string{"", "CONNECT {}\r\n", "GET / HTTP/1.1\r\n"} {
		taken := 0
		h := new(Handlers)
		h.Set(map[string]Handler{"taken": func(_ *Conn, all []Message) int { taken += len(all); return len(all) }})
		said := last
		if strings.HasPrefix(first, "CONNECT") {
			said = message("taken", "r ", "x") + last
		}
		c := New(&stream{in: iotest.DataErrReader(strings.NewReader(said))}, h, time.Second)
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
