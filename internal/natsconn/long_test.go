package natsconn

import (
	"io"
	"slices"
	"strings"
	"testing"
)

// TestAnEndlessLineIsNotBuffered: all of it goes to the client, which has no bound for it.
func TestAnEndlessLineIsNotBuffered(t *testing.T) {
	t.Parallel()
	for _, begin := range []string{"MSG taken 1 ", "-ERR ", "PONG ", "INFO "} {
		said := message("taken", "r ", "a") + begin + strings.Repeat("r", 3*maxLine)
		taken := 0
		c := openConn(t, &fakeConn{in: strings.NewReader(said)}, map[string]Handler{"taken": counting(&taken)})
		rest := read(t, c, readSize)
		if !strings.HasSuffix(said, rest) || len(rest) < 3*maxLine || taken != 1 {
			t.Errorf("%s: %d taken, and %d bytes passed", begin, taken, len(rest))
		}
		if len(c.in) > 2*maxLine {
			t.Errorf("%s: %d bytes are kept", begin, len(c.in))
		}
	}
}

// TestLongLines: if the server allows long lines, a message with a long subject goes to the client
// unchanged whatever it contains, one with a long reply subject is dropped, and the message after
// it reaches its handler.
func TestLongLines(t *testing.T) {
	t.Parallel()
	data := "x\r\n" + message("taken", "r ", "no message")
	for _, chunk := range []int{300, readSize, 1 << 20} {
		for _, long := range []int{readSize - 50, readSize - 20, readSize, 3 * readSize} {
			got := ""
			var said []io.Reader // one behind the other
			m, dropped := message(strings.Repeat("s", long), "r ", data), message("taken", strings.Repeat("r", long)+" ", data)
			for range 3 {
				said = append(said, strings.NewReader(message("taken", "r ", "a")+m+dropped+message("taken", "r ", "b")))
			}
			c := openConn(t, &fakeConn{in: chunks{io.MultiReader(said...), chunk}}, map[string]Handler{"taken": func(_ *Conn, all []Message) int {
				for _, m := range all {
					got += string(m.Data)
				}
				return len(all)
			}})
			if rest := read(t, c, readSize); rest != strings.Repeat(m, 3) || got != "ababab" {
				t.Errorf("a head of %d bytes, %d at a time: %q were taken, and %d of %d bytes passed", long, chunk, got, len(rest), 3*len(m))
			}
		}
	}
}

// TestMessagesWithALongReplySubjectAreDropped: the server ends the connection at an answer whose
// subject is too long. So neither a handler nor anybody above nats.go gets to see the message.
func TestMessagesWithALongReplySubjectAreDropped(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("r", MaxReplySubject)
	for _, chunk := range []int{7, readSize} {
		var taken []string
		c := openConn(t, &fakeConn{in: chunks{strings.NewReader(message("taken", "r ", "a") + message("taken", longest+"r ", "b") +
			message("taken", longest+" ", "c") + message("other", longest+"r ", strings.Repeat("x", 2*readSize)) + message("other", longest+" ", "d")), chunk}},
			map[string]Handler{"taken": func(_ *Conn, all []Message) int {
				for _, m := range all {
					taken = append(taken, string(m.Data))
				}
				return len(all)
			}})
		dropped := 0
		c.handlers.Dropped = func() { dropped++ }
		if rest := read(t, c, readSize); rest != message("other", longest+" ", "d") || !slices.Equal(taken, []string{"a", "c"}) || dropped != 2 {
			t.Errorf("%d at a time: %q taken, %d dropped, and the client got %.2000q", chunk, taken, dropped, rest)
		}
	}
}
