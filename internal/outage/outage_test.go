package outage

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestTried tells a story: at what second a try went how, and what the log says then.
func TestTried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lines bytes.Buffer
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
			{61, nil, `level=INFO msg="mail goes on"`},
			{62, nil, ""},
			{63, errors.New("full"), `level=ERROR msg="mail waits" to=a error=full`},
			{64, nil, `level=INFO msg="mail goes on"`},
			{65, errors.New("refused"), `level=ERROR msg="mail waits" to=a error=refused`},
		} {
			time.Sleep(time.Until(begin.Add(time.Duration(s.second) * time.Second)))
			lines.Reset()
			if l.Tried(s.err, "to", "a"); strings.TrimSpace(lines.String()) != s.want {
				t.Errorf("after %d s: %q, want %q", s.second, lines.String(), s.want)
			}
		}
	})
}
