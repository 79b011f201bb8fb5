package deliver

import (
	"context"
	"errors"
	"fmt"
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
	SaveResults(ctx context.Context, all []alerts.DeliveryResult) error
	RecallDeliveries(ctx context.Context, later, lease time.Duration, max int) (int, error)
	AdvanceDeliveries(ctx context.Context, channel string, lease time.Duration, max int) (int, error)
	EndDeliveries(ctx context.Context, o alerts.Overdue, reason func(*alerts.Delivery) string) ([]alerts.Delivery, error)
	DisableChannel(ctx context.Context, d alerts.Disabled) error
	EnableChannel(ctx context.Context, channel string) (found bool, err error)
	DisabledChannels(ctx context.Context) ([]alerts.Disabled, error)
}

// Named is a channel with its name and settings.
type Named struct {
	Name string
	// Target is a fingerprint of the channel's target. When it changes, the state of the old target is dropped: the channel
	// is neither disabled nor paused.
	Target  string
	Channel alerts.Channel
	// Parallel is how many deliveries may be in flight, [MaxParallel] at most; default 8.
	Parallel int
}

// MaxParallel bounds the deliveries of one channel that are in flight.
const MaxParallel = 64

// Outcome is the outcome of an attempt.
type Outcome string

// The outcomes.
const (
	Sent     Outcome = "sent"
	Retry    Outcome = "retry"    // it failed, and is retried later
	PutOff   Outcome = "put_off"  // it was not tried to the end: the circuit is open, or this process stops
	Dead     Outcome = "dead"     // it is a dead letter: refused for good, out of attempts, or too old
	Disabled Outcome = "disabled" // it is a dead letter: the target is gone
	Removed  Outcome = "removed"  // it is a dead letter: the file no longer has its channel
)

// Observer observes deliveries. Its methods must not block.
type Observer interface {
	// DeliveryTried is called after each attempt, and for each delivery that becomes a dead letter without one. took is 0 if
	// nothing was sent. channel is empty if it is not a current channel.
	DeliveryTried(channel, outcome string, took time.Duration)
}

// Config configures a [Sender].
type Config struct {
	// Outbox and Logger are required.
	Outbox Outbox
	Logger *slog.Logger
	// Channels returns the current channels. It is called every Poll, so that a reload takes effect. Required.
	Channels func() []Named
	// Observer is optional.
	Observer Observer
	// Now is the clock, default time.Now. It need not agree with the store's.
	Now func() time.Time
	// Poll is how often a channel looks for due deliveries without a Wake; default 1 s.
	Poll time.Duration
}

const (
	// defaultParallel is the default of Named.Parallel.
	defaultParallel = 8
	// maxAttempts is how many attempts a delivery has.
	maxAttempts = 10
	// sendTimeout bounds an attempt, whatever the channel does.
	sendTimeout = 20 * time.Second
	// drainTimeout is how long attempts in flight may go on after Run's context has ended; drainSaveTimeout is how long after
	// that their results may be stored. Together they are less than the 10 s that a part has to stop.
	drainTimeout     = 7 * time.Second
	drainSaveTimeout = 2 * time.Second
	// removedGrace is how long deliveries of an unknown channel must be due before they become dead letters: while a new
	// alerts file is rolled out, this process may not know all channels to which others send.
	removedGrace = 10 * time.Minute
	// storeTimeout bounds one call of the store.
	storeTimeout = 5 * time.Second
	// refreshEvery is how often the disabled channels are read, which other processes may have changed.
	refreshEvery = 5 * time.Second
	// sweepEvery is how often it looks for deliveries of removed channels, for old ones, and for those that a clock put into
	// the far future. sweepMax is how many it changes in one transaction. sweepFor is how long a sweep goes on, because an
	// outage leaves many.
	sweepEvery = 30 * time.Second
	sweepMax   = 256
	sweepFor   = 2 * time.Second
	// maxAge is the age at which a delivery becomes a dead letter, however often it was tried: while the circuit of a
	// failing target is open, only one delivery is tried each half minute, and the others are not.
	maxAge = 2 * 24 * time.Hour
	// maxWait is longer than any delivery waits for its next attempt: the longest of delays plus a fifth, plus the lease.
	maxWait = 24 * time.Hour
	// catchUpEvery is how often deliveries of one channel are brought forward at most. A target that fails and works by turns
	// would otherwise soon have had all their tries.
	catchUpEvery = 30 * time.Minute
	// saveTimeout bounds storing the result of an attempt, retries included.
	saveTimeout = 30 * time.Second
	// leaseFor is longer than an attempt and storing its result, so that no other process tries meanwhile.
	leaseFor = sendTimeout + saveTimeout + 2*storeTimeout
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
		c.Observer = noObserver{}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Poll <= 0 {
		c.Poll = time.Second
	}
	return nil
}

type noObserver struct{}

func (noObserver) DeliveryTried(string, string, time.Duration) {}

// Sender sends deliveries. Any number of processes may each run one over the same outbox.
type Sender struct {
	cfg Config

	// storeOutage logs failures of the store.
	storeOutage *outage.Log

	mu sync.Mutex
	// loops and disabled are by the channel's name.
	loops    map[string]*loop
	disabled map[string]alerts.Disabled
	running  sync.WaitGroup

	// names are the current channels, and namesSince is since when none of them was removed. Only Run's goroutine uses them.
	names      []string
	namesSince time.Time
}

// NewSender returns a sender; Run runs it.
func NewSender(cfg Config) (*Sender, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	return &Sender{
		cfg: cfg, loops: map[string]*loop{}, disabled: map[string]alerts.Disabled{},
		storeOutage: outage.New(cfg.Logger, slog.LevelError,
			"alert deliveries are waiting: the store is failing", "alert deliveries resumed: the store works again"),
	}, nil
}

// Wake makes all channels look for due deliveries now. It does not block.
func (s *Sender) Wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.loops {
		l.wakeUp()
	}
}

// State returns the state of a channel in this process; the zero state for an unknown channel.
func (s *Sender) State(channel string) alerts.ChannelState {
	l := s.loopOf(channel)
	if l == nil {
		return alerts.ChannelState{}
	}
	_, breaker := l.current()
	return alerts.ChannelState{Breaker: breaker.State().String(), PausedUntil: l.paused(), LastError: l.lastErr()}
}

// Resume ends the pause of a channel in this process, and brings forward what waits for its next try there.
func (s *Sender) Resume(channel string) {
	if l := s.loopOf(channel); l != nil {
		l.resume()
	}
}

// loopOf returns a channel's loop; nil for an unknown channel.
func (s *Sender) loopOf(channel string) *loop {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loops[channel]
}

// Run sends until ctx ends, then waits for the attempts in flight, for drainTimeout at most. Other deliveries wait for
// another process, or the next start.
func (s *Sender) Run(ctx context.Context) {
	defer s.running.Wait()
	_ = s.refresh(ctx)
	poll, refresh, sweep := time.NewTicker(s.cfg.Poll), time.NewTicker(refreshEvery), time.NewTicker(sweepEvery)
	defer poll.Stop()
	defer refresh.Stop()
	defer sweep.Stop()
	for {
		s.updateLoops(ctx)
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		case <-refresh.C:
			_ = s.refresh(ctx)
		case <-sweep.C:
			s.sweepRemoved(ctx)
			s.recall(ctx)
			s.sweepOld(ctx)
		}
	}
}

// updateLoops starts and stops loops, so that each current channel has one.
func (s *Sender) updateLoops(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	current := map[string]bool{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ch := range s.cfg.Channels() {
		current[ch.Name] = true
		if l := s.loops[ch.Name]; l != nil {
			l.setChannel(ch)
			continue
		}
		l := newLoop(s, ch)
		s.loops[ch.Name] = l
		loopCtx, stop := context.WithCancel(ctx)
		l.stop = stop
		s.running.Go(func() { l.run(loopCtx) })
	}
	for name, l := range s.loops {
		if !current[name] {
			l.stop()
			delete(s.loops, name)
		}
	}
}

// logStore logs when the store begins to fail and when it works again; every channel calls it each second.
func (s *Sender) logStore(ctx context.Context, act string, err error) {
	if err == nil || !errors.Is(context.Cause(ctx), context.Canceled) {
		s.storeOutage.Tried(err, "act", act)
	}
}

// Failure is why the store has kept deliveries from being sent for some seconds; nil while it works.
func (s *Sender) Failure() error {
	if err := s.storeOutage.Failure(); err != nil {
		return fmt.Errorf("deliver alerts: %w", err)
	}
	return nil
}

// refresh reads which channels are disabled.
func (s *Sender) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	all, err := s.cfg.Outbox.DisabledChannels(ctx)
	s.logStore(ctx, "read which alert channels are disabled", err)
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

// disabledEntry returns the entry of a disabled channel. It may be about an earlier target.
func (s *Sender) disabledEntry(channel string) (d alerts.Disabled, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, found = s.disabled[channel]
	return d, found
}

// disable disables a channel whose target is gone.
func (s *Sender) disable(ctx context.Context, d alerts.Disabled) {
	if known, found := s.disabledEntry(d.Channel); found && known.Target == d.Target {
		return
	}
	s.mu.Lock()
	s.disabled[d.Channel] = d
	s.mu.Unlock()
	s.cfg.Logger.Error("alert channel disabled: its target is gone; give it another target, or replay its "+
		"dead letters to try again", "channel", d.Channel, "reason", d.Reason)
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := s.cfg.Outbox.DisableChannel(ctx, d); err != nil {
		s.cfg.Logger.Warn("cannot store that an alert channel is disabled; the next attempt will retry", "channel", d.Channel, "error", err)
	}
}

// enable enables a channel, after it has worked with another target.
func (s *Sender) enable(ctx context.Context, channel string) {
	s.mu.Lock()
	delete(s.disabled, channel)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if _, err := s.cfg.Outbox.EnableChannel(ctx, channel); err != nil {
		s.cfg.Logger.Warn("cannot enable an alert channel", "channel", channel, "error", err)
		return
	}
	s.cfg.Logger.Info("alert channel enabled: its new target works", "channel", channel)
}
