package alerts

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/glob"
)

// Rules is an alerts file as it is in force: names are resolved, secrets are read, globs and templates are compiled. It is
// never changed.
type Rules struct {
	// Rules are asked in order; every one that matches an event takes it.
	Rules []Rule
	// Throttle holds for all rules together; its Name is empty.
	Throttle Throttle
	// Channels are those that rules may name, in order.
	Channels []ChannelSpec
}

// Rule says which events become alerts, and who is told.
type Rule struct {
	Name  string
	Match Match
	// Threshold denials within Within open an alert; a warning counts as one.
	Threshold int64
	Within    time.Duration
	Severity  Severity
	// GroupBy names what makes alerts the same: user, policy (which is the key where there is none), window, key, name.
	GroupBy []string
	// Dedup is how long an alert stays open at least: what comes within it is no other alert.
	Dedup time.Duration
	// ResolveAfter is how long there is no denial before it is resolved.
	ResolveAfter time.Duration
	// Throttle is one of the rule's own, with its name, charged beside the one for all; nil for none.
	Throttle *Throttle
	// Channels are names of channels.
	Channels []string
	// Quiet is when alerts are held for the digest.
	Quiet []QuietHours
	// Words make title and text.
	Words Words
}

// Match selects events: each list that is not empty must have one that fits, exact or a glob with *.
type Match struct {
	Types, Policies, Keys, Users []string
}

func (m *Match) fits(e *Event) bool {
	fits := func(patterns []string, s string) bool { return len(patterns) == 0 || glob.Any(patterns, s) }
	return fits(m.Types, e.Type) && fits(m.Policies, e.Policy) && fits(m.Keys, e.Key) && fits(m.Users, e.User)
}

// eventsApart is the time between two events of a counter that goes on denying.
const eventsApart = 10 * time.Second

// Doubts gives the rules that may count wrongly, by name, and why.
func (r *Rules) Doubts() iter.Seq2[string, string] {
	return func(yield func(rule, why string) bool) {
		for i := range r.Rules {
			one := &r.Rules[i]
			if one.Threshold < 2 || one.Within >= eventsApart || !slices.Contains(one.Match.Types, limits.EventExceeded) {
				continue
			}
			if !yield(one.Name, fmt.Sprintf("it counts denials within %s, but a counter reports those of %s in one event, so it counts too many or too few",
				one.Within, eventsApart)) {
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

// ChannelSpec is one target.
type ChannelSpec struct {
	Name string
	// Kind says which of the others is set; none is for nats and log.
	Kind    string
	Webhook *WebhookSpec
	Slack   *SlackSpec
	SMTP    *SMTPSpec
	// Resolved says that the channel is told of alerts that were resolved.
	Resolved bool
}

// WebhookSpec is a target of Standard Webhooks.
type WebhookSpec struct {
	URL string
	// Secrets are the keys that sign, the newest first; each makes a signature of its own, so that they can be rotated.
	Secrets [][]byte
}

// SlackSpec is an incoming webhook as Slack, Mattermost and others take it.
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
