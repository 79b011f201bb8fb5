package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/alerts/channel"
	"github.com/seed503877ad/limits/internal/alerts/deliver"
	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/jobs"
)

// loadAlerts reads the alerts file before anything is started, so that a wrong file ends the start at once.
func (l *limiter) loadAlerts(ctx context.Context) error {
	builtIn := alerts.Default()
	l.alertRules = func() *alerts.Rules { return builtIn }
	if l.Alerts == "" {
		return nil
	}
	if !l.runsAlerts() {
		l.log.Info("alerts file not read: alerts run in the alerter, not in this limiter", "file", l.Alerts)
		return nil
	}
	keeper, err := alerts.NewRulesKeeper(ctx, l.Alerts, alerts.FileOptions{}, l.log)
	if err != nil {
		return pathError("--alerts", err)
	}
	l.alertsFile, l.alertRules = keeper, keeper.Current
	return nil
}

// watchAlerts reloads the alerts file when it changes, and on SIGHUP. SIGHUP also reloads the secrets that it names.
func (l *limiter) watchAlerts(context.Context) error {
	if l.alertsFile == nil {
		return nil
	}
	return watchFile(l, "alerts", l.Alerts, l.alertsFile, l.metrics.WatchAlertsFile, l.alertsFile.ForceReload)
}

// startAlerts starts the sender of deliveries, the alert service and the consumer of events, in this order, if alerts run
// here. They stop in reverse order, so the consumer stops taking events first.
func (l *limiter) startAlerts(context.Context) error {
	if !l.runsAlerts() {
		return nil
	}
	observer := &alertWork{AlertMetrics: l.metrics.WatchAlerts(l.store.WaitingDeliveries, l.channelNames), busy: l.Busy}
	channels, err := l.newChannels()
	if err != nil {
		return err
	}
	if err := l.startSender(channels, observer); err != nil {
		return err
	}
	cfg := alerts.Config{
		Store: l.store, Limiter: limits.NewClient(l.events), Rules: l.alertRules, NewID: rand.Text,
		Delivered: l.sender.Wake, Observer: observer, Batch: l.eventBatch(), CaughtUp: func() time.Time { return l.consumer.CaughtUp() },
		Unpublished: l.store.OutboxAge, OldestEvent: func(ctx context.Context) (time.Time, error) { return l.consumer.OldestEvent(ctx) },
		Locked: l.store.Locked,
	}
	if l.DatabaseURL == "" { // decisions wait for each transaction, 40 ms with these
		cfg.MaxMatches, cfg.DigestMax = 256, 500
	}
	l.alerts = alerts.New(cfg)
	l.background("alerts", func(ctx context.Context) { l.alerts.Run(ctx, l.log) })
	l.alertAdmin = &alerts.Admin{Store: l.store, Rules: l.alertRules, Sender: l.sender, Target: channel.Fingerprint}
	return l.startConsumer(observer)
}

// channelNames names the channels of the current rules.
func (l *limiter) channelNames() (names []string) {
	for _, c := range l.alertRules().Channels {
		names = append(names, c.Name)
	}
	return names
}

// background runs a part in a goroutine. Its stop cancels ctx and waits for run to return, until the stop's own timeout.
func (l *limiter) background(part string, run func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); run(ctx) }()
	l.onStop(part, func(stopping context.Context) error {
		cancel()
		select {
		case <-ended:
			return nil
		case <-stopping.Done():
			return fmt.Errorf("still running: %w", stopping.Err())
		}
	})
}

func (l *limiter) startSender(c *channels, observer *alertWork) (err error) {
	l.sender, err = deliver.NewSender(deliver.Config{Outbox: l.store, Logger: l.log, Channels: c.named, Observer: observer})
	if err != nil {
		return err
	}
	l.background("alert sender", l.sender.Run)
	return nil
}

func (l *limiter) startConsumer(observer *alertWork) (err error) {
	l.consumer, err = bus.NewConsumer(bus.ConsumerConfig{
		Conn: l.events, Logger: l.log, Batch: l.eventBatch(), Observer: observer,
		Take: l.alerts.Take, OwnFault: l.store.OwnFault, Poison: l.store.KeepPoison,
	})
	if err != nil {
		return err
	}
	l.background("event consumer", l.consumer.Run)
	return nil
}

// channels makes the channels of the current rules, once after each reload.
type channels struct {
	rules func() *alerts.Rules
	make  func(spec *alerts.ChannelSpec) (alerts.Channel, error)
	// allow are the private addresses that a channel may lead to.
	allow []netip.Prefix
	log   *slog.Logger

	mu sync.Mutex
	// made are the channels of madeFor.
	made    []deliver.Named
	madeFor *alerts.Rules
}

func (l *limiter) newChannels() (*channels, error) {
	maker, err := channel.NewMaker(channel.Config{Logger: l.log, Allow: l.AlertsAllow, UserAgent: "limits/" + l.Version})
	if err != nil {
		return nil, err
	}
	l.onStop("alert channels", func(context.Context) error { maker.Close(); return nil })
	events, err := bus.NewAlertEvents(l.events, l.origin(), l.log)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(l.alertRules().Channels, func(c alerts.ChannelSpec) bool { return c.Kind == alerts.ChannelNATS }) {
		l.background("alerts stream", func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, startTimeout)
			defer cancel()
			if err := events.Open(ctx); err != nil && !errors.Is(err, context.Canceled) {
				l.log.Warn("cannot create the alerts stream; the next alert will retry", "error", err)
			}
		})
	}
	return &channels{
		rules: l.alertRules,
		make: func(spec *alerts.ChannelSpec) (alerts.Channel, error) {
			if spec.Kind == alerts.ChannelNATS {
				return events, nil
			}
			return maker.Make(spec)
		},
		allow: l.AlertsAllow,
		log:   l.log,
	}, nil
}

// brokenChannel stands in for a channel that cannot be made. Every attempt to send fails with the reason. Without it the
// sender would take the channel for one that was removed from the file, and after some minutes give up its deliveries
// without saying why.
type brokenChannel struct{ err error }

// Send implements [alerts.Channel].
func (b brokenChannel) Send(context.Context, *alerts.Message) error {
	return fmt.Errorf("cannot set up the channel: %w", b.err)
}

// named returns the channels of the current rules. One that cannot be made is a brokenChannel until the next reload.
func (c *channels) named() []deliver.Named {
	rules := c.rules()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.madeFor == rules {
		return c.made
	}
	c.madeFor, c.made = rules, nil
	for rule, why := range rules.Miscounting() {
		c.log.Warn("alert rule counts wrongly", "rule", rule, "why", why)
	}
	for i := range rules.Channels {
		spec := &rules.Channels[i]
		made, err := c.make(spec)
		if err != nil {
			c.log.Error("cannot set up alert channel", "channel", spec.Name, "error", err)
			made = brokenChannel{err}
		} else if err := channel.CheckTarget(spec, c.allow); err != nil {
			c.log.Warn("alert channel cannot work", "channel", spec.Name, "error", err)
		}
		c.made = append(c.made, deliver.Named{Name: spec.Name, Target: channel.Fingerprint(spec), Channel: made, Parallel: parallel(spec)})
	}
	return c.made
}

// parallel is how many deliveries of a channel are in flight at the same time. Mail servers and chats limit how many they
// accept.
func parallel(spec *alerts.ChannelSpec) int {
	switch spec.Kind {
	case alerts.ChannelNATS, alerts.ChannelLog:
		return 64
	case alerts.ChannelWebhook:
		return 32
	}
	return 8
}

// alertJobs are the jobs that run if alerts run here.
func (l *limiter) alertJobs() []jobs.Job {
	all := []jobs.Job{
		{Name: "alerts-resolve", Schedule: "@every 30s", Jitter: 3 * time.Second, Timeout: 5 * time.Minute, Run: l.alerts.Resolve},
		// What a run that ended early left would wait for an hour. Its lease is over before the first repeat.
		{Name: "alerts-digest", Schedule: "0 * * * *", Repeat: "12-52/10 * * * *", Timeout: 9 * time.Minute, Run: l.alerts.Digest},
	}
	if l.AlertDays > 0 {
		all = append(all, pruneJob("alerts-prune", "57 * * * *", "removed", days(l.AlertDays), l.store.PruneAlerts))
	}
	return append(all, pruneJob("alert-events-prune", "3 * * * *", "removed", 0, l.alerts.Forget))
}

// eventBatch is how many events, and how many pending alerts, are handled together. It is small with SQLite, where
// decisions wait while a batch is written.
func (l *limiter) eventBatch() int {
	if l.DatabaseURL == "" {
		return 50
	}
	return 256
}
