package bench

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
)

const (
	// besideRate is 20,000 events a minute, per second; besideAsked is the checks per second beside them.
	besideRate  = 20_000.0 / 60
	besideAsked = 2000
	// besideFor is how long each half of a round takes.
	besideFor    = 10 * time.Second
	besideRounds = 3
)

// beside has the times of answers of a limiter that runs everything in one process, with events and without, by round.
type beside struct {
	without, with []paced
	events        int
}

// besideEvents sends requests to a limiter on SQLite at a steady rate, alternately with events and without.
func (d *testbed) besideEvents() (r beside, err error) {
	h := newHook()
	defer h.Close()
	one, stop, err := d.allInOne(h)
	if err != nil {
		return r, err
	}
	defer stop()
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	p, err := one.newPace(ctx, soakKeys, besideAsked, "1h")
	if err != nil {
		return r, err
	}
	wait(ctx, besideFor) // warm up all keys
	for round := range besideRounds {
		p.take()
		wait(ctx, besideFor)
		r.without = append(r.without, p.take())
		all := crossings(int(besideRate * besideFor.Seconds() / eventsEach))
		if err := publish(ctx, one.js, fmt.Sprint("beside-", round), all, besideRate); err != nil {
			return r, err
		}
		r.with = append(r.with, p.take())
		r.events += len(all)
		fmt.Fprintf(os.Stderr, "all in one: p50 %.1f ms, p99 %.1f ms; with events p50 %.1f ms, p99 %.1f ms\n", r.without[round].p50()/1000,
			r.without[round].p99()/1000, r.with[round].p50()/1000, r.with[round].p99()/1000)
		if err := one.waitQuiet(h); err != nil {
			return r, err
		}
	}
	return r, ctx.Err()
}

// waitQuiet waits until no message has been received for a second.
func (d *testbed) waitQuiet(h *hook) error {
	deadline := time.Now().Add(alertsDrain)
	for before := -1; time.Now().Before(deadline); {
		now, _, _ := h.received()
		if now == before {
			return d.ctx.Err()
		}
		before = now
		wait(d.ctx, time.Second)
	}
	return fmt.Errorf("messages still arrive %s after the last event", alertsDrain)
}

// allInOne starts a limiter that runs everything in one process, and returns a testbed that uses its NATS server.
func (d *testbed) allInOne(h *hook) (one *testbed, stop func(), err error) {
	rules, err := h.rules(d.dir)
	if err != nil {
		return nil, nil, err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	addr := free.Addr().String()
	_ = free.Close()
	dir, err := os.MkdirTemp(d.dir, "one-")
	if err != nil {
		return nil, nil, err
	}
	p, err := d.start("ready nats=", hookEnv(), d.limiter, "serve", "--nats-listen", addr, "--http", "off", "--data-dir", dir, "--alerts", rules)
	if err != nil {
		return nil, nil, err
	}
	nc, err := nats.Connect("nats://" + addr)
	if err != nil {
		_ = p.stop()
		return nil, nil, err
	}
	stop = func() { nc.Close(); _ = p.stop() }
	copied := *d
	copied.nats = "nats://" + addr
	if copied.js, err = jetstream.New(nc); err == nil {
		_, err = copied.js.Stream(d.ctx, limits.EventStream)
	}
	if err != nil {
		stop()
		return nil, nil, err
	}
	return &copied, stop, nil
}
