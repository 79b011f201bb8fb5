package jobs_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds every wait. It is long, because a slow machine must not fail these tests.
const patience = 60 * time.Second

// notes is a log handler and an observer that records everything.
type notes struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
	// loudest is the highest level of a line.
	loudest slog.Level
	ends    []string
	// told receives every line. Its buffer is large enough for a test that does not read it.
	told chan string
}

func newNotes() *notes {
	return &notes{Handler: slog.DiscardHandler, loudest: slog.LevelDebug, told: make(chan string, 1000)}
}

func (n *notes) Enabled(context.Context, slog.Level) bool { return true }

func (n *notes) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	n.mu.Lock()
	n.lines, n.loudest = append(n.lines, line), max(n.loudest, r.Level)
	n.mu.Unlock()
	n.told <- line
	return nil
}

func (n *notes) JobMissed(job, outcome string) { n.end(job, " ", outcome) }

func (n *notes) JobEnded(job, outcome string, took time.Duration, _ time.Time) {
	n.end(job, " ", outcome, " ", took)
}

func (n *notes) end(words ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ends = append(n.ends, fmt.Sprint(words...))
}

func (n *notes) ended() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.ends)
}

func (n *notes) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.lines)
}

func (n *notes) logged(text string) bool {
	return slices.ContainsFunc(n.all(), func(line string) bool { return strings.Contains(line, text) })
}

// runner starts a runner, which is closed when the test ends.
func runner(t *testing.T, s jobs.Store, n *notes, replica string, list ...jobs.Job) *jobs.Runner {
	t.Helper()
	r, err := jobs.New(jobs.Config{Jobs: list, Store: s, Logger: slog.New(n), Observer: n, Replica: replica})
	if err != nil {
		t.Fatal(err)
	}
	r.Start()
	t.Cleanup(func() { closeRunner(t, r) })
	return r
}

func closeRunner(t *testing.T, r *jobs.Runner) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.Close(ctx); err != nil {
		t.Error(err)
	}
}

// history describes the runs of a job, the first first.
func history(t *testing.T, s jobs.Store, job string) (all []string) {
	t.Helper()
	runs, err := s.Runs(t.Context(), jobs.Filter{Job: job, Max: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range slices.Backward(runs) {
		text := fmt.Sprintf("%s %s %s", time.UnixMilli(r.Scheduled).UTC().Format("15:04:05"), r.Outcome, r.Note)
		if r.Error != "" {
			text += ": " + r.Error
		}
		all = append(all, strings.TrimSpace(text))
	}
	return all
}

func equal(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q\nwant %q", what, got, want)
	}
}
