package alerts

import (
	"github.com/goccy/go-yaml/ast"

	"github.com/seed503877ad/limits/internal/yamlfile"
)

// File is an alerts file.
type File struct {
	// Throttle is how many alerts of all rules together may be sent to one user; default 20 in 1h. Further alerts go into a
	// digest.
	Throttle *FileThrottle `json:"throttle,omitempty"`
	// Channels are where alerts can be sent. The channels nats and log exist without being named.
	Channels []FileChannel `json:"channels,omitempty"`
	// Rules say which events become alerts. Every rule that matches an event counts it.
	Rules []FileRule `json:"rules"`
}

// FileThrottle is a sliding limit of alerts for each user.
type FileThrottle struct {
	// Limit is how many alerts are allowed in a window: 1 to 1000000000.
	Limit *int64 `json:"limit"`
	// Window is a duration from 1s to 31d (units ms, s, m, h, d, w).
	Window string `json:"window"`
}

// FileChannel is one target: exactly one of webhook, slack and smtp, or none of them to configure nats or log.
type FileChannel struct {
	// Name is the name by which rules refer to it: 1 to 64 letters, digits and . _ -.
	Name string `json:"name"`
	// Webhook is a receiver of Standard Webhooks.
	Webhook *FileWebhook `json:"webhook,omitempty"`
	// Slack is an incoming webhook of Slack, Mattermost or another chat with the same format.
	Slack *FileSlack `json:"slack,omitempty"`
	// SMTP is a mail server.
	SMTP *FileSMTP `json:"smtp,omitempty"`
	// Resolved says that resolved alerts are sent to the channel too. The default is true, and false for slack and smtp.
	Resolved *bool `json:"resolved,omitempty"`
}

// FileWebhook is a receiver of Standard Webhooks.
type FileWebhook struct {
	// URL is where messages are posted: https://…, or env:NAME or file:/path, which contain it.
	URL Private `json:"url"`
	// Secrets are the signing keys, the newest first: env:NAME or file:/path, each of which contains whsec_ and the base64 of
	// 24 to 64 bytes.
	Secrets Secrets `json:"secrets"`
}

// FileSlack is an incoming webhook.
type FileSlack struct {
	// URL is where messages are posted: https://…, or env:NAME or file:/path, which contain it.
	URL Private `json:"url"`
}

// FileSMTP is a mail server.
type FileSMTP struct {
	// Addr is host:port.
	Addr string `json:"addr"`
	// From is the sender's address.
	From string `json:"from"`
	// To are 1 to 20 addresses.
	To Texts `json:"to"`
	// Username is given together with password.
	Username string `json:"username,omitempty"`
	// Password is env:NAME or file:/path, which contain it.
	Password Private `json:"password,omitempty"`
	// TLS is "starttls" (the default), "tls" for a port that uses TLS from the first byte, or "none".
	TLS string `json:"tls,omitempty"`
}

// FileRule says which events become alerts, and to which channels they are sent.
type FileRule struct {
	// Name is in its alerts: 1 to 64 letters, digits and . _ -.
	Name string `json:"name"`
	// Match selects events; default all denials.
	Match *FileMatch `json:"match,omitempty"`
	// Threshold raises an alert; default 5 denials within 10m, or 1 for a rule of warnings only.
	Threshold *FileThreshold `json:"threshold,omitempty"`
	// Severity is info, warning (the default) or critical.
	Severity string `json:"severity,omitempty"`
	// GroupBy are the fields that events of one alert have in common: user, policy (the key of an inline limit), window, key,
	// name. Default user, policy and window.
	GroupBy []string `json:"groupBy,omitempty"`
	// Dedup is how long an alert stays open at least, 1s to 31d; events meanwhile update it. Default 10m.
	Dedup string `json:"dedup,omitempty"`
	// ResolveAfter is how long there must be no denial before an alert is resolved, 30s to 31d; default the threshold's within,
	// but 30s at least.
	ResolveAfter string `json:"resolveAfter,omitempty"`
	// Throttle is how many alerts of this rule may be sent to one user, in addition to the throttle for all rules.
	Throttle *FileThrottle `json:"throttle,omitempty"`
	// Channels are names of channels; default nats and log.
	Channels Texts `json:"channels,omitempty"`
	// Title is a template of the alert's title.
	Title Template `json:"title,omitempty"`
	// Text is a template of the alert's text, which may have several lines.
	Text Template `json:"text,omitempty"`
	// QuietHours are when alerts are not sent but held for a digest.
	QuietHours []FileQuiet `json:"quietHours,omitempty"`
}

// FileMatch selects events. Each field is one text, or a list one of which must match; all given fields must match. In a text
// * stands for any number of characters.
type FileMatch struct {
	// Type is exceeded (limits.exceeded, the default) or warning (limits.warning).
	Type Texts `json:"type,omitempty"`
	// Policy is the name of the policy. It is empty for an inline limit, which * matches.
	Policy Texts `json:"policy,omitempty"`
	// Key is the limited key, such as api:user:7.
	Key Texts `json:"key,omitempty"`
	// User is the user of the event.
	User Texts `json:"user,omitempty"`
}

// FileThreshold is a number of denials within a time.
type FileThreshold struct {
	// Denials is the number; a warning counts as one. Default 5, or 1 for a rule of warnings only.
	Denials *int64 `json:"denials,omitempty"`
	// Within is a duration from 1s to 7d; default 10m. Below 10s it counts wrongly, because each counter reports its denials
	// every 10s, in one event.
	Within string `json:"within,omitempty"`
}

// FileQuiet is a time of day on some days.
type FileQuiet struct {
	// Days are the days on which it begins: mon, tue, wed, thu, fri, sat, sun, or a range such as mon-fri. Default all.
	Days Texts `json:"days,omitempty"`
	// From and To are local times "HH:MM"; To may be 24:00. If To is earlier than From, it is on the next day.
	From string `json:"from"`
	To   string `json:"to"`
	// Timezone is an IANA time zone; default UTC.
	Timezone string `json:"timezone,omitempty"`
}

// Texts is one text or a list of them.
type Texts []string

// ReadYAML reads one text, or a list.
func (l *Texts) ReadYAML(p *yamlfile.Problems, n ast.Node, path string) { p.OneOrMany(n, l, path) }

// Private is a text that may be secret. No error shows it.
type Private string

// Secrets is one secret or a list of them.
type Secrets []Private

// ReadYAML reads one secret, or a list.
func (l *Secrets) ReadYAML(p *yamlfile.Problems, n ast.Node, path string) { p.OneOrMany(n, l, path) }

// Template is a text in the language of Go's text/template. It may have several lines.
type Template string

// ReadYAML reads lines.
func (t *Template) ReadYAML(p *yamlfile.Problems, n ast.Node, path string) {
	*t = Template(p.Lines(n, path))
}
