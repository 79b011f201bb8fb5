package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	store "github.com/seed503877ad/limits/internal/postgres"
)

const (
	// cleanRate is the steady load that is served meanwhile, in checks a second.
	cleanRate = 3000
	// cleanFor is how long each way is looked at, with the removal and without, in each round.
	cleanFor = 3 * time.Second
	// cleanGoal is how many times the p99 may be what it is without.
	cleanGoal = 2.0
	// drainFor bounds the removal of all the rest, which then says how far it came.
	drainFor = 3 * time.Minute
)

// cleanup is one way to remove what has expired, and what it did.
type cleanup struct {
	batch int
	pause time.Duration // between batches

	without, with []float64 // p99 in the rounds, µs
	removed       int
	during        time.Duration
}

func (c cleanup) String() string { return fmt.Sprintf("%d, then %s", c.batch, c.pause) }

func (c cleanup) perSecond() float64 { return float64(c.removed) / max(1e-9, c.during.Seconds()) }

// ratios are the p99 with the removal to that without in the same round.
func (c cleanup) ratios() (ratios []float64) {
	for i := range min(len(c.with), len(c.without)) {
		ratios = append(ratios, c.with[i]/max(1, c.without[i]))
	}
	return ratios
}

var ways = []cleanup{
	{batch: 100, pause: 10 * time.Millisecond},
	{batch: 500, pause: 100 * time.Millisecond},
	{batch: 500, pause: 25 * time.Millisecond},
	{batch: 500},
	{batch: 2000, pause: 100 * time.Millisecond},
	{batch: 5000, pause: 250 * time.Millisecond},
}

// measureCleanup adds half as many counters again that have expired, and removes them in several ways beside a steady
// load. The fastest that keeps the goal then stands beside a load that takes all there is, and the rest is removed
// without a pause.
func (g *growth) measureCleanup() error {
	if err := g.add(*growKeys, *growKeys*3/2, true); err != nil {
		return err
	}
	if err := execEach(g.ctx, g.conn, "VACUUM ANALYZE counters", "CHECKPOINT"); err != nil {
		return err
	}
	s, err := store.Open(g.ctx, store.Config{URL: g.large})
	if err != nil {
		return err
	}
	defer s.Close()
	p, err := g.worker(g.large)
	if err != nil {
		return err
	}
	defer func() { _ = p.stop() }()
	if err := g.cleanWays(s); err != nil {
		return err
	}
	g.busy = cleanup{batch: g.best().batch, pause: g.best().pause}
	for range growRounds {
		if err := g.cleanBusy(s, &g.busy); err != nil {
			return err
		}
	}
	g.say("  with 128 in flight: %s", g.busy.said())
	return g.drain(s)
}

func (c cleanup) said() string {
	return fmt.Sprintf("%s: %.0f rows/s, p99 %.1f ms, without %.1f ms", c, c.perSecond(), median(c.with)/1000, median(c.without)/1000)
}

// cleanWays looks at each way beside the steady load, taking turns.
func (g *growth) cleanWays(s *store.Store) error {
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	p, err := g.newPace(ctx, growFew, cleanRate, "1h")
	if err != nil {
		return err
	}
	wait := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	g.cleanups = slices.Clone(ways)
	wait(2 * cleanFor) // the worker gets to know the keys
	for range growRounds {
		for i := range g.cleanups {
			c := &g.cleanups[i]
			p.take()
			wait(cleanFor)
			c.without = append(c.without, p.take().p99())
			if err := c.remove(ctx, s, func() { wait(cleanFor) }); err != nil {
				return err
			}
			c.with = append(c.with, p.take().p99())
			g.say("  %s: p99 %.1f ms, without %.1f ms", c, c.with[len(c.with)-1]/1000, c.without[len(c.without)-1]/1000)
		}
	}
	for _, c := range g.cleanups {
		g.say("  %s", c.said())
	}
	return ctx.Err()
}

// best is the fastest way that keeps the goal, or the gentlest when none does.
func (g *growth) best() cleanup {
	best := slices.MinFunc(g.cleanups, func(a, b cleanup) int { return int(a.perSecond() - b.perSecond()) })
	for _, c := range g.cleanups {
		if median(c.ratios()) <= cleanGoal && c.perSecond() > best.perSecond() {
			best = c
		}
	}
	return best
}

// cleanBusy is a round beside the closed loop.
func (g *growth) cleanBusy(s *store.Store, c *cleanup) error {
	l := load{keys: growFew, inFlight: 128, connections: 4}
	a, err := g.ask(l, time.Second, cleanFor)
	if err != nil {
		return err
	}
	c.without = append(c.without, a.LatencyMicros.P99)
	err = c.remove(g.ctx, s, func() { a, err = g.ask(l, time.Second, cleanFor) })
	c.with = append(c.with, a.LatencyMicros.P99)
	return err
}

// drain removes all that is left without a pause, beside the steady load.
func (g *growth) drain(s *store.Store) error {
	ctx, cancel := context.WithTimeout(g.ctx, drainFor)
	defer cancel()
	p, err := g.newPace(ctx, growFew, cleanRate, "1h")
	if err != nil {
		return err
	}
	g.drained = cleanup{batch: 5000, without: []float64{median(g.busy.without)}}
	began := time.Now()
	for {
		n, err := s.Expire(ctx, g.drained.batch)
		g.drained.removed += n
		if err != nil && ctx.Err() == nil {
			return err
		}
		if err != nil || n == 0 {
			g.drained.during = time.Since(began)
			g.drained.with = append(g.drained.with, p.take().p99())
			g.say("  the rest: %d rows, %s (%v)", g.drained.removed, g.drained.said(), err)
			return g.ctx.Err() // that the time was up is part of the figure
		}
	}
}

// remove removes for as long as f runs.
func (c *cleanup) remove(ctx context.Context, s *store.Store, f func()) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	began := time.Now()
	done.Go(func() {
		for ctx.Err() == nil {
			var n int
			n, err = s.Expire(ctx, c.batch)
			c.removed += n
			if err != nil {
				break
			}
			select {
			case <-time.After(c.pause):
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			err = nil // it was told to end
		}
	})
	f()
	cancel()
	done.Wait()
	c.during += time.Since(began)
	return err
}
