package bus

import (
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
)

// TestEachLossIsCountedOnce, however far the alerters and the stream have come.
func TestEachLossIsCountedOnce(t *testing.T) {
	t.Parallel()
	created := time.UnixMilli(1704307200000)
	var l losses
	for _, c := range []struct {
		what             string
		created          time.Time
		delivered, first uint64
		want, upTo       uint64
	}{
		{"an empty stream", created, 0, 0, 0, 0},
		{"nothing was delivered, and all is there", created, 0, 1, 0, 0},
		{"only what was delivered last is left", created, 5, 5, 0, 0},
		{"what was delivered is gone", created, 5, 6, 0, 0},
		{"one more is gone", created, 5, 7, 1, 6},
		{"it was counted", created, 5, 7, 0, 6},
		{"two more are gone", created, 5, 9, 2, 8},
		{"they go on", created, 20, 10, 0, 8},
		{"three are gone", created, 20, 24, 3, 23},
		{"a new stream", created.Add(1), 0, 3, 2, 2},
	} {
		info := &jetstream.StreamInfo{Created: c.created, State: jetstream.StreamState{FirstSeq: c.first}}
		if got := l.count(info, c.delivered); got != c.want || c.upTo > 0 && l.upTo != c.upTo {
			t.Errorf("%s: %d lost, up to %d; want %d, up to %d", c.what, got, l.upTo, c.want, c.upTo)
		}
	}
	if l.unlogged != 8 {
		t.Errorf("the log is to say %d, want 8", l.unlogged)
	}
}

// TestWaitsForAnotherTryGrow up to 300 times the first.
func TestWaitsForAnotherTryGrow(t *testing.T) {
	t.Parallel()
	c := &Consumer{cfg: ConsumerConfig{retry: retryWait}}
	for n, want := range map[int]time.Duration{1: 1, 2: 2, 3: 4, 9: 256, 10: 300, 17: 300, 64: 300} {
		if got := c.delay(n); got != want*retryWait {
			t.Errorf("after try %d: %s, want %s", n, got, want*retryWait)
		}
	}
}

// TestAConsumerThatLosesNothingIsNotChanged.
func TestAConsumerThatLosesNothingIsNotChanged(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*jetstream.ConsumerConfig){
		"as it is created": func(*jetstream.ConsumerConfig) {},
		"all subjects":     func(c *jetstream.ConsumerConfig) { c.FilterSubjects = nil },
		"a wildcard":       func(c *jetstream.ConsumerConfig) { c.FilterSubject, c.FilterSubjects = "limits.*", nil },
		"no reports":       func(c *jetstream.ConsumerConfig) { c.FilterSubjects = alertableSubjects },
	} {
		cfg := consumerConfig()
		change(&cfg)
		before := slices.Clone(cfg.FilterSubjects)
		if repairConsumer(&cfg) || !slices.Equal(cfg.FilterSubjects, before) {
			t.Errorf("%s: changed to %+v", what, cfg)
		}
	}
	cfg := consumerConfig()
	cfg.FilterSubjects, cfg.HeadersOnly, cfg.MaxDeliver = []string{limits.EventExceeded}, true, 1
	if !repairConsumer(&cfg) || !slices.Equal(cfg.FilterSubjects, []string{limits.EventExceeded, limits.EventWarning}) || cfg.HeadersOnly || cfg.MaxDeliver != -1 {
		t.Errorf("repaired: %+v", cfg)
	}
}
