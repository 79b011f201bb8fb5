package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/policy"
)

const (
	// defaultAlertPage is how many alerts, ended silences or deliveries a page has by default.
	defaultAlertPage = 50
	// poisonShown bounds the poison messages on a page; each may have 4 KiB.
	poisonShown = 50
	// maxDeliveryID bounds the id of a delivery, which consists of the alert's id, the kind of
	// message, and the channel, together with a poisonCursor.
	maxDeliveryID = 512
)

func (s *Service) listAlerts(ctx context.Context, data []byte) (any, error) {
	f, err := decodeListAlerts(data)
	if err != nil {
		return nil, err
	}
	max := f.Max
	f.Max++ // one more tells whether another page follows
	all, err := s.cfg.Alerts.Store.Alerts(ctx, f)
	if err != nil {
		return nil, err
	}
	page, more := cut(all, max)
	reply := limits.AlertList{Alerts: wireAll(page, WireAlert)}
	for i := range reply.Alerts {
		reply.Alerts[i].Text = ""
	}
	if more {
		last := &page[len(page)-1]
		reply.Next = alertCursor(last.RaisedAt, last.ID)
	}
	return reply, nil
}

func decodeListAlerts(data []byte) (alerts.AlertFilter, error) {
	f := alerts.AlertFilter{Max: defaultAlertPage}
	err := readFields(data,
		text("user", &f.User, 0, limits.MaxKeyBytes),
		text("rule", &f.Rule, 0, limits.MaxKeyBytes),
		text("policy", &f.Policy, 0, limits.MaxKeyBytes),
		boolean("open", &f.OpenOnly),
		parsed("after", func(after string) error { return parseAlertCursor(after, &f) }),
		number("max", &f.Max, 1, limits.MaxAlertPage))
	return f, err
}

// alertCursorCut separates time and id in the next of a page of alerts or silences.
const alertCursorCut = "/"

func alertCursor(at int64, id string) string { return strconv.FormatInt(at, 10) + alertCursorCut + id }

func parseAlertCursor(after string, f *alerts.AlertFilter) error {
	if after == "" {
		return nil
	}
	at, id, _ := strings.Cut(after, alertCursorCut)
	millis, err := strconv.ParseInt(at, 10, 64)
	if _, bad := policy.Unprintable(id); err != nil || bad || millis < 1 || millis > maxTime ||
		id == "" || len(id) > limits.MaxIDBytes {
		return invalid("after", "after %s is not a valid cursor; want next from the previous page", quoteText(after))
	}
	f.Before, f.BeforeID = millis, id
	return nil
}

func (s *Service) showAlert(ctx context.Context, data []byte) (any, error) {
	id, err := decodeAlertID(data, limits.SubjectAlertsList+" (limiter alerts list) lists alerts")
	if err != nil {
		return nil, err
	}
	a, found, all, err := s.cfg.Alerts.Show(ctx, id)
	if err != nil {
		return nil, alertError(id, err)
	}
	reply := limits.AlertDetails{Deliveries: wireDeliveries(all)}
	if found {
		w := WireAlert(&a)
		reply.Alert = &w
	}
	return reply, nil
}

// decodeAlertID reads a request that has only an id. hint says where to find ids.
func decodeAlertID(data []byte, hint string) (id string, err error) {
	err = readFields(data, text("id", &id, 1, limits.MaxIDBytes))
	if err == nil && id == "" {
		err = invalid("id", "id is missing; %s", hint)
	}
	return id, err
}

func (s *Service) silence(ctx context.Context, data []byte) (any, error) {
	silence, lasts, err := s.decodeSilence(data)
	if err != nil {
		return nil, err
	}
	silence, err = s.cfg.Alerts.Silence(ctx, silence, lasts)
	if err != nil {
		return nil, alertError("", err)
	}
	s.cfg.Logger.Info("alerts silenced", "silence", silence.ID, "rule", silence.Rule, "policy", silence.Policy,
		"key", silence.Key, "user", silence.User, "for", lasts, "by", silence.By, "reason", silence.Reason)
	return limits.SilenceReply{Silence: limits.Silence(silence)}, nil
}

// decodeSilence reads a silence and how long it lasts.
func (s *Service) decodeSilence(data []byte) (silence alerts.Silence, lasts time.Duration, err error) {
	var millis, until int64
	err = readFields(data,
		text("rule", &silence.Rule, 1, limits.MaxKeyBytes),
		text("policy", &silence.Policy, 1, limits.MaxKeyBytes),
		text("key", &silence.Key, 1, limits.MaxKeyBytes),
		text("user", &silence.User, 1, limits.MaxKeyBytes),
		number("for", &millis, 1, limits.MaxSilenceMillis),
		number("expiresAt", &until, 1, maxTime),
		text("reason", &silence.Reason, 1, limits.MaxReasonBytes),
		text("by", &silence.By, 0, limits.MaxNameBytes))
	switch {
	case err != nil:
		return silence, 0, err
	case millis != 0 && until != 0:
		return silence, 0, mixedForms("for", "for and expiresAt both say when the silence ends; give one of them")
	case until != 0:
		millis = until - s.now().UnixMilli()
	}
	// Bounded before the conversion, because a duration overflows after 292 years.
	lasts = time.Duration(min(millis, limits.MaxSilenceMillis+1)) * time.Millisecond
	if field, err := silence.Validate(lasts); err != nil {
		return silence, 0, invalid(field, "%s", err)
	}
	return silence, lasts, nil
}

func (s *Service) unsilence(ctx context.Context, data []byte) (any, error) {
	id, err := decodeAlertID(data, limits.SubjectAlertsSilences+" (limiter alerts silences) lists silences")
	if err != nil {
		return nil, err
	}
	silence, err := s.cfg.Alerts.Unsilence(ctx, id)
	if err != nil {
		return nil, alertError(id, err)
	}
	s.cfg.Logger.Info("silence ended", "silence", id)
	return limits.SilenceReply{Silence: limits.Silence(silence)}, nil
}

func (s *Service) listSilences(ctx context.Context, data []byte) (any, error) {
	all, max := false, 0
	var from alerts.AlertFilter // the page is cut here: the store pages silences only by a maximum
	err := readFields(data,
		boolean("all", &all),
		parsed("after", func(after string) error { return parseAlertCursor(after, &from) }),
		number("max", &max, 1, limits.MaxSilences))
	if err != nil {
		return nil, err
	}
	switch {
	case max > 0:
	case all:
		max = defaultAlertPage
	default:
		max = limits.MaxSilences // a silence that is not listed could not be ended
	}
	silences, err := s.cfg.Alerts.Store.Silences(ctx, all, 2*limits.MaxSilences) // silences that are made concurrently may exceed the bound
	if err != nil {
		return nil, err
	}
	for len(silences) > 0 && from.Before > 0 && cmp.Or(cmp.Compare(silences[0].CreatedAt, from.Before), cmp.Compare(silences[0].ID, from.BeforeID)) >= 0 {
		silences = silences[1:]
	}
	page, more := cut(silences, max)
	reply := limits.SilenceList{Silences: wireAll(page, func(x *alerts.Silence) limits.Silence { return limits.Silence(*x) })}
	if more {
		last := &page[len(page)-1]
		reply.Next = alertCursor(last.CreatedAt, last.ID)
	}
	return reply, nil
}

func (s *Service) testAlert(ctx context.Context, data []byte) (any, error) {
	channel, note, err := decodeTestAlert(data)
	if err != nil {
		return nil, err
	}
	id, channels, err := s.cfg.Alerts.Test(ctx, channel, note)
	if err != nil {
		return nil, alertError(channel, err)
	}
	s.cfg.Logger.Info("channel test requested", "channels", channels)
	return limits.TestAlertReply{ID: id, Channels: channels}, nil
}

func decodeTestAlert(data []byte) (channel, note string, err error) {
	err = readFields(data, text("channel", &channel, 1, limits.MaxNameBytes), text("note", &note, 0, limits.MaxNoteBytes))
	return channel, note, err
}

func (s *Service) listChannels(ctx context.Context, data []byte) (any, error) {
	if err := readFields(data); err != nil {
		return nil, err
	}
	all, err := s.cfg.Alerts.Channels(ctx)
	if err != nil {
		return nil, err
	}
	return limits.ChannelList{Channels: wireAll(all, wireChannel)}, nil
}

func wireChannel(c *alerts.ChannelStatus) limits.AlertChannel {
	w := limits.AlertChannel{Name: c.Name, Kind: c.Kind, Host: c.Host, Waiting: c.Waiting, Breaker: c.Breaker, LastError: c.LastError}
	if !c.PausedUntil.IsZero() {
		w.PausedUntil = c.PausedUntil.UnixMilli()
	}
	if c.Disabled != nil {
		w.DisabledAt, w.DisabledReason = c.Disabled.At, c.Disabled.Reason
	}
	return w
}

func alertError(what string, err error) error {
	unknown := func(code, field, format string) error {
		return &limits.Error{Status: 404, Code: code, Field: field, Message: fmt.Sprintf(format, what)}
	}
	switch {
	case errors.Is(err, alerts.ErrUnknownAlert):
		return unknown(limits.CodeUnknownAlert, "id",
			"no alert, digest or test with id %q; "+limits.SubjectAlertsList+" (limiter alerts list) lists alerts")
	case errors.Is(err, alerts.ErrUnknownSilence):
		return unknown(limits.CodeUnknownSilence, "id",
			"no active silence with id %q; "+limits.SubjectAlertsSilences+" (limiter alerts silences) lists them")
	case errors.Is(err, alerts.ErrUnknownRule):
		return &limits.Error{Status: 404, Code: limits.CodeUnknownRule, Field: "rule", Message: err.Error()}
	case errors.Is(err, alerts.ErrUnknownDelivery):
		return unknown(limits.CodeUnknownDelivery, "id",
			"no dead letter with id %q; "+limits.SubjectAlertsDead+" (limiter alerts dead) lists them")
	case errors.Is(err, alerts.ErrUnknownChannel):
		return unknown(limits.CodeUnknownChannel, "channel",
			"no channel named %q here; "+limits.SubjectAlertsChannels+" (limiter alerts channels) lists them")
	case errors.Is(err, alerts.ErrTooManySilences):
		return &limits.Error{Status: 409, Code: limits.CodeTooManySilences, Message: fmt.Sprintf(
			"%d silences are already active; end some, or replace several with one that uses a glob", limits.MaxSilences)}
	}
	return err
}

// WireAlert returns an alert as it is on the wire.
func WireAlert(a *alerts.Alert) limits.Alert {
	return limits.Alert{
		ID: a.ID, Rule: a.Rule, Severity: string(a.Severity), Event: a.Type, User: a.User, Policy: a.Policy, Name: a.Name,
		Key: a.Key, Window: a.Window, Limit: a.Limit, Denied: a.Denials(), Events: a.Events, FirstAt: a.FirstAt, LastAt: a.LastAt,
		RaisedAt: a.RaisedAt, ResolvedAt: a.ResolvedAt, ResolveAt: a.ResolveAt, Notice: string(a.Notice), Reason: a.Reason,
		NoticeAt: a.NoticeAt, HeldUntil: a.HeldUntil, Digest: a.Digest, Channels: append([]string{}, a.Channels...),
		Title: a.Title, Text: a.Text,
	}
}

func wireDeliveries(all []alerts.Delivery) []limits.AlertDelivery {
	return wireAll(all, func(d *alerts.Delivery) limits.AlertDelivery {
		w := limits.AlertDelivery{ID: d.ID, Channel: d.Channel, Type: string(d.Message.Kind), User: d.Message.User,
			Title: d.Message.Title, State: string(d.State), Attempts: d.Attempts, Error: d.Error,
			CreatedAt: d.CreatedAt, EndedAt: d.EndedAt}
		if d.State == alerts.DeliveryWaiting {
			w.DueAt = d.DueAt
		}
		return w
	})
}
