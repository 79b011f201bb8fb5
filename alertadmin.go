package limits

import "context"

// The subjects of alerts.
const (
	SubjectAlertsList      = "limits.admin.alerts.list"
	SubjectAlertsShow      = "limits.admin.alerts.show"
	SubjectAlertsSilence   = "limits.admin.alerts.silence"
	SubjectAlertsUnsilence = "limits.admin.alerts.unsilence"
	SubjectAlertsSilences  = "limits.admin.alerts.silences"
	SubjectAlertsDead      = "limits.admin.alerts.dead"
	SubjectAlertsReplay    = "limits.admin.alerts.replay"
	SubjectAlertsTest      = "limits.admin.alerts.test"
	SubjectAlertsChannels  = "limits.admin.alerts.channels"
)

// The codes of errors about alerts: 404 for what is not there, 409 for one silence too many.
const (
	CodeUnknownAlert    = "unknown_alert"
	CodeUnknownSilence  = "unknown_silence"
	CodeUnknownChannel  = "unknown_channel"
	CodeUnknownDelivery = "unknown_delivery"
	CodeTooManySilences = "too_many_silences"
)

// Bounds of requests about alerts.
const (
	MaxAlertPage = 200  // alerts or deliveries in one reply
	MaxSilences  = 1000 // silences that hold at a time, and silences in one reply
	MaxNoteBytes = 256  // note of a test
	// MaxSilenceMillis is how long a silence may last: 366 days.
	MaxSilenceMillis = 366 * 24 * 3600 * 1000
)

// Alert is a run of events that a rule asks for. Times are Unix milliseconds.
type Alert struct {
	ID       string `json:"id"`
	Rule     string `json:"rule"`
	Severity string `json:"severity"`
	// Event is the type of the events behind it: [EventExceeded] or [EventWarning].
	Event  string `json:"event"`
	User   string `json:"user,omitempty"`
	Policy string `json:"policy,omitempty"`
	// Name, Key, Window and Limit are those of the last of its events.
	Name   string `json:"name"`
	Key    string `json:"key"`
	Window string `json:"window"`
	Limit  int64  `json:"limit"`
	// Denied and Events count what came since it began.
	Denied int64 `json:"denied"`
	Events int64 `json:"events"`
	// FirstAt and LastAt are when the first and the last of its events were.
	FirstAt  int64 `json:"firstAt"`
	LastAt   int64 `json:"lastAt"`
	RaisedAt int64 `json:"raisedAt"`
	// ResolvedAt is left out while the alert is open; ResolveAt is when it will be resolved if no event comes before.
	ResolvedAt int64 `json:"resolvedAt,omitzero"`
	ResolveAt  int64 `json:"resolveAt"`
	// Notice says whether somebody is told: pending, sent (handed to its channels; how far they are its deliveries say), held (it goes into
	// a digest) or silenced.
	Notice string `json:"notice"`
	// Reason says why it was held or silenced.
	Reason    string `json:"reason,omitempty"`
	NoticeAt  int64  `json:"noticeAt,omitzero"`
	HeldUntil int64  `json:"heldUntil,omitzero"`
	// Digest is the one that told of it.
	Digest   string   `json:"digest,omitempty"`
	Channels []string `json:"channels"`
	Title    string   `json:"title"`
	// Text is left out of a list.
	Text string `json:"text,omitempty"`
}

// ListAlertsRequest is the body of admin.alerts.list. Fields that are left out select all.
type ListAlertsRequest struct {
	User   string `json:"user,omitempty"`
	Rule   string `json:"rule,omitempty"`
	Policy string `json:"policy,omitempty"`
	// Open leaves out alerts that were resolved.
	Open bool `json:"open,omitzero"`
	// After is the Next of the page before.
	After string `json:"after,omitempty"`
	// Max is how many alerts a page holds: 50 unless said, up to [MaxAlertPage].
	Max int `json:"max,omitzero"`
}

// AlertList is a page of alerts, the last raised first. Next, when there, is the After of the page that follows.
type AlertList struct {
	Alerts []Alert `json:"alerts"`
	Next   string  `json:"next,omitempty"`
}

// ShowAlertRequest is the body of admin.alerts.show.
type ShowAlertRequest struct {
	// ID is that of an alert, of a digest or of a test.
	ID string `json:"id"`
}

// AlertDetails are an alert and who was told of it. A digest and a test have deliveries alone.
type AlertDetails struct {
	Alert      *Alert          `json:"alert,omitempty"`
	Deliveries []AlertDelivery `json:"deliveries"`
}

// AlertDelivery is a message on its way to one channel. Times are Unix milliseconds.
type AlertDelivery struct {
	// ID is the message's id, a slash, and the channel.
	ID      string `json:"id"`
	Channel string `json:"channel"`
	// Type is the type of the event that it is on the channel of kind nats, such as [EventAlertRaised].
	Type  string `json:"type"`
	User  string `json:"user,omitempty"`
	Title string `json:"title"`
	// State is waiting, sent or dead (given up, until it is replayed).
	State string `json:"state"`
	// Attempts counts the tries that ended; Error is why the last one failed.
	Attempts  int    `json:"attempts"`
	Error     string `json:"error,omitempty"`
	CreatedAt int64  `json:"createdAt"`
	// DueAt is when the next try is, of one that waits.
	DueAt int64 `json:"dueAt,omitzero"`
	// EndedAt is when it was sent or given up.
	EndedAt int64 `json:"endedAt,omitzero"`
}

// SilenceRequest is the body of admin.alerts.silence: which alerts nobody is told of for a while. The matchers are exact,
// or globs with *; those left out fit all, and at least one is needed.
type SilenceRequest struct {
	Rule   string `json:"rule,omitempty"`
	Policy string `json:"policy,omitempty"`
	Key    string `json:"key,omitempty"`
	User   string `json:"user,omitempty"`
	// For is how long it lasts, in milliseconds, up to [MaxSilenceMillis].
	For int64 `json:"for,omitzero"`
	// ExpiresAt is when it ends, in Unix milliseconds, instead of For.
	ExpiresAt int64 `json:"expiresAt,omitzero"`
	// Reason says why, for who finds the silence later.
	Reason string `json:"reason"`
	// By says who made it.
	By string `json:"by,omitempty"`
}

// Silence keeps alerts from being told. Times are Unix milliseconds.
type Silence struct {
	ID        string `json:"id"`
	Rule      string `json:"rule,omitempty"`
	Policy    string `json:"policy,omitempty"`
	Key       string `json:"key,omitempty"`
	User      string `json:"user,omitempty"`
	Reason    string `json:"reason"`
	By        string `json:"by,omitempty"`
	CreatedAt int64  `json:"createdAt"`
	ExpiresAt int64  `json:"expiresAt"`
}

// SilenceReply is a silence as it is after a change.
type SilenceReply struct {
	Silence Silence `json:"silence"`
}

// UnsilenceRequest is the body of admin.alerts.unsilence.
type UnsilenceRequest struct {
	// ID is that of the silence.
	ID string `json:"id"`
}

// ListSilencesRequest is the body of admin.alerts.silences.
type ListSilencesRequest struct {
	// All lists those that have ended too: of the last made, twice [MaxSilences] at most.
	All bool `json:"all,omitzero"`
	// After is the Next of the page before.
	After string `json:"after,omitempty"`
	// Max is how many a page holds, up to [MaxSilences]; as many unless said, or 50 with All.
	Max int `json:"max,omitzero"`
}

// SilenceList is a page of silences, the last made first. Next, when there, is the After of the page that follows.
type SilenceList struct {
	Silences []Silence `json:"silences"`
	Next     string    `json:"next,omitempty"`
}

// DeadRequest is the body of admin.alerts.dead.
type DeadRequest struct {
	// Channel selects the dead letters of one channel; those of all unless said.
	Channel string `json:"channel,omitempty"`
	// After is the Next of the page before.
	After string `json:"after,omitempty"`
	// Max is how many deliveries a page holds: 50 unless said, up to [MaxAlertPage].
	Max int `json:"max,omitzero"`
}

// DeadLetters are deliveries that were given up, in order of their ids, and, on the first page of all channels, the last
// messages of the stream of events that could not be taken.
type DeadLetters struct {
	Deliveries []AlertDelivery `json:"deliveries"`
	Poison     []PoisonMessage `json:"poison"`
	Next       string          `json:"next,omitempty"`
}

// PoisonMessage is a message of the stream [EventStream] that could not be taken.
type PoisonMessage struct {
	// Sequence is its place in the stream.
	Sequence uint64 `json:"sequence"`
	Subject  string `json:"subject"`
	Reason   string `json:"reason"`
	// Data is its beginning, up to 4096 bytes; in JSON it is in base64.
	Data []byte `json:"data"`
	// At is when it was put aside, in Unix milliseconds.
	At int64 `json:"at"`
}

// ReplayRequest is the body of admin.alerts.replay: one delivery, those of a channel, or all.
type ReplayRequest struct {
	ID      string `json:"id,omitempty"`
	Channel string `json:"channel,omitempty"`
	All     bool   `json:"all,omitzero"`
}

// ReplayReply says how many dead letters wait again.
type ReplayReply struct {
	Replayed int64 `json:"replayed"`
}

// TestAlertRequest is the body of admin.alerts.test.
type TestAlertRequest struct {
	// Channel is the name of the channel; all unless said.
	Channel string `json:"channel,omitempty"`
	// Note stands in the message.
	Note string `json:"note,omitempty"`
}

// TestAlertReply is the test that was put into the outbox: admin.alerts.show of its ID tells how it ended.
type TestAlertReply struct {
	ID       string   `json:"id"`
	Channels []string `json:"channels"`
}

// ListChannelsRequest is the body of admin.alerts.channels: an empty object.
type ListChannelsRequest struct{}

// ChannelList is the reply of admin.alerts.channels.
type ChannelList struct {
	Channels []AlertChannel `json:"channels"`
}

// AlertChannel is where alerts are sent to.
type AlertChannel struct {
	Name string `json:"name"`
	// Kind is nats, log, webhook, slack or smtp.
	Kind string `json:"kind"`
	// Host is the host it sends to, without path and credentials.
	Host string `json:"host,omitempty"`
	// Waiting counts the deliveries that wait.
	Waiting int64 `json:"waiting"`
	// Breaker is the state of the circuit breaker on the process that answers: closed, open or half-open.
	Breaker string `json:"breaker,omitempty"`
	// PausedUntil is up to when the process that answers leaves the channel alone because its target asked for that by
	// Retry-After, in Unix milliseconds; left out when it does not. A replay of the channel ends the pause in the process that
	// answers it.
	PausedUntil int64 `json:"pausedUntil,omitzero"`
	// LastError is why the last try on the process that answers failed; left out when it did not.
	LastError string `json:"lastError,omitempty"`
	// DisabledAt is when the target said that it is gone, in Unix milliseconds; left out when it did not. A replay of the
	// channel enables it.
	DisabledAt     int64  `json:"disabledAt,omitzero"`
	DisabledReason string `json:"disabledReason,omitempty"`
}

// ListAlerts gives one page of alerts.
func (c *Client) ListAlerts(ctx context.Context, r ListAlertsRequest) (*AlertList, error) {
	return call[AlertList](ctx, c, SubjectAlertsList, r)
}

// ShowAlert gives an alert with its deliveries.
func (c *Client) ShowAlert(ctx context.Context, id string) (*AlertDetails, error) {
	return call[AlertDetails](ctx, c, SubjectAlertsShow, ShowAlertRequest{ID: id})
}

// SilenceAlerts keeps alerts from being told for a while. They are raised and listed all the same.
func (c *Client) SilenceAlerts(ctx context.Context, r SilenceRequest) (*SilenceReply, error) {
	return call[SilenceReply](ctx, c, SubjectAlertsSilence, r)
}

// UnsilenceAlerts ends a silence now.
func (c *Client) UnsilenceAlerts(ctx context.Context, id string) (*SilenceReply, error) {
	return call[SilenceReply](ctx, c, SubjectAlertsUnsilence, UnsilenceRequest{ID: id})
}

// ListSilences gives the silences.
func (c *Client) ListSilences(ctx context.Context, r ListSilencesRequest) (*SilenceList, error) {
	return call[SilenceList](ctx, c, SubjectAlertsSilences, r)
}

// DeadLetters gives one page of what could not be delivered.
func (c *Client) DeadLetters(ctx context.Context, r DeadRequest) (*DeadLetters, error) {
	return call[DeadLetters](ctx, c, SubjectAlertsDead, r)
}

// ReplayAlerts lets dead letters be delivered again, and enables their channels.
func (c *Client) ReplayAlerts(ctx context.Context, r ReplayRequest) (*ReplayReply, error) {
	return call[ReplayReply](ctx, c, SubjectAlertsReplay, r)
}

// TestAlert sends a test to one channel, or to all.
func (c *Client) TestAlert(ctx context.Context, r TestAlertRequest) (*TestAlertReply, error) {
	return call[TestAlertReply](ctx, c, SubjectAlertsTest, r)
}

// ListChannels gives the channels and their state.
func (c *Client) ListChannels(ctx context.Context) (*ChannelList, error) {
	return call[ChannelList](ctx, c, SubjectAlertsChannels, ListChannelsRequest{})
}
