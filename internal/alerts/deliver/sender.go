package deliver

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/outage"
)

// Outbox is what the sender needs of [alerts.Store].
type Outbox interface {
	DueDeliveries(ctx context.Context, channel string, max int, lease time.Duration) ([]alerts.Delivery, error)
	OtherDeliveries(ctx context.Context, channels []string, due time.Duration, max int) ([]alerts.Delivery, error)
	Deliver(ctx context.Context, all []alerts.Tried) error
	RecallDeliveries(ctx context.Context, later, lease time.Duration, max int) (int, error)
	EndDeliveries(ctx context.Context, o alerts.Overdue, reason func(*alerts.Delivery) string) ([]alerts.Delivery, error)
	DisableChannel(ctx context.Context, d alerts.Disabled) error
	EnableChannel(ctx context.Context, channel string) (found bool, err error)
	DisabledChannels(ctx context.Context) ([]alerts.Disabled, error)
}

// Named is a channel as it is in force.
type Named struct {
	Name string
	// Target is a fingerprint of where it leads. With another one the channel begins anew: it is neither disabled nor
	// paused.
	Target  string
	Channel alerts.Channel
	// Parallel is how many deliveries are under way at the same time, [MaxParallel] at most; 8 unless set.
	Parallel int
}

// MaxParallel bounds how many deliveries of one channel are under way at the same time.
const MaxParallel = 64

// Outcome says what became of a try.
type Outcome string

// The outcomes.
const (
	Sent     Outcome = "sent"
	Retry    Outcome = "retry"    // it failed, and is tried again
	PutOff   Outcome = "put_off"  // it was not tried: the target fails, or this process stops
	Dead     Outcome = "dead"     // it is a dead letter: refused for good, tried often enough, or too old
	Disabled Outcome = "disabled" // it is a dead letter: the target is gone
	Removed  Outcome = "removed"  // it is a dead letter: no channel has its name any more
)

// Observer is told what becomes of deliveries. Its methods do not block.
type Observer interface {
	// DeliveryTried is called once per try, and for each delivery that is given up without one. took is 0 where nothing was
	// sent; channel is empty for one that is not in force.
	DeliveryTried(channel, outcome string, took time.Duration)
}

// Config configures a [Sender].
type Config struct {
	// Outbox and Logger are required.
	Outbox Outbox
	Logger *slog.Logger
	// Channels gives the channels in force. It is asked every Poll, so that a reload takes effect. Required.
	Channels func() []Named
	// Observer is told of tries; nobody is unless set.
	Observer Observer
	// Now is the clock, time.Now unless set. It need not agree with the store's.
	Now func() time.Time
	// Poll is how often a channel looks for what is due when nobody wakes it; 1 s unless set.
	Poll time.Duration
}

const (
	// defaultParallel is how many deliveries of a channel that does not say are under way at the same time.
	defaultParallel = 8
	// maxAttempts is how many tries a delivery has.
	maxAttempts = 10
	// sendTimeout bounds a try, whatever the channel does.
	sendTimeout = 20 * time.Second
	// drainTimeout is how long, after Run's context has ended, tries that are under way may go on, and drainKeep how long it may
	// take after that to keep how they ended. Together they are less than the 10 s that a part has to stop.
	drainTimeout = 7 * time.Second
	drainKeep    = 2 * time.Second
	// grace is how long deliveries of a channel that is not in force are due, before they become dead letters: while a new
	// rules file is rolled out, a process may not know all channels yet that others send to.
	grace = 10 * time.Minute
	// storeTimeout bounds one question to the store.
	storeTimeout = 5 * time.Second
	// refreshEvery is how often a process asks what channels others have found gone.
	refreshEvery = 5 * time.Second
	// sweepEvery is how often it looks for deliveries of channels that nobody names, for old ones, and for those of a clock that was
	// ahead; sweepMax is how many it changes in one transaction, and sweepFor is for how long it goes on, as an outage leaves many.
	sweepEvery = 30 * time.Second
	sweepMax   = 256
	sweepFor   = 2 * time.Second
	// maxAge is after what time a delivery is given up, however often it was tried: while a target fails, one delivery is
	// tried each half minute, and the others are not.
	maxAge = 2 * 24 * time.Hour
	// maxWait is more than any delivery waits for its next try: that is the longest of delays, moved by a fifth, with a lease.
	maxWait = 24 * time.Hour
	// outcomeTimeout is what the outcome of a try has to be kept in.
	outcomeTimeout = 30 * time.Second
	// leaseFor is longer than a try and all it takes to keep how it ended, so that nobody else tries meanwhile.
	leaseFor = sendTimeout + outcomeTimeout + 2*storeTimeout
)

func (c *Config) defaults() error {
	switch {
	case c.Outbox == nil:
		return errors.New("sender: Outbox is missing")
	case c.Logger == nil:
		return errors.New("sender: Logger is missing")
	case c.Channels == nil:
		return errors.New("sender: Channels is missing")
	}
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Poll <= 0 {
		c.Poll = time.Second
	}
	return nil
}

type nobody struct{}

func (nobody) DeliveryTried(string, string, time.Duration) {}

// Sender sends deliveries. Any number of processes may each run one over the same outbox.
type Sender struct {
	cfg Config

	// outage is the store's.
	outage *outage.Log

	mu       sync.Mutex
	loops    map[string]*loop
	disabled map[string]alerts.Disabled
	running  sync.WaitGroup

	// names are those of the channels in force, and named is since when none has gone. Only Run's goroutine uses them.
	names []string
	named time.Time
}

// NewSender makes a sender; Run runs it.
func NewSender(cfg Config) (*Sender, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	return &Sender{
		cfg: cfg, loops: map[string]*loop{}, disabled: map[string]alerts.Disabled{},
		outage: outage.New(cfg.Logger, slog.LevelError, "deliveries of alerts wait: the store fails", "deliveries of alerts go on: the store answers again"),
	}, nil
}

// Wake tells that deliveries were added or replayed. It does not block.
func (s *Sender) Wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.loops {
		l.wakeUp()
	}
}

// Breaker gives the state of a channel's circuit breaker in this process: closed, half-open or open; empty for a channel that
// is not in force.
func (s *Sender) Breaker(channel string) string {
	l := s.loopOf(channel)
	if l == nil {
		return ""
	}
	_, breaker := l.current()
	return breaker.State().String()
}

// PausedUntil gives up to when this process leaves a channel alone because its target asked for that; the zero time when it
// does not.
func (s *Sender) PausedUntil(channel string) time.Time {
	l := s.loopOf(channel)
	if l == nil {
		return time.Time{}
	}
	return l.paused()
}

// LastError gives why the last try of a channel in this process failed, with nothing secret in it; empty when it did not.
func (s *Sender) LastError(channel string) string {
	l := s.loopOf(channel)
	if l == nil {
		return ""
	}
	return l.reason()
}

// Resume ends the pause of a channel in this process: somebody says that the target is back.
func (s *Sender) Resume(channel string) {
	if l := s.loopOf(channel); l != nil {
		l.resume()
	}
}

// loopOf gives a channel's loop; nil for one that is not in force.
func (s *Sender) loopOf(channel string) *loop {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loops[channel]
}

// Run sends until ctx ends, then finishes what is under way, for the drain timeout at most. What is left then waits for
// other processes, or for the next start.
func (s *Sender) Run(ctx context.Context) {
	defer s.running.Wait()
	_ = s.refresh(ctx)
	poll, refresh, sweep := time.NewTicker(s.cfg.Poll), time.NewTicker(refreshEvery), time.NewTicker(sweepEvery)
	defer poll.Stop()
	defer refresh.Stop()
	defer sweep.Stop()
	for {
		s.follow(ctx)
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		case <-refresh.C:
			_ = s.refresh(ctx)
		case <-sweep.C:
			s.sweep(ctx)
			s.recall(ctx)
			s.sweepOld(ctx)
		}
	}
}

// follow lets there be one loop for each channel that is in force.
func (s *Sender) follow(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	named := map[string]bool{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ch := range s.cfg.Channels() {
		named[ch.Name] = true
		if l := s.loops[ch.Name]; l != nil {
			l.use(ch)
			continue
		}
		l := newLoop(s, ch)
		s.loops[ch.Name] = l
		loopCtx, stop := context.WithCancel(ctx)
		l.stop = stop
		s.running.Go(func() { l.run(loopCtx) })
	}
	for name, l := range s.loops {
		if !named[name] {
			l.stop()
			delete(s.loops, name)
		}
	}
}

// asked tells the log how the store answers: every channel asks it each second.
func (s *Sender) asked(ctx context.Context, act string, err error) {
	if err == nil || !errors.Is(context.Cause(ctx), context.Canceled) {
		s.outage.Tried(err, "act", act)
	}
}

// refresh reads what channels are gone.
func (s *Sender) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	all, err := s.cfg.Outbox.DisabledChannels(ctx)
	s.asked(ctx, "read what channels of alerts are disabled", err)
	if err != nil {
		return err
	}
	disabled := make(map[string]alerts.Disabled, len(all))
	for _, d := range all {
		disabled[d.Channel] = d
	}
	s.mu.Lock()
	s.disabled = disabled
	s.mu.Unlock()
	return nil
}

// disabledAs gives what is known of a channel being gone.
func (s *Sender) disabledAs(channel string) (d alerts.Disabled, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, found = s.disabled[channel]
	return d, found
}

// disable keeps that a channel is gone.
func (s *Sender) disable(ctx context.Context, d alerts.Disabled) {
	if known, found := s.disabledAs(d.Channel); found && known.Target == d.Target {
		return
	}
	s.mu.Lock()
	s.disabled[d.Channel] = d
	s.mu.Unlock()
	s.cfg.Logger.Error("channel of alerts disabled: its target says that it is gone; give it another target, or replay its "+
		"dead letters to try again", "channel", d.Channel, "reason", d.Reason)
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := s.cfg.Outbox.DisableChannel(ctx, d); err != nil {
		s.cfg.Logger.Warn("disable a channel of alerts: the next try will", "channel", d.Channel, "error", err)
	}
}

// enable forgets that a channel was gone, since it was seen to work at another target.
func (s *Sender) enable(ctx context.Context, channel string) {
	s.mu.Lock()
	delete(s.disabled, channel)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if _, err := s.cfg.Outbox.EnableChannel(ctx, channel); err != nil {
		s.cfg.Logger.Warn("enable a channel of alerts", "channel", channel, "error", err)
		return
	}
	s.cfg.Logger.Info("channel of alerts enabled: it has another target, which works", "channel", channel)
}
