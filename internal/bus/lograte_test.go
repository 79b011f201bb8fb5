package bus

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

// TestRepeatedLogLinesAreCounted: each text is logged at once, and then at intervals with a count.
func TestRepeatedLogLinesAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lines logThrottles
		expect := func(text string, want int64) {
			t.Helper()
			if got := lines.due(text); got != want {
				t.Errorf("%s: %d, want %d", text, got, want)
			}
		}
		expect("a", 1)
		for range 5 {
			expect("a", 0)
		}
		expect("b", 1)
		time.Sleep(logInterval)
		expect("a", 6)
		expect("a", 0)
		for i := range 3 * maxThrottledTexts {
			expect(fmt.Sprint("other ", i), 1)
		}
		if len(lines.byText) > maxThrottledTexts {
			t.Errorf("%d texts are remembered", len(lines.byText))
		}
	})
}

// TestClientsDoNotFillTheServersLog with what they are refused: a line for each kind every 10 s, whoever it was. Other errors
// have lines of their own.
func TestClientsDoNotFillTheServersLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := &serverLog{log: slog.New(slog.NewTextHandler(&out, nil))}
		violate := func(times int) {
			for i := range times {
				l.Errorf(fmt.Sprintf("127.0.0.1:%d - cid:%d - %%q - Publish Violation - Subject %%q", i, i), "a client", "x")
			}
		}
		violate(1000)
		l.Errorf("disk full")
		for n := range 1000 { // formats that say nothing
			l.Errorf("%s", fmt.Sprintf(`refused "client %d"`, n))
			l.Errorf("127.0.0.1:1 - cid:%d - %v", n, errors.New("read error"))
		}
		l.Errorf("%s", "no space left on device")
		l.Errorf("%s - %s", "RAFT", errors.New("cannot write its state"))
		time.Sleep(logInterval)
		violate(1)
		text := out.String()
		if strings.Count(text, "Publish Violation") != 2 || !strings.Contains(text, "times=1000\n") || !strings.Contains(text, "disk full") ||
			!strings.Contains(text, "no space left") || !strings.Contains(text, "cannot write its state") || strings.Count(text, "\n") != 7 || l.last() == "" {
			t.Error(text)
		}
	})
}

// TestHeldBackLinesAreLogged when the interval ends, without a further one; there is a timer only meanwhile.
func TestHeldBackLinesAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out []string // guarded by l.mu
		l := heldLog{write: func(err error, n int64) { out = append(out, fmt.Sprint(err, " ", n)) }}
		began := time.Now()
		expect := func(when time.Duration, want ...string) {
			t.Helper()
			time.Sleep(when - time.Since(began))
			synctest.Wait()
			l.mu.Lock()
			defer l.mu.Unlock()
			if !slices.Equal(out, want) {
				t.Errorf("after %s: %q, want %q", when, out, want)
			}
			if waits := l.timer != nil; waits != (l.held > 0) {
				t.Errorf("after %s: %d are held, and it is %t that a timer waits", when, l.held, waits)
			}
			out = nil
		}
		l.add(errors.New("a"))
		expect(time.Second, "a 1")
		for range 50 {
			l.add(errors.New("b"))
		}
		l.add(errors.New("c"))
		expect(logInterval - 1)
		expect(logInterval, "b 51")
		expect(3*logInterval - 1)
		l.add(errors.New("d"))
		l.add(errors.New("e"))
		expect(3*logInterval, "d 1")
		l.flush() // a clean stop
		expect(3*logInterval, "e 1")
		expect(9 * logInterval)
	})
}

// TestErrorsThatOthersCauseFillNoLog: a connection says each kind once in 10 s, where it came from, and how often it was.
func TestErrorsThatOthersCauseFillNoLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, d := new(logBuffer), new(dialer)
		c := ConnectConfig{Name: "service", Logger: slog.New(slog.NewTextHandler(log, nil))}
		var o nats.Options
		for _, option := range c.behaviour(d) {
			if err := option(&o); err != nil {
				t.Fatal(err)
			}
		}
		sub := &nats.Subscription{Subject: "limits.check"}
		flood := func() {
			for range 3 {
				d.handlers.Dropped()
				d.handlers.Refused("Maximum Payload Violation")
				o.AsyncErrorCB(nil, sub, nats.ErrSlowConsumer)
				o.AsyncErrorCB(nil, sub, nats.ErrBadHeaderMsg)
			}
		}
		flood()
		time.Sleep(logInterval)
		flood()
		of := func(err error) string { return "subject=limits.check error=" + strconv.Quote(err.Error()) }
		for _, want := range []string{"a reply subject that is too long", "Maximum Payload Violation",
			of(nats.ErrSlowConsumer), of(nats.ErrBadHeaderMsg)} {
			var counts []string
			for line := range strings.Lines(log.String()) {
				if strings.Contains(line, want) {
					counts = append(counts, strings.TrimSpace(line[strings.LastIndex(line, "=")+1:]))
				}
			}
			if !slices.Equal(counts, []string{"1", "3"}) {
				t.Errorf("%s: the lines are of %q, want of 1 and then of 3:\n%s", want, counts, log)
			}
		}
	})
}
