package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// TestQuotaCheckContinues after a run whose time was over, and begins anew after it has read all.
func TestQuotaCheckContinues(t *testing.T) {
	t.Parallel()
	s := eachstore.SQLite(t, nil)
	writeCounters(t, s, 2*batchSize+3)
	q := &quotaCheck{store: s, log: slog.New(slog.DiscardHandler), maxTime: -time.Second}
	for i, want := range []string{
		"checked 500 counters, 0 past their window; the next run continues",
		"checked 500 counters, 0 past their window; the next run continues",
		"checked 3 counters, 0 past their window",
		"checked 500 counters, 0 past their window; the next run continues",
	} {
		if note, err := q.run(t.Context()); note != want || err != nil {
			t.Errorf("run %d: %q, %v; want %q", i, note, err, want)
		}
	}
	q.after, q.maxTime = engine.CounterID{}, time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q.store = &endsAfterRead{store: s, end: cancel}
	if note, err := q.run(ctx); !errors.Is(err, context.Canceled) || note != "checked 500 counters, 0 past their window" {
		t.Errorf("stopped: %q, %v", note, err)
	}
}

// endsAfterRead is a store that is read once before the process is told to stop.
type endsAfterRead struct {
	store
	end context.CancelFunc
}

func (s *endsAfterRead) List(ctx context.Context, prefix string, after engine.CounterID, max int) ([]engine.StoredCounter, int64, error) {
	defer s.end()
	return s.store.List(ctx, prefix, after, max)
}

// TestOnlyFirstStaleQuotasAreLogged, of all pages of a run. All are counted, and the error names the first.
func TestOnlyFirstStaleQuotasAreLogged(t *testing.T) {
	t.Parallel()
	var f findings
	log := newWatcher()
	for page := range 3 {
		var p engine.QuotaPage
		for i := range 9 {
			p.Stale = append(p.Stale, engine.Stale{CounterID: engine.CounterID{Key: fmt.Sprintf("k%d", 9*page+i), Name: "day"}, Err: errors.New("3 used")})
		}
		f.add(&p, slog.New(log))
	}
	if n := strings.Count(log.String(), "does not read as zero"); n != maxStaleLogged {
		t.Errorf("%d lines, want %d", n, maxStaleLogged)
	}
	const want = "quotas that do not read as zero after their reset: 27; the first is day of k0: 3 used"
	if err := f.error(); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
