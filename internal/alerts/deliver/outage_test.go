package deliver_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/alerts/deliver"
)

// away is an outbox that can be made to fail.
type away struct {
	*memory
	gone atomic.Bool
}

var errAway = errors.New("the store is away")

func (a *away) DueDeliveries(ctx context.Context, channel string, max int, lease time.Duration) ([]alerts.Delivery, error) {
	if a.gone.Load() {
		return nil, errAway
	}
	return a.memory.DueDeliveries(ctx, channel, max, lease)
}

func (a *away) DisabledChannels(ctx context.Context) ([]alerts.Disabled, error) {
	if a.gone.Load() {
		return nil, errAway
	}
	return a.memory.DisabledChannels(ctx)
}

func (a *away) OtherDeliveries(ctx context.Context, channels []string, due time.Duration, max int) ([]alerts.Delivery, error) {
	if a.gone.Load() {
		return nil, errAway
	}
	return a.memory.OtherDeliveries(ctx, channels, due, max)
}

func (a *away) RecallDeliveries(ctx context.Context, later, lease time.Duration, max int) (int, error) {
	if a.gone.Load() {
		return 0, errAway
	}
	return a.memory.RecallDeliveries(ctx, later, lease, max)
}

func (a *away) EndDeliveries(ctx context.Context, o alerts.Overdue, reason func(*alerts.Delivery) string) ([]alerts.Delivery, error) {
	if a.gone.Load() {
		return nil, errAway
	}
	return a.memory.EndDeliveries(ctx, o, reason)
}

// logged returns what a sender with these channels logs while meanwhile runs.
func logged(t *testing.T, o deliver.Outbox, all []deliver.Named, meanwhile func()) string {
	t.Helper()
	var lines strings.Builder
	s, err := deliver.NewSender(deliver.Config{Outbox: o, Channels: func() []deliver.Named { return all },
		Logger: slog.New(slog.NewTextHandler(&lines, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { s.Run(ctx) })
	meanwhile()
	cancel()
	group.Wait()
	return lines.String()
}

// TestStoreOutageIsLoggedOnce: every channel calls the store each second, and an outage may last.
func TestStoreOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &away{memory: newMemory()}
		all := make([]deliver.Named, 20)
		for i := range all {
			all[i] = named(fmt.Sprint("channel-", i), "x", func(context.Context, *alerts.Message) error { return nil })
		}
		said := logged(t, o, all, func() {
			rest(10 * time.Second)
			o.gone.Store(true)
			rest(10 * time.Minute)
			o.gone.Store(false)
			o.add("channel-7", "m")
			rest(10 * time.Second)
		})
		if n := strings.Count(said, "\n"); n != 2 {
			t.Errorf("%d lines of an outage of 10 minutes, want 2:\n%.2000s", n, said)
		}
		if o.get("m").State != alerts.DeliverySent {
			t.Error("nothing is sent after it")
		}
	})
}

// TestChannelFailureIsLoggedWithReason, which is needed to repair it, and again when it works.
func TestChannelFailureIsLoggedWithReason(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, down := newMemory(), atomic.Bool{}
		down.Store(true)
		all := []deliver.Named{named("mail", "x", func(context.Context, *alerts.Message) error {
			if down.Load() {
				return errors.New("log in: the server answered 535")
			}
			return nil
		})}
		for i := range 10 {
			o.add("mail", fmt.Sprint("m", i))
		}
		text := logged(t, o, all, func() {
			rest(10 * time.Minute)
			down.Store(false)
			rest(time.Hour)
		})
		said := strings.Split(strings.TrimSpace(text), "\n")
		said = slices.DeleteFunc(said, func(line string) bool { return strings.Contains(line, "due now") }) // if one waits for later
		if len(said) != 3 || !strings.Contains(said[0], "level=WARN") ||
			!strings.Contains(said[0], "will be retried") || !strings.Contains(said[0], "the server answered 535") ||
			!strings.Contains(said[1], "circuit breaker open") || !strings.Contains(said[1], "the server answered 535") ||
			!strings.Contains(said[2], "works again") {
			t.Errorf("an outage of a channel is logged as\n%s", text)
		}
	})
}

// TestGoneTargetIsLoggedOnce, although several deliveries are under way to it.
func TestGoneTargetIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newMemory()
		o.add("a", "1", "2", "3")
		gone := named("a", "x", func(context.Context, *alerts.Message) error {
			time.Sleep(time.Second)
			return &alerts.Refusal{Err: errors.New("it answered 410"), Gone: true}
		})
		said := logged(t, o, []deliver.Named{gone}, func() { rest(3 * time.Second) })
		if n := strings.Count(said, "alert channel disabled"); n != 1 || o.count(alerts.DeliveryDead) != 3 {
			t.Errorf("%d lines, %d dead letters:\n%s", n, o.count(alerts.DeliveryDead), said)
		}
	})
}

// TestTheFirstFailureOfAChannelIsLogged at once: the next attempt may be minutes away, and the fifth a quarter of an hour.
func TestTheFirstFailureOfAChannelIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newMemory()
		all := []deliver.Named{named("ops", "x", func(context.Context, *alerts.Message) error {
			return errors.New("refused: 10.0.0.1 is not a public internet address")
		})}
		o.add("ops", "m")
		text := logged(t, o, all, func() { rest(2 * time.Minute) })
		if strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=WARN") || !strings.Contains(text, "channel=ops") ||
			!strings.Contains(text, "refused: 10.0.0.1") {
			t.Errorf("tries that fail for 2 minutes are logged as\n%s", text)
		}
	})
}

// TestRemovedChannelsAreNamed in the log, the first ones if they are many: their metric has no
// names, whose number has no bound.
func TestRemovedChannelsAreNamed(t *testing.T) {
	t.Parallel()
	for channels, want := range map[int]string{
		2:  `channels="old-10, old-11" deliveries=4`,
		12: `channels="old-10, old-11, old-12, old-13, old-14, old-15, old-16, old-17, old-18, old-19 and 2 more" deliveries=24`,
	} {
		synctest.Test(t, func(t *testing.T) {
			o := newMemory()
			for i := range 2 * channels {
				o.add(fmt.Sprint("old-", 10+i%channels), fmt.Sprint("m", i))
			}
			if said := logged(t, o, nil, func() { rest(time.Hour) }); strings.Count(said, "\n") != 1 || !strings.Contains(said, want) {
				t.Errorf("%d channels are logged as\n%swant %s", channels, said, want)
			}
		})
	}
}

// claimless is a store that gives no deliveries while it is so, and does everything else.
type claimless struct {
	*memory
	is atomic.Bool
}

func (c *claimless) DueDeliveries(ctx context.Context, channel string, max int, lease time.Duration) ([]alerts.Delivery, error) {
	if c.is.Load() {
		return nil, errAway
	}
	return c.memory.DueDeliveries(ctx, channel, max, lease)
}

// TestStoreThatGivesNoDeliveriesIsAFailure after some seconds, also if it does everything else, until it works again. Single
// failed tries are none.
func TestStoreThatGivesNoDeliveriesIsAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &claimless{memory: newMemory()}
		all := []deliver.Named{named("ops", "x", func(context.Context, *alerts.Message) error { return nil })}
		s, err := deliver.NewSender(deliver.Config{Outbox: o, Channels: func() []deliver.Named { return all }, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx)
		for _, c := range []struct {
			is    bool
			after time.Duration
			fails bool
		}{{false, time.Minute, false}, {true, 3 * time.Second, false}, {false, 10 * time.Second, false}, {true, 10 * time.Second, true}, {false, 7 * time.Second, false}} {
			o.is.Store(c.is)
			if rest(c.after); (s.Failure() != nil) != c.fails {
				t.Errorf("%t for %s: %v, want a failure: %t", c.is, c.after, s.Failure(), c.fails)
			}
		}
	})
}
