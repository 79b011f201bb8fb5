package bus

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/usage"
)

// TestFailingReadsAreLoggedOnce, and not for each of thousands of requests.
func TestFailingReadsAreLoggedOnce(t *testing.T) {
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

// TestRecoveredReadsAreLogged, so that a later failure is logged anew.
func TestRecoveredReadsAreLogged(t *testing.T) {
	t.Parallel()
	said := make(chan string, 16)
	e := &fakeEngine{submit: allowing, err: fmt.Errorf("read the counters: %w", engine.ErrUnavailable)}
	_, nc := serve(t, e, func(c *ServiceConfig) { c.Logger = slog.New(slog.NewTextHandler(lineWriter(said), nil)) })
	ask(t, nc, limits.SubjectStatus, `{"key":"a"}`)
	e.err = nil
	ask(t, nc, limits.SubjectStatus, `{"key":"a"}`)
	for _, want := range []string{"requests to the store are failing", "the store answers limits.status again"} {
		select {
		case got := <-said:
			if !strings.Contains(got, want) {
				t.Errorf("the log says %s; want %s", got, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("the log does not say %s", want)
		}
	}
}

// lineWriter sends each line that is written to a channel.
type lineWriter chan<- string

func (w lineWriter) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}

// hangingStore records how long each request may take, and fails as a store does that never
// answers.
type hangingStore struct {
	*fakeEngine
	*fakeUsage
	most chan time.Duration
}

func (h *hangingStore) hang(ctx context.Context) error {
	end, _ := ctx.Deadline()
	h.most <- time.Until(end)
	return fmt.Errorf("read: %w: %w", engine.ErrUnavailable, context.DeadlineExceeded)
}

func (h *hangingStore) Status(ctx context.Context, _ string) ([]engine.Counter, error) {
	return nil, h.hang(ctx)
}

func (h *hangingStore) List(ctx context.Context, _ string, _ engine.CounterID, _ int) ([]engine.Counter, bool, error) {
	return nil, false, h.hang(ctx)
}

func (h *hangingStore) Reset(ctx context.Context, _ engine.Selection, _ bool) (int64, error) {
	return 0, h.hang(ctx)
}

func (h *hangingStore) TopUsage(ctx context.Context, _ usage.TopQuery) ([]usage.Top, error) {
	return nil, h.hang(ctx)
}

func (h *hangingStore) Traffic(ctx context.Context, _ usage.LogQuery) ([]usage.Traffic, error) {
	return nil, h.hang(ctx)
}

func (h *hangingStore) SlowestEndpoints(ctx context.Context, _ usage.LogQuery) ([]usage.Endpoint, error) {
	return nil, h.hang(ctx)
}

func (h *hangingStore) EndpointErrors(ctx context.Context, _ usage.LogQuery) ([]usage.Failure, error) {
	return nil, h.hang(ctx)
}

// TestRequestsToHungStoreAreAnsweredInTime: callers get an error before they give up. Requests that
// may go through many rows have longer.
func TestRequestsToHungStoreAreAnsweredInTime(t *testing.T) {
	t.Parallel()
	h := &hangingStore{&fakeEngine{}, newFakeUsage(), make(chan time.Duration, 1)}
	_, nc := serve(t, h, func(c *ServiceConfig) { c.UsageLog, c.Usage, c.storeTimeout, c.scanTimeout = h, h, 0, 0 })
	for _, c := range []struct {
		subject, body string
		long          bool
	}{
		{limits.SubjectStatus, `{"key":"a"}`, false},
		{limits.SubjectList, `{}`, false},
		{limits.SubjectReset, `{"key":"a"}`, false},
		{limits.SubjectReset, `{"prefix":"a"}`, true},
		{limits.SubjectReset, `{"all":true}`, true},
		{limits.SubjectTop, `{}`, true},
		{limits.SubjectUsageReport, `{"report":"traffic"}`, true},
		{limits.SubjectUsageReport, `{"report":"slowest"}`, true},
		{limits.SubjectUsageReport, `{"report":"errors"}`, true},
	} {
		m := ask(t, nc, c.subject, c.body)
		if text := string(m.Data); !strings.Contains(text, "the store did not answer in time") {
			t.Errorf("%s %s: %s", c.subject, c.body, text)
		}
		most, patience := <-h.most, limits.DefaultTimeout*9/10
		if c.long && most <= patience || !c.long && most > patience {
			t.Errorf("%s %s may take %s; a client waits %s", c.subject, c.body, most, limits.DefaultTimeout)
		}
	}
}

// TestAFailedResetSaysWhatItHasReset, because that stays reset: a store resets many counters in several transactions.
func TestAFailedResetSaysWhatItHasReset(t *testing.T) {
	t.Parallel()
	late := fmt.Errorf("reset counters: %w: %w", engine.ErrUnavailable, context.DeadlineExceeded)
	_, nc := serve(t, &fakeEngine{err: late})
	const advice, already = "the store did not answer in time; try again soon", "; 3 counters are reset already, and the same reset goes on with the rest"
	for body, want := range map[string]string{`{"prefix":"a"}`: advice + already, `{"prefix":"a","dryRun":true}`: advice} {
		m := ask(t, nc, limits.SubjectReset, body)
		if text := string(m.Data); !strings.Contains(text, `"unavailable"`) || !strings.HasSuffix(text, `"`+want+`"}}`) {
			t.Errorf("%s: %s; want %q", body, text, want)
		}
	}
}

// TestOverloadIsNoFailureOfTheStore, nor is a stop, as the log would have it.
func TestOverloadIsNoFailureOfTheStore(t *testing.T) {
	t.Parallel()
	var log logBuffer
	e := &fakeEngine{submit: allowing, err: fmt.Errorf("waited 1s: %w", engine.ErrOverloaded)}
	s, nc := serve(t, e, func(c *ServiceConfig) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	ask(t, nc, limits.SubjectStatus, `{"key":"a"}`)
	e.err = engine.ErrClosed
	ask(t, nc, limits.SubjectStatus, `{"key":"a"}`)
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(log.String(), "the store") {
		t.Errorf("the log says %s", log.String())
	}
}
