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

// The codes of errors about alerts: 404 for an unknown id or name, 409 if there are [MaxSilences] silences already.
const (
	CodeUnknownAlert    = "unknown_alert"
	CodeUnknownSilence  = "unknown_silence"
	CodeUnknownRule     = "unknown_rule"
	CodeUnknownChannel  = "unknown_channel"
	CodeUnknownDelivery = "unknown_delivery"
	CodeTooManySilences = "too_many_silences"
)

// Bounds of requests about alerts.
const (
	MaxAlertPage = 200  // alerts or deliveries in one reply
	MaxSilences  = 1000 // silences in force at a time, and silences in one reply
	MaxNoteBytes = 256  // note of a test
	// MaxSilenceMillis is how long a silence may last, in milliseconds: 366 days.
	MaxSilenceMillis = 366 * 24 * 3600 * 1000
)

// Alert is a series of events that met the condition of a rule. Times are Unix milliseconds.
type Alert struct {
	ID       string `json:"id"`
	Rule     string `json:"rule"`
	Severity string `json:"severity"`
	// Event is the type of the events that caused the alert: [EventExceeded] or [EventWarning].
	Event  string `json:"event"`
	User   string `json:"user,omitempty"`
	Policy string `json:"policy,omitempty"`
	// Name, Key, Window and Limit are those of the last of its events.
	Name   string `json:"name"`
	Key    string `json:"key"`
	Window string `json:"window"`
	Limit  int64  `json:"limit"`
	// Denied and Events count the denials and events since the alert began.
	Denied int64 `json:"denied"`
	Events int64 `json:"events"`
	// FirstAt and LastAt are the times of the first and last of its events.
	FirstAt  int64 `json:"firstAt"`
	LastAt   int64 `json:"lastAt"`
	RaisedAt int64 `json:"raisedAt"`
	// ResolvedAt is left out while the alert is open. ResolveAt is when it will be resolved unless another event comes first.
	ResolvedAt int64 `json:"resolvedAt,omitzero"`
	ResolveAt  int64 `json:"resolveAt"`
	// Notice is the state of the notification: pending, sent (handed to its channels; its deliveries say whether it
	// arrived), held (for a digest) or silenced.
	Notice string `json:"notice"`
	// Reason says why it was held or silenced.
	Reason string `json:"reason,omitempty"`
	// NoticeAt is when Notice last changed.
	NoticeAt int64 `json:"noticeAt,omitzero"`
	// HeldUntil is the time before which no digest includes the alert.
	HeldUntil int64 `json:"heldUntil,omitzero"`
	// Digest is the id of the digest that included it.
	Digest   string   `json:"digest,omitempty"`
	Channels []string `json:"channels"`
	Title    string   `json:"title"`
	// Text is left out in a list.
	Text string `json:"text,omitempty"`
}

// ListAlertsRequest is the body of admin.alerts.list. A field that is left out does not narrow the selection.
type ListAlertsRequest struct {
	User   string `json:"user,omitempty"`
	Rule   string `json:"rule,omitempty"`
	Policy string `json:"policy,omitempty"`
	// Open excludes alerts that were resolved.
	Open bool `json:"open,omitzero"`
	// After is the Next of the previous page.
	After string `json:"after,omitempty"`
	// Max is how many alerts a page holds: 50 by default, up to [MaxAlertPage].
	Max int `json:"max,omitzero"`
}

// AlertList is a page of alerts, the last raised first. Next is the After of the following page, and left out on the
// last page.
type AlertList struct {
	Alerts []Alert `json:"alerts"`
	Next   string  `json:"next,omitempty"`
}

// ShowAlertRequest is the body of admin.alerts.show.
type ShowAlertRequest struct {
	// ID is the id of an alert, a digest or a test.
	ID string `json:"id"`
}

// AlertDetails is an alert with its deliveries. A digest or a test has only deliveries.
type AlertDetails struct {
	Alert      *Alert          `json:"alert,omitempty"`
	Deliveries []AlertDelivery `json:"deliveries"`
}

// AlertDelivery is the delivery of one message to one channel. Times are Unix milliseconds.
type AlertDelivery struct {
	// ID is the id of the message, a slash, and the name of the channel.
	ID      string `json:"id"`
	Channel string `json:"channel"`
	// Type is the type of the event that a channel of kind nats publishes for it, such as [EventAlertRaised].
	Type  string `json:"type"`
	User  string `json:"user,omitempty"`
	Title string `json:"title"`
	// State is waiting, sent or dead (a dead letter: given up unless it is replayed).
	State string `json:"state"`
	// Attempts counts the attempts that have ended. Error is why the last one failed.
	Attempts  int    `json:"attempts"`
	Error     string `json:"error,omitempty"`
	CreatedAt int64  `json:"createdAt"`
	// DueAt is when the next attempt of a waiting delivery is due.
	DueAt int64 `json:"dueAt,omitzero"`
	// EndedAt is when the message was sent or given up.
	EndedAt int64 `json:"endedAt,omitzero"`
}

// SilenceRequest is the body of admin.alerts.silence. It selects alerts that are not sent for a while, by Rule, Policy, Key
// and User, which are exact values or globs with *. At least one is needed; those that are left out match every alert. Rule
// must fit a rule of the alerts file.
type SilenceRequest struct {
	Rule   string `json:"rule,omitempty"`
	Policy string `json:"policy,omitempty"`
	Key    string `json:"key,omitempty"`
	User   string `json:"user,omitempty"`
	// For is how long the silence lasts, in milliseconds, up to [MaxSilenceMillis].
	For int64 `json:"for,omitzero"`
	// ExpiresAt is when the silence ends, in Unix milliseconds. Give it or For, not both.
	ExpiresAt int64 `json:"expiresAt,omitzero"`
	// Reason says why, for people who find the silence later.
	Reason string `json:"reason"`
	// By says who created it.
	By string `json:"by,omitempty"`
}

// Silence keeps matching alerts from being sent. Times are Unix milliseconds.
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

// SilenceReply is a silence after it was created or ended.
type SilenceReply struct {
	Silence Silence `json:"silence"`
}

// UnsilenceRequest is the body of admin.alerts.unsilence.
type UnsilenceRequest struct {
	// ID is the id of the silence.
	ID string `json:"id"`
}

// ListSilencesRequest is the body of admin.alerts.silences.
type ListSilencesRequest struct {
	// All includes silences that have ended. Only the last created silences are listed then, at most twice [MaxSilences].
	All bool `json:"all,omitzero"`
	// After is the Next of the previous page.
	After string `json:"after,omitempty"`
	// Max is how many silences a page holds, up to [MaxSilences]. The default is [MaxSilences], or 50 with All.
	Max int `json:"max,omitzero"`
}

// SilenceList is a page of silences, the last created first. Next is the After of the following page, and left out on
// the last page.
type SilenceList struct {
	Silences []Silence `json:"silences"`
	Next     string    `json:"next,omitempty"`
}

// DeadRequest is the body of admin.alerts.dead.
type DeadRequest struct {
	// Channel selects the dead letters of one channel; all channels by default.
	Channel string `json:"channel,omitempty"`
	// After is the Next of the previous page.
	After string `json:"after,omitempty"`
	// Max is how many deliveries a page holds: 50 by default, up to [MaxAlertPage].
	Max int `json:"max,omitzero"`
}

// DeadLetters is a page of the deliveries that were given up, in the order of their ids. If no channel is selected, it
// also has events that the alerter could not process, the latest first; of both, the following page has those that come
// next. Next is the After of the following page, and left out on the last page.
type DeadLetters struct {
	Deliveries []AlertDelivery `json:"deliveries"`
	Poison     []PoisonMessage `json:"poison"`
	Next       string          `json:"next,omitempty"`
}

// PoisonMessage is a message of the stream [EventStream] that the alerter could not process.
type PoisonMessage struct {
	// Sequence is its sequence number in the stream. Messages of a stream that was deleted may have the same.
	Sequence uint64 `json:"sequence"`
	Subject  string `json:"subject"`
	Reason   string `json:"reason"`
	// Data is the beginning of the message, up to 4096 bytes, in JSON encoded as base64.
	Data []byte `json:"data"`
	// At is when it was set aside, in Unix milliseconds.
	At int64 `json:"at"`
}

// ReplayRequest is the body of admin.alerts.replay. It selects one dead letter, those of a channel, or all.
type ReplayRequest struct {
	ID      string `json:"id,omitempty"`
	Channel string `json:"channel,omitempty"`
	All     bool   `json:"all,omitzero"`
}

// ReplayReply says how many dead letters will be delivered again.
type ReplayReply struct {
	Replayed int64 `json:"replayed"`
}

// TestAlertRequest is the body of admin.alerts.test.
type TestAlertRequest struct {
	// Channel is the name of a channel; all channels by default.
	Channel string `json:"channel,omitempty"`
	// Note is included in the message.
	Note string `json:"note,omitempty"`
}

// TestAlertReply is the test that was queued for delivery. The request admin.alerts.show with its ID returns the outcome.
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

// AlertChannel is a target that alerts are sent to, and its state.
type AlertChannel struct {
	Name string `json:"name"`
	// Kind is nats, log, webhook, slack or smtp.
	Kind string `json:"kind"`
	// Host is the host that it sends to, without path and credentials.
	Host string `json:"host,omitempty"`
	// Waiting counts the deliveries that wait.
	Waiting int64 `json:"waiting"`
	// Breaker is the state of the circuit breaker in the process that answers: closed, open or half-open.
	Breaker string `json:"breaker,omitempty"`
	// PausedUntil is until when the process that answers sends nothing to the channel, because its target asked for a pause
	// with Retry-After, in Unix milliseconds; left out without a pause. A replay of the channel ends the pause in the
	// process that answers the replay.
	PausedUntil int64 `json:"pausedUntil,omitzero"`
	// LastError is why the last attempt in the process that answers failed; left out if it did not.
	LastError string `json:"lastError,omitempty"`
	// DisabledAt is when the target said that it is gone for good, in Unix milliseconds; left out if it did not. A replay of
	// the channel enables it again.
	DisabledAt     int64  `json:"disabledAt,omitzero"`
	DisabledReason string `json:"disabledReason,omitempty"`
}

// ListAlerts returns one page of alerts.
func (c *Client) ListAlerts(ctx context.Context, r ListAlertsRequest) (*AlertList, error) {
	return call[AlertList](ctx, c, SubjectAlertsList, r)
}

// ShowAlert returns an alert with its deliveries, or the deliveries of a digest or a test.
func (c *Client) ShowAlert(ctx context.Context, id string) (*AlertDetails, error) {
	return call[AlertDetails](ctx, c, SubjectAlertsShow, ShowAlertRequest{ID: id})
}

// SilenceAlerts keeps matching alerts from being sent for a while. They are still raised and listed.
func (c *Client) SilenceAlerts(ctx context.Context, r SilenceRequest) (*SilenceReply, error) {
	return call[SilenceReply](ctx, c, SubjectAlertsSilence, r)
}

// UnsilenceAlerts ends a silence now.
func (c *Client) UnsilenceAlerts(ctx context.Context, id string) (*SilenceReply, error) {
	return call[SilenceReply](ctx, c, SubjectAlertsUnsilence, UnsilenceRequest{ID: id})
}

// ListSilences returns one page of silences.
func (c *Client) ListSilences(ctx context.Context, r ListSilencesRequest) (*SilenceList, error) {
	return call[SilenceList](ctx, c, SubjectAlertsSilences, r)
}

// DeadLetters returns one page of the deliveries that were given up.
func (c *Client) DeadLetters(ctx context.Context, r DeadRequest) (*DeadLetters, error) {
	return call[DeadLetters](ctx, c, SubjectAlertsDead, r)
}

// ReplayAlerts queues dead letters to be delivered again, and enables their channels.
func (c *Client) ReplayAlerts(ctx context.Context, r ReplayRequest) (*ReplayReply, error) {
	return call[ReplayReply](ctx, c, SubjectAlertsReplay, r)
}

// TestAlert sends a test message to one channel, or to all.
func (c *Client) TestAlert(ctx context.Context, r TestAlertRequest) (*TestAlertReply, error) {
	return call[TestAlertReply](ctx, c, SubjectAlertsTest, r)
}

// ListChannels returns the channels and their state.
func (c *Client) ListChannels(ctx context.Context) (*ChannelList, error) {
	return call[ChannelList](ctx, c, SubjectAlertsChannels, ListChannelsRequest{})
}
