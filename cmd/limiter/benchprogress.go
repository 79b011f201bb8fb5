package main

import (
	"context"
	"fmt"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progressEvery is how often a bar moves. Lines are written every second.
const progressEvery = 100 * time.Millisecond

// progress shows the progress of a bench: a bar on a terminal, otherwise a line every second; nothing with --quiet.
type progress struct {
	session *session
	quiet   bool
	bar     *progressbar.ProgressBar
	began   time.Time
	total   time.Duration
	// done is the count of answers at the time when. The rate shown is that since then, at least a second.
	done int64
	when time.Time
}

func newProgress(s *session, c *benchCmd) *progress {
	now := time.Now()
	p := &progress{session: s, quiet: c.Quiet, began: now, when: now, total: c.Warmup + c.Duration}
	if s.errTTY && !c.Quiet {
		p.bar = newBar(s, p.total.Milliseconds(), "warming up")
	}
	return p
}

func newBar(s *session, total int64, description string) *progressbar.ProgressBar {
	return progressbar.NewOptions64(total, progressbar.OptionSetWriter(s.err), progressbar.OptionSetWidth(30),
		progressbar.OptionClearOnFinish(), progressbar.OptionSetDescription(description))
}

// during waits for d or the end of ctx, and shows the progress of l meanwhile.
func (p *progress) during(ctx context.Context, d time.Duration, l *load) {
	end := time.NewTimer(d)
	defer end.Stop()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-end.C:
			return
		case <-tick.C:
			p.show(l)
		}
	}
}

func (p *progress) show(l *load) {
	if p.quiet {
		return
	}
	now := time.Now()
	if p.bar != nil {
		_ = p.bar.Set64(min(now.Sub(p.began), p.total).Milliseconds()) // go on without a bar
	}
	passed := now.Sub(p.when)
	if passed < time.Second {
		return
	}
	done := l.done()
	p.say(now, float64(done-p.done)/passed.Seconds())
	p.done, p.when = done, now
}

func (p *progress) say(now time.Time, perSecond float64) {
	if p.bar != nil {
		p.bar.Describe(fmt.Sprintf("%.0f checks/s", perSecond))
		return
	}
	fmt.Fprintf(p.session.err, "%.0fs of %v: %.0f checks/s\n", now.Sub(p.began).Seconds(), p.total, perSecond)
}

func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
