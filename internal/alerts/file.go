package alerts

import (
	"github.com/goccy/go-yaml/ast"

	"github.com/seed503877ad/limits/internal/yamlfile"
)

// File is an alerts file.
type File struct {
	// Throttle is how many alerts one user may be sent, of all rules together: 20 in 1h unless said. What is more goes into
	// a digest.
	Throttle *FileThrottle `json:"throttle,omitempty"`
	// Channels are where alerts can be sent. The channels nats and log are there without being named.
	Channels []FileChannel `json:"channels,omitempty"`
	// Rules say which events become alerts. Every rule that matches an event takes it.
	Rules []FileRule `json:"rules"`
}

// FileThrottle is a sliding limit of alerts for each user.
type FileThrottle struct {
	// Limit is how many alerts a window admits: 1 to 1000000000.
	Limit *int64 `json:"limit"`
	// Window is a duration from 1s to 31d (units s, m, h, d, w).
	Window string `json:"window"`
}

// FileChannel is one target: exactly one of webhook, slack and smtp, or none to say something of nats or log.
type FileChannel struct {
	// Name is how rules call it: 1 to 64 letters, digits and . _ -.
	Name string `json:"name"`
	// Webhook is a receiver of Standard Webhooks.
	Webhook *FileWebhook `json:"webhook,omitempty"`
	// Slack is an incoming webhook as Slack, Mattermost and others have it.
	Slack *FileSlack `json:"slack,omitempty"`
	// SMTP is a mail server.
	SMTP *FileSMTP `json:"smtp,omitempty"`
	// Resolved tells the channel of alerts that are over, too. True unless said, and false for slack and smtp.
	Resolved *bool `json:"resolved,omitempty"`
}

// FileWebhook is a receiver of Standard Webhooks.
type FileWebhook struct {
	// URL is where messages are posted: https://…, or env:NAME or file:/path, which hold it.
	URL Private `json:"url"`
	// Secrets are the keys that sign, the newest first: env:NAME or file:/path, each of which holds whsec_ and the base64 of
	// 24 to 64 bytes.
	Secrets Secrets `json:"secrets"`
}

// FileSlack is an incoming webhook.
type FileSlack struct {
	// URL is where messages are posted: https://…, or env:NAME or file:/path, which hold it.
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
	// Password is env:NAME or file:/path, which hold it.
	Password Private `json:"password,omitempty"`
	// TLS is "starttls" unless said, "tls" for a port that speaks TLS from the first byte, or "none".
	TLS string `json:"tls,omitempty"`
}

// FileRule says which events become alerts, and who is told.
type FileRule struct {
	// Name is how alerts call it: 1 to 64 letters, digits and . _ -.
	Name string `json:"name"`
	// Match selects events; all denials unless said.
	Match *FileMatch `json:"match,omitempty"`
	// Threshold opens an alert: 5 denials within 10m unless said, and 1 for a rule of warnings only.
	Threshold *FileThreshold `json:"threshold,omitempty"`
	// Severity is info, warning or critical; warning unless said.
	Severity string `json:"severity,omitempty"`
	// GroupBy names what makes events the same alert: user, policy (the key where there is none), window, key, name. User,
	// policy and window unless said.
	GroupBy []string `json:"groupBy,omitempty"`
	// Dedup is how long an alert stays open at least, 1s to 31d: what comes within it is no other alert. 10m unless said.
	Dedup string `json:"dedup,omitempty"`
	// ResolveAfter is how long there is no denial before the alert is over, 30s to 31d; the threshold's within unless said.
	ResolveAfter string `json:"resolveAfter,omitempty"`
	// Throttle is how many alerts of this rule one user may be sent, besides the throttle for all rules.
	Throttle *FileThrottle `json:"throttle,omitempty"`
	// Channels are names of channels; nats and log unless said.
	Channels Texts `json:"channels,omitempty"`
	// Title is a template of the alert's title.
	Title Template `json:"title,omitempty"`
	// Text is a template of the alert's text, which may have several lines.
	Text Template `json:"text,omitempty"`
	// QuietHours are when alerts are not sent but held for a digest.
	QuietHours []FileQuiet `json:"quietHours,omitempty"`
}

// FileMatch selects events. Each field is one text or a list of which one has to fit; all fields have to. In a text * stands
// for any number of characters.
type FileMatch struct {
	// Type is exceeded (limits.exceeded) or warning (limits.warning); exceeded unless said.
	Type Texts `json:"type,omitempty"`
	// Policy is the policy; that of an inline limit is empty, which * fits.
	Policy Texts `json:"policy,omitempty"`
	// Key is what is limited, such as api:user:7.
	Key Texts `json:"key,omitempty"`
	// User is whom it is about.
	User Texts `json:"user,omitempty"`
}

// FileThreshold is so many denials within a time.
type FileThreshold struct {
	// Denials opens an alert; a warning counts as one. 5 unless said, and 1 for a rule of warnings only.
	Denials *int64 `json:"denials,omitempty"`
	// Within is a duration from 1s to 7d; 10m unless said. Below 10s it counts wrongly, because each counter tells of its
	// denials every 10s, in one event.
	Within string `json:"within,omitempty"`
}

// FileQuiet is a time of day on some days.
type FileQuiet struct {
	// Days are those on which it begins: mon, tue, wed, thu, fri, sat, sun, or from one to another, such as mon-fri. All
	// unless said.
	Days Texts `json:"days,omitempty"`
	// From and To are what the clock shows, "HH:MM"; To may be 24:00. A time that ends before it begins ends the next day.
	From string `json:"from"`
	To   string `json:"to"`
	// Timezone is an IANA zone; UTC unless said.
	Timezone string `json:"timezone,omitempty"`
}

// Texts is one text or a list of them.
type Texts []string

// ReadYAML reads one text, or a list.
func (l *Texts) ReadYAML(p *yamlfile.Problems, n ast.Node, path string) { p.OneOrMany(n, l, path) }

// Private is a text that may be secret. No message shows it.
type Private string

// Secrets is one secret or a list of them.
type Secrets []Private

// ReadYAML reads one secret, or a list.
func (l *Secrets) ReadYAML(p *yamlfile.Problems, n ast.Node, path string) { p.OneOrMany(n, l, path) }

// Template is text in the language of Go's text/template, which may have several lines.
type Template string

// ReadYAML reads lines.
func (t *Template) ReadYAML(p *yamlfile.Problems, n ast.Node, path string) {
	*t = Template(p.Lines(n, path))
}
