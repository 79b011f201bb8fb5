package outage

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// story is what was logged, also by a timer.
type story struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *story) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// take gives what was logged since the last take.
func (s *story) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.b.Reset()
	return strings.TrimSpace(s.b.String())
}

// TestTried plays a list of outcomes with their times in seconds, and compares what is logged then.
func TestTried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lines story
		l := New(slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})), slog.LevelError, "mail waits", "mail goes on")
		begin := time.Now()
		for _, s := range []struct {
			second int
			err    error
			want   string
		}{
			{0, nil, ""},
			{1, errors.New("refused"), `level=ERROR msg="mail waits" to=a error=refused`},
			{2, errors.New("refused"), ""},
			{3, errors.New("full"), ""}, // too soon
			{10, errors.New("refused"), ""},
			{11, errors.New("full"), `level=ERROR msg="mail waits" to=a error=full`},
			{60, errors.New("full"), ""},
			{61, nil, ""}, // it may fail again
			{62, nil, ""},
			{66, nil, `level=INFO msg="mail goes on"`},
			{68, errors.New("full"), `level=ERROR msg="mail waits" to=a error=full`},
			{69, nil, ""},
			{70, errors.New("refused"), ""}, // in turn with successes: one outage
			{71, nil, ""},
			{72, errors.New("full"), ""},
			{73, nil, ""},
			{77, errors.New("full"), ""},
			{79, nil, ""},
			{85, nil, `level=INFO msg="mail goes on"`},
			{86, errors.New("refused"), `level=ERROR msg="mail waits" to=a error=refused`},
			{87, nil, ""},
			{92, nil, `level=INFO msg="mail goes on"`},
			{93, errors.New("full"), `level=ERROR msg="mail waits" to=a error=full`}, // another outage
			{94, nil, ""},
			{99, nil, `level=INFO msg="mail goes on"`},
			{105, nil, ""}, // nothing had failed
		} {
			lines.take()
			time.Sleep(time.Until(begin.Add(time.Duration(s.second) * time.Second)))
			synctest.Wait() // for what a timer logs
			l.Tried(s.err, "to", "a")
			if said := lines.take(); said != s.want {
				t.Errorf("after %d s: %q, want %q", s.second, said, s.want)
			}
		}
	})
}

// TestEndIsToldOnce of an outage, however the times at which it fails and works lie to the timer, and never of none.
func TestEndIsToldOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lines story
		l := New(slog.New(slog.NewTextHandler(&lines, nil)), slog.LevelError, "mail waits", "mail goes on")
		l.Tried(nil)
		time.Sleep(time.Minute)
		if said := lines.take(); said != "" {
			t.Errorf("nothing has failed, and logged %q", said)
		}
		for _, calm := range []time.Duration{time.Second, 3500 * time.Millisecond, time.Minute} { // a timer looks 5 s after the first success, and 2 s later
			l.Tried(errors.New("refused"))
			time.Sleep(time.Second)
			l.Tried(nil)
			time.Sleep(calm)
		}
		if said := lines.take(); strings.Count(said, "mail waits") != 1 || strings.Count(said, "mail goes on") != 1 {
			t.Errorf("logged %q", said)
		}
	})
}

// TestAlternatingOutcomesDoNotAllocate: what fails and works in turn, perhaps a thousand times a
// second, needs only one timer. Allocations cannot be counted in parallel with other tests.
func TestAlternatingOutcomesDoNotAllocate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines story
		l := New(slog.New(slog.NewTextHandler(&lines, nil)), slog.LevelError, "mail waits", "mail goes on")
		failed := errors.New("refused")
		kept := testing.AllocsPerRun(10000, func() {
			l.Tried(failed)
			l.Tried(nil)
		})
		if kept > 0 {
			t.Errorf("a turn leaves %v allocations behind", kept)
		}
		time.Sleep(calmFor + time.Second)
		synctest.Wait()
		if said := lines.take(); strings.Count(said, "mail waits") != 1 || strings.Count(said, "mail goes on") != 1 {
			t.Errorf("logged %q", said)
		}
	})
}
