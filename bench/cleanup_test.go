package bench

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
)

const (
	// cleanRate is the steady load beside the removal, in checks per second.
	cleanRate = 3000
	// cleanFor is how long a load is measured without the removal. With it, the load lasts as long as the removal.
	cleanFor = 3 * time.Second
	// cleanGoal is the greatest ratio of the p99 with the removal to that without.
	cleanGoal = 2.0
	// cleanTimeout bounds a removal.
	cleanTimeout = 2 * time.Minute
)

// cleanup has the latencies of a load with and without the job that removes expired counters.
type cleanup struct {
	load string
	// ask runs the load until the removal has ended, or for cleanFor if removal is nil. It returns the p99 in µs.
	ask func(ctx context.Context, removal <-chan struct{}) (p99 float64, err error)

	without, with []float64 // p99 in the rounds, µs
	removed       int
	during        time.Duration
}

func (c *cleanup) perSecond() float64 { return float64(c.removed) / max(1e-9, c.during.Seconds()) }

// ratios returns the ratios of the p99 with the removal to that without, by round.
func (c *cleanup) ratios() (ratios []float64) {
	for i := range min(len(c.with), len(c.without)) {
		ratios = append(ratios, c.with[i]/max(1, c.without[i]))
	}
	return ratios
}

// measureCleanup makes expired counters, half as many as there are live ones, and has the job of an alerter remove them in
// parts: in each round one part beside a steady load, and one beside a closed loop.
func (g *growth) measureCleanup() error {
	w, err := g.worker(g.large)
	if err != nil {
		return err
	}
	defer func() { _ = w.stop() }()
	if err := g.buildAlerter(); err != nil {
		return err
	}
	a, err := g.start("ready nats=", os.Environ(), g.alerter(), "--nats-url", g.nats, "--http", "off", "--database-url", g.large, "--cleanup-every", "0")
	if err != nil {
		return err
	}
	defer func() { _ = a.stop() }()
	g.cleanups = []*cleanup{
		{load: thousands(cleanRate) + " checks/s", ask: g.askSteadily},
		{load: "128 in flight", ask: g.askAllTheTime},
	}
	part := *growKeys / 2 / (growRounds * len(g.cleanups))
	from := *growKeys
	for range growRounds {
		for _, c := range g.cleanups {
			if err := g.add(from, from+part, true); err != nil {
				return err
			}
			from += part
			if err := execEach(g.ctx, g.conn, "VACUUM ANALYZE counters", "CHECKPOINT"); err != nil {
				return err
			}
			if err := g.cleanBeside(c, part); err != nil {
				return fmt.Errorf("beside %s: %w", c.load, err)
			}
			g.say("  beside %s: %.0f rows/s, p99 %.1f ms, without %.1f ms", c.load, c.perSecond(), c.with[len(c.with)-1]/1000,
				c.without[len(c.without)-1]/1000)
		}
	}
	return nil
}

// cleanBeside measures a load without and with a removal, once each.
func (g *growth) cleanBeside(c *cleanup, rows int) error {
	ctx, cancel := context.WithTimeout(g.ctx, cleanTimeout)
	defer cancel()
	without, err := c.ask(ctx, nil)
	if err != nil {
		return err
	}
	nc, err := nats.Connect(g.nats)
	if err != nil {
		return err
	}
	defer nc.Close()
	client := limits.NewClient(nc)
	began, err := client.RunJob(ctx, "expire")
	if err != nil {
		return err
	}
	ended, run := make(chan struct{}), limits.JobRun{}
	var failed error
	go func() {
		defer close(ended)
		run, failed = waitEnd(ctx, client, began.Run)
	}()
	with, err := c.ask(ctx, ended)
	cancel()
	<-ended
	switch {
	case err != nil:
		return err
	case failed != nil:
		return failed
	case run.Outcome != "done" || run.Note != fmt.Sprintf("removed %d", rows):
		return fmt.Errorf("the removal of %d rows ended %s: %s: %s", rows, run.Outcome, run.Note, run.Error)
	}
	c.without, c.with = append(c.without, without), append(c.with, with)
	c.removed += rows
	c.during += time.Duration(run.EndedAt-run.StartedAt) * time.Millisecond
	return nil
}

// waitEnd waits until a run has ended.
func waitEnd(ctx context.Context, client *limits.Client, run limits.JobRun) (limits.JobRun, error) {
	for run.EndedAt == 0 {
		select {
		case <-ctx.Done():
			return run, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
		history, err := client.JobHistory(ctx, limits.JobHistoryRequest{Job: run.Job, Max: 1})
		if err != nil {
			return run, err
		}
		run = history.Runs[0]
	}
	return run, nil
}

func (g *growth) askSteadily(ctx context.Context, removal <-chan struct{}) (float64, error) {
	pacing, cancel := context.WithCancel(ctx)
	defer cancel()
	p, err := g.newPace(pacing, growFew, cleanRate, "1h")
	if err != nil {
		return 0, err
	}
	var enough <-chan time.Time
	if removal == nil {
		time.Sleep(time.Second) // warm up the keys
		p.take()
		enough = time.After(cleanFor)
	}
	select {
	case <-enough:
	case <-removal:
	case <-ctx.Done():
	}
	now := p.take()
	g.failed += now.failed
	return now.p99(), ctx.Err()
}

// askAllTheTime returns the median of the measurements that ended before the removal did.
func (g *growth) askAllTheTime(ctx context.Context, removal <-chan struct{}) (float64, error) {
	l := load{keys: growFew, inFlight: 128, connections: 4}
	if removal == nil {
		a, err := g.ask(l, time.Second, cleanFor)
		return a.LatencyMicros.P99, err
	}
	var p99 []float64
	for {
		a, err := g.ask(l, 0, cleanFor)
		if err != nil {
			return 0, err
		}
		select {
		case <-removal:
			if len(p99) == 0 {
				return 0, fmt.Errorf("the removal ended within %s", cleanFor)
			}
			return median(p99), nil
		default:
			p99 = append(p99, a.LatencyMicros.P99)
		}
	}
}
