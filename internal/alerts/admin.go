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
	"strings"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/glob"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// The errors of an [Admin] that its callers distinguish.
var (
	ErrUnknownAlert    = errors.New("unknown alert")
	ErrUnknownSilence  = errors.New("unknown silence")
	ErrUnknownRule     = errors.New("unknown rule") // with the existing names
	ErrUnknownChannel  = errors.New("unknown channel")
	ErrUnknownDelivery = errors.New("unknown delivery")
	ErrTooManySilences = errors.New("too many silences")
)

const (
	// maxDeliveriesShown bounds the deliveries of one alert; there are two for each channel.
	maxDeliveriesShown = 200
	// replayBatch is how many dead letters are replayed in one transaction. maxReplays bounds the transactions of one
	// request: it might never end otherwise, because a replayed delivery may soon be dead again.
	replayBatch, maxReplays = 1000, 100
)

// Sender is the sender of deliveries in this process, as far as requests are about it. *[deliver.Sender] is one.
type Sender interface {
	// Wake says that there are new deliveries.
	Wake()
	// State returns the state of a channel; the zero state for an unknown channel.
	State(channel string) ChannelState
	// Resume ends the pause of a channel, and brings forward what waits for its next try there.
	Resume(channel string)
}

// ChannelState is the state of a channel in this process.
type ChannelState struct {
	// Breaker is the state of its circuit breaker: closed, half-open or open.
	Breaker string
	// PausedUntil is until when nothing is sent to it because its target asked for a pause; zero for no pause.
	PausedUntil time.Time
	// LastError is why the last attempt failed, without secrets; empty if it did not.
	LastError string
}

// Admin administers alerts: it answers the requests under limits.admin.alerts. All fields are required; none is changed
// after its first use.
type Admin struct {
	// Store also answers the requests that only list what it has.
	Store Store
	// Rules returns the current rules.
	Rules func() *Rules
	// Sender is asked about channels, and told about new deliveries.
	Sender Sender
	// Target returns the fingerprint of a channel's target. A channel is shown as disabled only if the disabled target is
	// its current one.
	Target func(c *ChannelSpec) string
}

// Show returns an alert and its deliveries. The id may be of a digest or a test, which are no alerts but have deliveries:
// then found is false.
func (admin *Admin) Show(ctx context.Context, id string) (a Alert, found bool, all []Delivery, err error) {
	if a, found, err = admin.Store.Alert(ctx, id); err != nil {
		return a, false, nil, err
	}
	all, err = admin.Store.DeliveriesOf(ctx, id, maxDeliveriesShown)
	if err == nil && !found && len(all) == 0 {
		err = ErrUnknownAlert
	}
	return a, found, all, err
}

// Silence adds a silence, which must have passed [Silence.Validate]. If it names a rule, the current rules must have one that
// fits: otherwise it would silence nothing, as a misspelt one does.
func (admin *Admin) Silence(ctx context.Context, s Silence, lasts time.Duration) (Silence, error) {
	rules := admin.Rules().Rules
	if s.Rule != "" && !slices.ContainsFunc(rules, func(r Rule) bool { return glob.Match(s.Rule, r.Name) }) {
		return s, fmt.Errorf("%w %q; the rules are %s", ErrUnknownRule, s.Rule, yamlfile.FirstNames(rules, func(r Rule) string { return r.Name }))
	}
	// Silences are bounded because every alert is compared with all that are active.
	active, err := admin.Store.Silences(ctx, false, limits.MaxSilences)
	if err != nil {
		return s, err
	}
	if len(active) >= limits.MaxSilences {
		return s, ErrTooManySilences
	}
	s.ID = rand.Text()
	return admin.Store.AddSilence(ctx, s, lasts)
}

// maxSilence is how long a silence may last. One without an end would be forgotten.
const maxSilence = limits.MaxSilenceMillis * time.Millisecond

// Validate returns the name of the first invalid field, and what is wrong with it.
func (s *Silence) Validate(lasts time.Duration) (field string, err error) {
	switch {
	case s.Rule+s.Policy+s.Key+s.User == "":
		return "rule", errors.New("the silence does not say what to silence; give rule, policy, key or user (* for all)")
	case strings.TrimSpace(s.Reason) == "":
		return "reason", errors.New("reason is missing; say why, for whoever finds the silence later")
	case lasts <= 0:
		return "expiresAt", errors.New("the silence must end in the future; say how long it lasts, or until when")
	case lasts > maxSilence:
		return "expiresAt", fmt.Errorf("the silence lasts longer than %d days", maxSilence/(24*time.Hour))
	}
	return "", nil
}

// Unsilence ends a silence.
func (admin *Admin) Unsilence(ctx context.Context, id string) (Silence, error) {
	s, found, err := admin.Store.EndSilence(ctx, id)
	if err == nil && !found {
		err = ErrUnknownSilence
	}
	return s, err
}

// Replay makes dead letters wait for delivery again, if the rules have their channels: others would only be dead again. It also
// enables the channels and ends their pauses in this process, because a replay means that the target is back.
func (admin *Admin) Replay(ctx context.Context, f DeadFilter) (n int, err error) {
	if err := admin.enable(ctx, f); err != nil {
		return 0, err
	}
	f.Max = replayBatch
	each := []DeadFilter{f}
	if f.ID == "" && f.Channel == "" {
		each = each[:0]
		for _, c := range admin.Rules().Channels {
			each = append(each, DeadFilter{Channel: c.Name, Max: replayBatch})
		}
	}
	for left := maxReplays; left > 0 && len(each) > 0; left-- {
		more, err := admin.Store.ReplayDeliveries(ctx, each[0])
		if n += more; err != nil {
			return n, err
		}
		if more < replayBatch {
			each = each[1:]
		}
	}
	admin.Sender.Wake()
	return n, nil
}

// enable enables and resumes the channels of a replay.
func (admin *Admin) enable(ctx context.Context, f DeadFilter) error {
	channels := []string{f.Channel}
	switch {
	case f.ID != "":
		dead, err := admin.Store.DeadDeliveries(ctx, DeadFilter{ID: f.ID, Max: 1})
		if err != nil {
			return err
		}
		if len(dead) == 0 {
			return ErrUnknownDelivery
		}
		if channels[0] = dead[0].Channel; admin.Rules().channel(channels[0]) == nil {
			return ErrUnknownChannel
		}
	case f.Channel != "":
		if admin.Rules().channel(f.Channel) == nil {
			return ErrUnknownChannel
		}
	default:
		disabled, err := admin.Store.DisabledChannels(ctx)
		if err != nil {
			return err
		}
		channels = channels[:0]
		for i := range disabled {
			channels = append(channels, disabled[i].Channel)
		}
		for _, c := range admin.Rules().Channels {
			admin.Sender.Resume(c.Name)
		}
	}
	for _, name := range channels {
		if _, err := admin.Store.EnableChannel(ctx, name); err != nil {
			return err
		}
		admin.Sender.Resume(name)
	}
	return nil
}

// Test adds a test message to the outbox for one channel, or for all if channel is empty. [Admin.Show] of the id shows how
// it ended.
func (admin *Admin) Test(ctx context.Context, channel, note string) (id string, channels []string, err error) {
	rules := admin.Rules()
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
		if err := admin.Store.AddDelivery(ctx, testDelivery(id, name, note, time.Now())); err != nil {
			return "", nil, err
		}
	}
	admin.Sender.Wake()
	return id, channels, nil
}

// testDelivery makes the test of one channel. Each channel has a message of its own, because it names the channel.
func testDelivery(id, channel, note string, now time.Time) Delivery {
	data, _ := json.Marshal(limits.AlertTest{Channel: channel, Note: note, SentAt: now.UnixMilli()}) // cannot fail
	text := "Somebody sent this to see whether it arrives. Nothing is wrong."
	if note != "" {
		text += " They say: " + note
	}
	m := Message{ID: id + "." + channel, Kind: KindTest, Time: now.UnixMilli(), Severity: Info,
		Title: "Test of the channel " + channel, Text: text, Data: data}
	return NewDelivery(m, channel)
}

// ChannelStatus is a channel and its state.
type ChannelStatus struct {
	Name, Kind string
	// Host is the host of its target, without path and credentials.
	Host string
	// Waiting is how many deliveries wait.
	Waiting int64
	ChannelState
	// Disabled is nil unless the channel is disabled.
	Disabled *Disabled
}

// Channels returns the current channels.
func (admin *Admin) Channels(ctx context.Context) ([]ChannelStatus, error) {
	waiting, err := admin.Store.WaitingDeliveries(ctx)
	if err != nil {
		return nil, err
	}
	disabled, err := admin.Store.DisabledChannels(ctx)
	if err != nil {
		return nil, err
	}
	rules := admin.Rules()
	all := make([]ChannelStatus, len(rules.Channels))
	for i := range rules.Channels {
		c := &rules.Channels[i]
		all[i] = ChannelStatus{Name: c.Name, Kind: c.Kind, Host: c.Host(), Waiting: waiting[c.Name],
			ChannelState: admin.Sender.State(c.Name), Disabled: admin.disabled(c, disabled)}
	}
	return all, nil
}

// disabled returns the entry that disables a channel; nil if there is none.
func (admin *Admin) disabled(c *ChannelSpec, all []Disabled) *Disabled {
	for i := range all {
		if all[i].Channel == c.Name && all[i].Target == admin.Target(c) {
			return &all[i]
		}
	}
	return nil
}

// Host returns the host of a channel's target; empty for nats and log. The rest of a webhook's URL is often secret.
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
