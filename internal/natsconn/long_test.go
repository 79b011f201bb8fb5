package natsconn

import (
	"io"
	"slices"
	"strings"
	"testing"
)

// TestALineWithoutAnEndIsNotKept: all of it goes to the client, which has no bound for it.
func TestALineWithoutAnEndIsNotKept(t *testing.T) {
	t.Parallel()
	said := message("taken", "r ", "a") + "MSG taken 1 " + strings.Repeat("r", 3*maxLine)
	taken := 0
	c := opened(t, &stream{in: strings.NewReader(said)}, map[string]Handler{"taken": func(_ *Conn, all []Message) int {
		taken += len(all)
		return len(all)
	}})
	rest := read(t, c, func() int { return readSize })
	if !strings.HasSuffix(said, rest) || len(rest) < 3*maxLine || taken != 1 {
		t.Errorf("%d taken, and %d bytes passed", taken, len(rest))
	}
	if len(c.in) > 2*maxLine {
		t.Errorf("%d bytes are kept", len(c.in))
	}
}

// TestALineMayBeLong, where the server lets it: a message with a long subject goes to the client as it came, whatever is in it, one with a
// long subject for its answer to nobody, and what comes behind them to its handler.
func TestALineMayBeLong(t *testing.T) {
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
			c := opened(t, &stream{in: chunks{io.MultiReader(said...), chunk}}, map[string]Handler{"taken": func(_ *Conn, all []Message) int {
				for _, m := range all {
					got += string(m.Data)
				}
				return len(all)
			}})
			if rest := read(t, c, func() int { return readSize }); rest != strings.Repeat(m, 3) || got != "ababab" {
				t.Errorf("a head of %d bytes, %d at a time: %q were taken, and %d of %d bytes passed", long, chunk, got, len(rest), 3*len(m))
			}
		}
	}
}

// TestWhatCannotBeAnsweredIsDropped: the server ends the connection at an answer whose subject is too long for it. Whoever would give that
// answer, a handler or somebody above nats.go, gets nothing to answer.
func TestWhatCannotBeAnsweredIsDropped(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("r", MaxReplySubject)
	for _, chunk := range []int{7, readSize} {
		var taken []string
		c := opened(t, &stream{in: chunks{strings.NewReader(message("taken", "r ", "a") + message("taken", longest+"r ", "b") +
			message("taken", longest+" ", "c") + message("other", longest+"r ", strings.Repeat("x", 2*readSize)) + message("other", longest+" ", "d")), chunk}},
			map[string]Handler{"taken": func(_ *Conn, all []Message) int {
				for _, m := range all {
					taken = append(taken, string(m.Data))
				}
				return len(all)
			}})
		dropped := 0
		c.handlers.Dropped = func() { dropped++ }
		if rest := read(t, c, func() int { return readSize }); rest != message("other", longest+" ", "d") || !slices.Equal(taken, []string{"a", "c"}) || dropped != 2 {
			t.Errorf("%d at a time: %q taken, %d dropped, and the client got %.2000q", chunk, taken, dropped, rest)
		}
	}
}
