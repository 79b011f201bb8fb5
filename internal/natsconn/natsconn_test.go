package natsconn

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// fakeConn is a connection whose server side is scripted, and that keeps what is written.
type fakeConn struct {
	net.Conn
	in io.Reader

	mu     sync.Mutex
	out    bytes.Buffer
	writes int
	closed bool
	// fail is what writes fail with, after so many good ones; during is called while something is written.
	fail   error
	good   int
	during func()
}

func (s *fakeConn) Read(p []byte) (int, error) { return s.in.Read(p) }

func (s *fakeConn) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if during := s.during; during != nil {
		s.during = nil
		during()
	}
	if s.good--; s.fail != nil && s.good < 0 {
		return 0, s.fail
	}
	s.writes++
	return s.out.Write(p)
}

func (s *fakeConn) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

func (s *fakeConn) SetReadDeadline(time.Time) error { return nil }

func (s *fakeConn) SetWriteDeadline(time.Time) error { return nil }

func (s *fakeConn) written() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// openConn returns a connection on which the client has written its first command.
func openConn(t rapid.TB, s *fakeConn, handlers map[string]Handler) *Conn {
	t.Helper()
	h := new(Handlers)
	h.Set(handlers)
	c := New(s, h, time.Second)
	c.maxLag = time.Hour // handlers may be slow here
	connect(t, c)
	s.out.Reset()
	return c
}

// taking returns handlers of which one takes messages of the subject taken.
func taking(handler Handler) *Handlers {
	h := new(Handlers)
	h.Set(map[string]Handler{"taken": handler})
	return h
}

// counting returns a handler that takes all messages and counts them.
func counting(taken *int) Handler {
	return func(_ *Conn, all []Message) int { *taken += len(all); return len(all) }
}

// echo returns a handler that takes all messages and answers each with its data.
func echo(t *testing.T) Handler {
	return func(c *Conn, all []Message) int {
		for _, m := range all {
			if err := c.Publish(m.Reply, m.Data); err != nil {
				t.Error(err)
			}
		}
		return len(all)
	}
}

// connect has the client write its first command.
func connect(t rapid.TB, c *Conn) {
	t.Helper()
	if _, err := c.Write([]byte("CONNECT {}\r\n")); err != nil {
		t.Fatal(err)
	}
}

// read reads everything, at most so many bytes at a time.
func read(t rapid.TB, c *Conn, most int) string {
	t.Helper()
	var all []byte
	for p := make([]byte, most); ; {
		n, err := c.Read(p)
		if all = append(all, p[:n]...); err == io.EOF {
			return string(all)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// message is a message as the server sends it.
func message(subject, reply, data string) string {
	return fmt.Sprintf("MSG %s 12 %s%d\r\n%s\r\n", subject, reply, len(data), data)
}

// script is what a server sends, and which parts of that go to the client and to handlers.
type script struct {
	said, passed strings.Builder
	taken        []string
}

func (s *script) take(reply, body string) {
	s.said.WriteString(message("taken", reply+" ", body))
	s.taken = append(s.taken, reply+" "+body)
}

func (s *script) pass(text string) {
	s.said.WriteString(text)
	s.passed.WriteString(text)
}

// add appends one random thing to what the server sends.
func (s *script) add(t *rapid.T, body string) {
	switch rapid.IntRange(0, 8).Draw(t, "kind") {
	case 0, 1:
		if m := message("taken", "reply.1 ", body); len(m) > readSize {
			s.pass(m)
		} else {
			s.take("reply.1", body)
		}
	case 2: // left to the client, by its handler
		s.pass(message("left", "reply.2 ", body))
	case 3:
		s.pass(message("other", "reply.3 ", body))
	case 4: // nobody waits for an answer
		s.said.WriteString(message("taken", "", "no answer"))
		s.taken = append(s.taken, " no answer")
	case 5:
		const headers = "NATS/1.0\r\na:MSG taken 1 r 0\r\n\r\n"
		reply := rapid.SampledFrom([]string{"", "reply.4 "}).Draw(t, "reply")
		m := fmt.Sprintf("HMSG taken 12 %s%d %d\r\n%s%s\r\n", reply, len(headers), len(headers)+len(body), headers, body)
		if len(m) > readSize {
			s.pass(m)
		} else {
			s.said.WriteString(m)
			s.taken = append(s.taken, strings.TrimSpace(reply)+" "+body)
		}
	case 6: // taken and left in turn
		for i := range rapid.IntRange(1, 2*MaxBatch).Draw(t, "count") {
			if m := message("others", "reply.5 ", fmt.Sprint(i)); i%2 == 1 {
				s.pass(m)
			} else {
				s.said.WriteString(m)
				s.taken = append(s.taken, fmt.Sprint("reply.5 ", i))
			}
		}
	case 7:
		s.pass(rapid.SampledFrom([]string{"PING\r\n", "PONG\r\n", "+OK\r\n", "-ERR 'Stale Connection'\r\n",
			"INFO {" + strings.Repeat("y", 2*readSize) + "}\r\n", "MSGS\r\n", "INFO MSG taken 12 r 0\r\n"}).Draw(t, "line"))
	case 8: // nats.go, or the server at their answers, would end the connection
		if rapid.Bool().Draw(t, "error") {
			s.pass("PONG\r\n")
			s.said.WriteString("-ERR 'Slow Consumer'\r\n")
			return
		}
		s.said.WriteString(message(rapid.SampledFrom([]string{"taken", "other", "o\rther"}).Draw(t, "subject"),
			rapid.SampledFrom([]string{"re\rply ", strings.Repeat("r", MaxReplySubject+1) + " "}).Draw(t, "reply"), body))
	}
}

// TestEachMessageGoesToItsHandlerOrTheClient: whatever the server sends, and in whatever pieces, a
// message for a handler that takes it goes there. All else goes to the client, in order and
// unchanged.
func TestEachMessageGoesToItsHandlerOrTheClient(t *testing.T) {
	t.Parallel()
	data := rapid.OneOf(rapid.StringN(0, 60, -1), rapid.Just("MSG taken 1 r 3\r\nabc\r\n"), rapid.Just("\r\n"), rapid.Just(strings.Repeat("x", readSize)))
	rapid.Check(t, func(t *rapid.T) {
		var all script
		for range rapid.IntRange(0, 20).Draw(t, "parts") {
			all.add(t, data.Draw(t, "data"))
		}
		var got []string
		s := &fakeConn{in: chunks{strings.NewReader(all.said.String()), rapid.SampledFrom([]int{1, 2, 7, 300, 1 << 20}).Draw(t, "chunk")}}
		c := openConn(t, s, map[string]Handler{
			"taken": func(_ *Conn, all []Message) int {
				for _, m := range all {
					got = append(got, string(m.Reply)+" "+string(m.Data))
					clear(m.Data)
					_ = append(m.Data, "behind it"...)
				}
				return len(all)
			},
			"left":   func(*Conn, []Message) int { return 0 },
			"others": everyOther(func(m Message) { got = append(got, string(m.Reply)+" "+string(m.Data)) }),
		})
		size := rapid.SampledFrom([]int{1, 5, 100, readSize}).Draw(t, "room")
		if rest := read(t, c, size); rest != all.passed.String() {
			t.Fatalf("the client got %.300q of %.300q", rest, all.passed.String())
		}
		if diff := cmp.Diff(all.taken, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// everyOther takes only messages with even numbers.
func everyOther(take func(Message)) Handler {
	return func(_ *Conn, all []Message) int {
		for i, m := range all {
			if n, _ := strconv.Atoi(string(m.Data)); n%2 == 1 {
				return i
			}
			take(m)
		}
		return len(all)
	}
}

// chunks returns at most so many bytes at a time.
type chunks struct {
	io.Reader
	most int
}

func (c chunks) Read(p []byte) (int, error) { return c.Reader.Read(p[:min(len(p), c.most)]) }

// FuzzPassed: if no handler takes anything, the client reads exactly what arrived, whatever that
// is, except for a message that was incomplete when the connection ended.
func FuzzPassed(f *testing.F) {
	for _, s := range []string{"", "MSG", "MSG taken 1 r 5\r\nhello\r\n", "MSG taken 1 r x\r\n", "MSG \r\n", "HMSG taken 1 r 9 99999999999\r\n", "MSG taken 1 r 5\nhello",
		"MSG " + strings.Repeat("a", readSize), "PING\r\nMSG taken 1 r 4\r\nPING\r\n", "HMSG taken 1 r 12 14\r\nNATS/1.0\r\n\r\nab\r\n", "HMSG taken 1 r 12 4\r\n", "msg taken 1 r 1\r\nx\r\n", "MSG taken 1 r 999999999\r\n"} {
		f.Add([]byte(s), 3)
	}
	f.Fuzz(func(t *testing.T, said []byte, most int) {
		if strings.Contains(strings.ReplaceAll(string(said), "\r\n", ""), "\r") || strings.Contains(string(said), "-ERR") {
			return // some of it may be kept from the client
		}
		for line := range strings.Lines(string(said)) {
			if len(line) > MaxReplySubject && strings.Contains(line, "MSG ") && strings.HasSuffix(line, "\n") {
				return // as well
			}
		}
		s := &fakeConn{in: chunks{bytes.NewReader(said), max(1, most)}}
		c := openConn(t, s, map[string]Handler{"taken": func(*Conn, []Message) int { return 0 }})
		got := read(t, c, 50)
		missing, ok := strings.CutPrefix(string(said), got)
		if !ok || missing != "" && !unfinished(missing) {
			t.Errorf("%.200q of %.200q", got, said)
		}
	})
}

// unfinished reports whether s is the beginning of a message for a handler, or of a line that is
// waited for.
func unfinished(s string) bool {
	if (s[0] == '-' || s[0] == 'P') && !strings.Contains(s, "\n") {
		return true
	}
	line, body, whole := strings.Cut(s, "\r\n")
	fields := strings.Split(line, " ")
	if !whole || len(fields) < 5 {
		return strings.HasPrefix("MSG ", s) || strings.HasPrefix("HMSG ", s) || strings.HasPrefix(s, "MSG ") || strings.HasPrefix(s, "HMSG ")
	}
	size, _ := strconv.Atoi(fields[len(fields)-1])
	return strings.HasSuffix(fields[0], "MSG") && fields[1] == "taken" && len(body) < size+2
}

// TestMalformedMessagesGoToTheClient, which reports them, and so does all behind them: it is not known where the next
// message begins.
func TestMalformedMessagesGoToTheClient(t *testing.T) {
	t.Parallel()
	for _, head := range []string{"MSG taken 12 r r 1", "MSG taken 12 r 1/", "MSG taken 12 r 1:", "MSG taken 12 r 0000000001", "MSG taken 12 r ",
		"HMSG taken 12 r 2 1", "HMSG taken 12 r x 1", "HMSG taken 12 r 1"} {
		said := head + "\r\nx\r\n" + message("taken", "r ", "behind it")
		c := openConn(t, &fakeConn{in: strings.NewReader(message("taken", "r ", "a") + said)}, map[string]Handler{
			"taken": func(_ *Conn, all []Message) int {
				if len(all) != 1 || string(all[0].Data) != "a" {
					t.Errorf("%s: %q were taken", head, all)
				}
				return len(all)
			}})
		if rest := read(t, c, readSize); rest != said {
			t.Errorf("%s: the client got %q", head, rest)
		}
	}
}

// TestOtherProtocolsAreNotParsed: a client that does not begin with CONNECT speaks TLS, or to a
// websocket.
func TestOtherProtocolsAreNotParsed(t *testing.T) {
	t.Parallel()
	said := message("taken", "r ", "data")
	s := &fakeConn{in: strings.NewReader(said)}
	c := New(s, taking(func(*Conn, []Message) int { t.Error("it was taken"); return 1 }), time.Second)
	for _, w := range []string{"\x16\x03\x01", "CONNECT {}\r\n"} {
		if _, err := c.Write([]byte(w)); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, c, 8); got != said {
		t.Errorf("%q", got)
	}
}
