package alerts

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/glob"
)

// Rules is a compiled alerts file: names are resolved, secrets are read, templates are parsed. It is immutable.
type Rules struct {
	// Rules are in the order of the file. Every rule that matches an event counts it.
	Rules []Rule
	// Throttle holds for all rules together; its Name is empty.
	Throttle Throttle
	// Channels are those that rules may name, in order.
	Channels []ChannelSpec
}

// rule returns the rule with a name; nil if the file no longer has it.
func (r *Rules) rule(name string) *Rule {
	i := slices.IndexFunc(r.Rules, func(rule Rule) bool { return rule.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Rules[i]
}

// channel returns the channel with a name; nil if there is none.
func (r *Rules) channel(name string) *ChannelSpec {
	i := slices.IndexFunc(r.Channels, func(c ChannelSpec) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Channels[i]
}

// Rule says which events become alerts, and to which channels they are sent.
type Rule struct {
	Name  string
	Match Match
	// Threshold denials within Within open an alert; a warning counts as one.
	Threshold int64
	Within    time.Duration
	Severity  Severity
	// GroupBy are the fields that events of one alert have in common: user, policy (or the key of an inline limit),
	// window, key, name.
	GroupBy []string
	// Dedup is how long an alert stays open at least; events meanwhile update it.
	Dedup time.Duration
	// ResolveAfter is how long no denial must come before an alert is resolved.
	ResolveAfter time.Duration
	// Throttle is the rule's own throttle, with the rule's name. It is charged together with the one for all rules. It is
	// nil for none.
	Throttle *Throttle
	// Channels are names of channels.
	Channels []string
	// Quiet is when alerts are held for the digest.
	Quiet []QuietHours
	// Words are the templates of title and text.
	Words Words
}

// Match selects events. In each list that is not empty, one pattern must match: an exact text, or a glob with *.
type Match struct {
	Types, Policies, Keys, Users []string
}

func (m *Match) matches(e *Event) bool {
	anyOf := func(patterns []string, s string) bool { return len(patterns) == 0 || glob.Any(patterns, s) }
	return anyOf(m.Types, e.Type) && anyOf(m.Policies, e.Policy) && anyOf(m.Keys, e.Key) && anyOf(m.Users, e.User)
}

// eventInterval is the time between two events of a counter that goes on denying.
const eventInterval = 10 * time.Second

// Miscounting returns the names of the rules that may count wrongly, each with the reason.
func (r *Rules) Miscounting() iter.Seq2[string, string] {
	return func(yield func(rule, why string) bool) {
		for i := range r.Rules {
			one := &r.Rules[i]
			if one.Threshold < 2 || one.Within >= eventInterval || !slices.Contains(one.Match.Types, limits.EventExceeded) {
				continue
			}
			if !yield(one.Name, fmt.Sprintf("it counts denials within %s, but a counter reports those of %s in one event, so it counts too many or too few",
				one.Within, eventInterval)) {
				return
			}
		}
	}
}

// The kinds of channels.
const (
	ChannelNATS    = "nats"
	ChannelLog     = "log"
	ChannelWebhook = "webhook"
	ChannelSlack   = "slack"
	ChannelSMTP    = "smtp"
)

// ChannelSpec configures one channel.
type ChannelSpec struct {
	Name string
	// Kind says which of the fields below is set: none of them for nats and log.
	Kind    string
	Webhook *WebhookSpec
	Slack   *SlackSpec
	SMTP    *SMTPSpec
	// Resolved says that resolved alerts are sent to the channel too.
	Resolved bool
}

// WebhookSpec is a receiver of Standard Webhooks.
type WebhookSpec struct {
	URL string
	// Secrets are the signing keys, the newest first. A message has one signature for each, so that keys can be rotated.
	Secrets [][]byte
}

// SlackSpec is an incoming webhook of Slack, Mattermost or another chat with the same format.
type SlackSpec struct{ URL string }

// SMTPSpec is a mail server.
type SMTPSpec struct {
	// Addr is host:port.
	Addr string
	// TLS is "starttls", "tls", or "none".
	TLS                string
	Username, Password string
	From               string
	To                 []string
}
