package alerts

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"

	"github.com/seed503877ad/limits"
)

// The errors of a [Desk] that its callers tell apart.
var (
	ErrUnknownAlert    = errors.New("unknown alert")
	ErrUnknownSilence  = errors.New("unknown silence")
	ErrUnknownChannel  = errors.New("unknown channel")
	ErrUnknownDelivery = errors.New("unknown delivery")
	ErrTooManySilences = errors.New("too many silences")
)

const (
	// maxDeliveriesShown bounds the deliveries of one alert; there are two for each channel.
	maxDeliveriesShown = 200
	// replayBatch is how many dead letters are replayed in one transaction, and maxReplays how many such transactions a
	// request makes: a letter may be dead again before the last.
	replayBatch, maxReplays = 1000, 100
)

// Desk is what people ask of alerts. Its fields are set once; Store and Rules are required.
type Desk struct {
	Store Store
	// Rules gives those in force.
	Rules func() *Rules
	// Wake tells the sender that there are deliveries; nil for nobody.
	Wake func()
	// Breaker gives the state of a channel's circuit breaker in this process; nil for unknown.
	Breaker func(channel string) string
	// PausedUntil gives up to when this process leaves a channel alone because its target asked for that, the zero time when it
	// does not; Resume ends that. Nil for unknown.
	PausedUntil func(channel string) time.Time
	Resume      func(channel string)
	// LastError gives why the last try of a channel in this process failed, empty when it did not; nil for unknown.
	LastError func(channel string) string
	// Target gives the fingerprint by which a channel is disabled, so that one which leads elsewhere now is not shown as
	// disabled; nil to take the name alone.
	Target func(c *ChannelSpec) string
}

// List gives alerts.
func (d *Desk) List(ctx context.Context, f AlertFilter) ([]Alert, error) {
	return d.Store.Alerts(ctx, f)
}

// Show gives an alert and its deliveries. Digests and tests have an id too, and deliveries alone: then found is false.
func (d *Desk) Show(ctx context.Context, id string) (a Alert, found bool, all []Delivery, err error) {
	if a, found, err = d.Store.Alert(ctx, id); err != nil {
		return a, false, nil, err
	}
	all, err = d.Store.DeliveriesOf(ctx, id, maxDeliveriesShown)
	if err == nil && !found && len(all) == 0 {
		err = ErrUnknownAlert
	}
	return a, found, all, err
}

// Silence keeps alerts from being told. The silence must have passed [Silence.Validate].
func (d *Desk) Silence(ctx context.Context, s Silence, lasts time.Duration) (Silence, error) {
	// Every alert is compared with each that holds.
	there, err := d.Store.Silences(ctx, false, limits.MaxSilences)
	if err != nil {
		return s, err
	}
	if len(there) >= limits.MaxSilences {
		return s, ErrTooManySilences
	}
	s.ID = rand.Text()
	return d.Store.AddSilence(ctx, s, lasts)
}

// maxSilence is how long a silence may last: one without an end would be forgotten.
const maxSilence = limits.MaxSilenceMillis * time.Millisecond

// Validate names the field that cannot be, and says why.
func (s *Silence) Validate(lasts time.Duration) (field string, err error) {
	switch {
	case s.Rule+s.Policy+s.Key+s.User == "":
		return "rule", errors.New("the silence does not say what it is for; give rule, policy, key or user (* for every one)")
	case s.Reason == "":
		return "reason", errors.New("reason is missing; say why, for who finds the silence later")
	case lasts <= 0:
		return "expiresAt", errors.New("the silence has no end in the future; say how long it lasts, or until when")
	case lasts > maxSilence:
		return "expiresAt", fmt.Errorf("the silence lasts longer than %d days", maxSilence/(24*time.Hour))
	}
	return "", nil
}

// Unsilence ends a silence.
func (d *Desk) Unsilence(ctx context.Context, id string) (Silence, error) {
	s, found, err := d.Store.EndSilence(ctx, id)
	if err == nil && !found {
		err = ErrUnknownSilence
	}
	return s, err
}

// Silences gives up to max of them.
func (d *Desk) Silences(ctx context.Context, ended bool, max int) ([]Silence, error) {
	return d.Store.Silences(ctx, ended, max)
}

// Dead gives deliveries that were given up.
func (d *Desk) Dead(ctx context.Context, f DeadFilter) ([]Delivery, error) {
	return d.Store.DeadDeliveries(ctx, f)
}

// Poisoned gives messages of the stream that could not be taken.
func (d *Desk) Poisoned(ctx context.Context, max int) ([]Poison, error) {
	return d.Store.PoisonMessages(ctx, max)
}

// Replay lets dead letters be delivered again, enables their channels, and ends their pauses in this process: who replays says
// that the target is back.
func (d *Desk) Replay(ctx context.Context, f DeadFilter) (n int, err error) {
	if err := d.enable(ctx, f); err != nil {
		return 0, err
	}
	f.Max = replayBatch
	for range maxReplays {
		more, err := d.Store.ReplayDeliveries(ctx, f)
		if n += more; err != nil {
			return n, err
		}
		if more < replayBatch {
			break
		}
	}
	d.wake()
	return n, nil
}

// enable enables the channels of a replay.
func (d *Desk) enable(ctx context.Context, f DeadFilter) error {
	channels := []string{f.Channel}
	switch {
	case f.ID != "":
		dead, err := d.Store.DeadDeliveries(ctx, DeadFilter{ID: f.ID, Max: 1})
		if err != nil {
			return err
		}
		if len(dead) == 0 {
			return ErrUnknownDelivery
		}
		channels[0] = dead[0].Channel
	case f.Channel != "":
		if d.Rules().channel(f.Channel) == nil {
			return ErrUnknownChannel
		}
	default:
		disabled, err := d.Store.DisabledChannels(ctx)
		if err != nil {
			return err
		}
		channels = channels[:0]
		for i := range disabled {
			channels = append(channels, disabled[i].Channel)
		}
		for _, c := range d.Rules().Channels {
			d.resume(c.Name)
		}
	}
	for _, name := range channels {
		if _, err := d.Store.EnableChannel(ctx, name); err != nil {
			return err
		}
		d.resume(name)
	}
	return nil
}

func (d *Desk) resume(channel string) {
	if d.Resume != nil {
		d.Resume(channel)
	}
}

func (d *Desk) wake() {
	if d.Wake != nil {
		d.Wake()
	}
}

// channel gives the channel of a name; nil when there is none.
func (r *Rules) channel(name string) *ChannelSpec {
	i := slices.IndexFunc(r.Channels, func(c ChannelSpec) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Channels[i]
}

// Test puts a test for one channel into the outbox, or for all when the name is empty. [Desk.Show] of its id tells how it
// ended.
func (d *Desk) Test(ctx context.Context, channel, note string) (id string, channels []string, err error) {
	rules := d.Rules()
	for i := range rules.Channels {
		if name := rules.Channels[i].Name; channel == "" || channel == name {
			channels = append(channels, name)
		}
	}
	if len(channels) == 0 {
		return "", nil, ErrUnknownChannel
	}
	id = rand.Text()
	for _, name := range channels {
		if err := d.Store.AddDelivery(ctx, testDelivery(id, name, note, time.Now())); err != nil {
			return "", nil, err
		}
	}
	d.wake()
	return id, channels, nil
}

// testDelivery makes a message of its own for each channel, which it names.
func testDelivery(id, channel, note string, now time.Time) Delivery {
	data, _ := json.Marshal(limits.AlertTest{Channel: channel, Note: note, SentAt: now.UnixMilli()}) // texts and a number
	text := "Somebody sent this to see whether it arrives. Nothing is wrong."
	if note != "" {
		text += " They say: " + note
	}
	m := Message{ID: id + "." + channel, Kind: KindTest, Time: now.UnixMilli(), Severity: Info,
		Title: "Test of the channel " + channel, Text: text, Data: data}
	return Delivery{ID: m.ID + "/" + channel, Channel: channel, Message: m, State: DeliveryWaiting}
}

// ChannelStatus is a channel and its state.
type ChannelStatus struct {
	Name, Kind string
	// Host is where it leads, without path and credentials.
	Host    string
	Waiting int64
	// Breaker is the state of its circuit breaker in this process; empty when it has none.
	Breaker string
	// PausedUntil is up to when this process leaves it alone because its target asked for that; zero when it does not.
	PausedUntil time.Time
	// LastError is why its last try in this process failed; empty when it did not.
	LastError string
	// Disabled is nil for one that is not.
	Disabled *Disabled
}

// Channels gives the channels in force.
func (d *Desk) Channels(ctx context.Context) ([]ChannelStatus, error) {
	waiting, err := d.Store.WaitingDeliveries(ctx)
	if err != nil {
		return nil, err
	}
	disabled, err := d.Store.DisabledChannels(ctx)
	if err != nil {
		return nil, err
	}
	rules := d.Rules()
	all := make([]ChannelStatus, len(rules.Channels))
	for i := range rules.Channels {
		c := &rules.Channels[i]
		all[i] = ChannelStatus{Name: c.Name, Kind: c.Kind, Host: c.Host(), Waiting: waiting[c.Name], Disabled: d.disabled(c, disabled)}
		if d.Breaker != nil {
			all[i].Breaker = d.Breaker(c.Name)
		}
		if d.PausedUntil != nil {
			all[i].PausedUntil = d.PausedUntil(c.Name)
		}
		if d.LastError != nil {
			all[i].LastError = d.LastError(c.Name)
		}
	}
	return all, nil
}

// disabled finds what disables a channel.
func (d *Desk) disabled(c *ChannelSpec, all []Disabled) *Disabled {
	for i := range all {
		if all[i].Channel == c.Name && (d.Target == nil || d.Target(c) == all[i].Target) {
			return &all[i]
		}
	}
	return nil
}

// Host gives where a channel leads, empty for one inside. The path of a webhook often is a secret.
func (c *ChannelSpec) Host() string {
	raw := ""
	switch {
	case c.Webhook != nil:
		raw = c.Webhook.URL
	case c.Slack != nil:
		raw = c.Slack.URL
	case c.SMTP != nil:
		host, _, err := net.SplitHostPort(c.SMTP.Addr)
		if err != nil {
			return ""
		}
		return host
	}
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Hostname()
}
