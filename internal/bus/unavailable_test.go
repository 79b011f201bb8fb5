package bus

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
)

// TestAStoreThatFailsReadsIsLoggedOnce, and not for each of thousands of requests.
func TestAStoreThatFailsReadsIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	e := &fakeEngine{submit: allowing, err: fmt.Errorf("read the counters: %w: connection refused", engine.ErrUnavailable)}
	s, nc := serve(t, e, func(c *ServiceConfig) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	for range 5 {
		ask(t, nc, limits.SubjectStatus, `{"key":"a"}`)
		ask(t, nc, limits.SubjectList, `{}`)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{limits.SubjectStatus, limits.SubjectList} {
		if n := strings.Count(log.String(), "endpoint="+subject+" "); n != 1 {
			t.Errorf("%d lines of %s\n%s", n, subject, &log)
		}
	}
}
