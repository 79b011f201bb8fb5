package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
)

// benchCmd loads the service in a closed loop: each of --in-flight slots sends its next request when it has an answer.
// benchload.go sends, benchreport.go reports, benchprogress.go shows the progress.
type benchCmd struct {
	natsFlags
	Connections int           `default:"4" placeholder:"N" help:"NATS connections (${default})."`
	InFlight    int           `name:"in-flight" default:"128" placeholder:"N" help:"Requests in flight, over all connections (${default})."`
	Duration    time.Duration `default:"10s" placeholder:"DURATION" help:"How long to measure (${default})."`
	Warmup      time.Duration `default:"1s" placeholder:"DURATION" help:"How long to run before (${default})."`
	Keys        int           `default:"10000" placeholder:"N" help:"Keys, used evenly at random; 1 is one hot key (${default})."`
	Limit       int64         `default:"1000000000" placeholder:"N" help:"Limit of each key (${default})."`
	Window      string        `default:"1h" placeholder:"W" help:"Window of each key (${default})."`
	Algorithm   string        `enum:"sliding_window,fixed_window,token_bucket" default:"sliding_window" placeholder:"NAME" help:"One of ${enum} (${default})."`
	Consistency string        `enum:"exact,leased" default:"exact" placeholder:"WORD" help:"One of ${enum} (${default})."`
	Verb        string        `enum:"consume,check" default:"consume" help:"One of ${enum} (${default})."`
	Subject     string        `hidden:"" placeholder:"SUBJECT" help:"Send to another subject and take any answer as allowed, to measure the generator itself against an echo."`
	Quiet       bool          `short:"q" help:"Show no progress."`
	JSON        bool          `help:"Print the result as JSON."`
}

func (*benchCmd) Help() string {
	return `Examples:

  limiter bench
  limiter bench --keys 1                             # one hot key
  limiter bench --verb check --duration 1m --in-flight 512
  limiter bench --quiet --json | jq .perSecond

The keys are bench:0000000000 and up; limiter reset --prefix bench: --yes removes them. An answer that does not
come within 2 seconds is an error (no_answer). "generator" is the processor time that this program itself used for
each check: if it shares the machine with the service, the service does not have that time.`
}

func (c *benchCmd) Validate() error {
	switch {
	case c.Connections < 1:
		return fmt.Errorf("--connections: %d is below 1; want 1 or more", c.Connections)
	case c.InFlight < c.Connections:
		return fmt.Errorf("--in-flight: %d is below --connections (%d); each connection needs at least one", c.InFlight, c.Connections)
	case c.InFlight > 1_000_000:
		return fmt.Errorf("--in-flight: %d is above 1000000", c.InFlight)
	case c.Keys < 1 || c.Keys > 1_000_000_000:
		return fmt.Errorf("--keys: %d is not between 1 and 1000000000", c.Keys)
	case c.Limit < 1 || c.Limit > limits.MaxAmount:
		return fmt.Errorf("--limit: %d is not between 1 and %d", c.Limit, int64(limits.MaxAmount))
	case c.Duration <= 0:
		return fmt.Errorf("--duration: %v is not above 0; want one such as 10s", c.Duration)
	case c.Warmup < 0:
		return fmt.Errorf("--warmup: %v is below 0; want 0 for none, or one such as 1s", c.Warmup)
	}
	return c.natsFlags.Validate()
}

func (c *benchCmd) subject() string {
	switch {
	case c.Subject != "":
		return c.Subject
	case c.Verb == "check":
		return limits.SubjectCheck
	}
	return limits.SubjectConsume
}

func (c *benchCmd) request() limits.Request {
	r := limits.Per(benchKey, c.Limit, c.Window)
	r.Algorithm = c.Algorithm
	if c.Consistency != limits.Exact { // leave out the default, as other clients do
		r.Consistency = c.Consistency
	}
	return r
}

// Run measures; a signal ends it early with what was measured until then.
func (c *benchCmd) Run(s *session) error {
	l, err := c.open(s)
	if err != nil {
		return err
	}
	defer l.close()
	p := newProgress(s, c)
	if c.Warmup > 0 {
		l.start()
		p.during(s.ctx, c.Warmup, l)
		if s.ctx.Err() != nil {
			p.end()
			return errors.New("bench: interrupted while warming up; nothing was measured")
		}
		l.measure()
	} else { // count from the first answer
		l.measure()
		l.start()
	}
	began, cpu := time.Now(), processorTime()
	p.during(s.ctx, c.Duration, l)
	t := l.finish()
	elapsed, cpu := time.Since(began), processorTime()-cpu
	p.end()
	l.drain()
	t.fail("no_answer", l.lost())
	return c.report(s, t, elapsed, cpu)
}

// open connects, and sends one request: an error that every request would get is reported once, at the beginning.
func (c *benchCmd) open(s *session) (*load, error) {
	l := newLoad(c.subject(), c.Subject != "", c.Keys)
	for i := range c.Connections {
		nc, err := c.connect(s, "bench", nats.FlusherTimeout(answerTimeout))
		if err != nil {
			l.close()
			return nil, err
		}
		n := c.InFlight / c.Connections
		if i < c.InFlight%c.Connections {
			n++
		}
		if err := l.add(nc, n, c.request()); err != nil {
			nc.Close()
			l.close()
			return nil, err
		}
	}
	if err := c.probe(s.ctx, l); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (c *benchCmd) probe(ctx context.Context, l *load) error {
	first := l.connections[0]
	_, err := limits.NewClient(first.nc, limits.Timeout(answerTimeout)).Do(ctx, l.subject, first.slots[0].body)
	return err
}
