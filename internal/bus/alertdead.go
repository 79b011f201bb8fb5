package bus

import (
	"bytes"
	"context"
	"time"

	limits "github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

// Dead letters, and how requests about alerts are read.

func (s *Service) deadLetters(ctx context.Context, data []byte) (any, error) {
	f, err := decodeDead(data)
	if err != nil {
		return nil, err
	}
	max, first := f.Max, f.After == "" && f.Channel == ""
	f.Max++
	dead, err := s.cfg.Alerts.Dead(ctx, f)
	if err != nil {
		return nil, err
	}
	reply := limits.DeadLetters{Deliveries: wireDeliveries(dead[:min(len(dead), max)]), Poison: []limits.PoisonMessage{}}
	if len(dead) > max {
		reply.Next = dead[max-1].ID
	}
	if !first {
		return reply, nil
	}
	poison, err := s.cfg.Alerts.Poisoned(ctx, min(max, poisonShown))
	for _, p := range poison {
		reply.Poison = append(reply.Poison, limits.PoisonMessage(p))
	}
	return reply, err
}

func (s *Service) replay(ctx context.Context, data []byte) (any, error) {
	f, err := decodeReplay(data)
	if err != nil {
		return nil, err
	}
	n, err := s.cfg.Alerts.Replay(ctx, f)
	if err != nil {
		return nil, alertError(f.ID+f.Channel, err)
	}
	s.cfg.Logger.Info("dead letters replayed", "delivery", f.ID, "channel", f.Channel, "count", n)
	return limits.ReplayReply{Replayed: int64(n)}, nil
}

// copied reads a text that outlives the next read.
func (r *reader) copied(field string, min, max int) ([]byte, error) {
	b, err := r.printable(field, min, max)
	return bytes.Clone(b), err
}

// words reads members that are texts, by name; known is false for another member.
func (r *reader) words(name []byte, fields map[string]*string, min, max int) (known bool, err error) {
	to, known := fields[string(name)]
	if !known {
		return false, nil
	}
	b, err := r.printable(string(name), min, max)
	*to = string(b)
	return true, err
}

func decodeListAlerts(data []byte) (alerts.AlertFilter, error) {
	r := newReader()
	f := alerts.AlertFilter{Max: defaultAlertPage}
	texts := map[string]*string{"user": &f.User, "rule": &f.Rule, "policy": &f.Policy}
	err := r.document(data, func(name []byte) error {
		if known, err := r.words(name, texts, 0, limits.MaxKeyBytes); known {
			return err
		}
		switch string(name) {
		case "open":
			open, err := r.bool("open")
			f.OpenOnly = open
			return err
		case "after":
			b, err := r.string("after")
			if err != nil {
				return err
			}
			return parseAlertCursor(string(b), &f)
		case "max":
			n, err := r.number("max", 1, limits.MaxAlertPage)
			f.Max = int(n)
			return err
		default:
			return r.unknown(name, "user, rule, policy, open, after, max")
		}
	})
	return f, err
}

// decodeAlertID reads a request that is an id.
func decodeAlertID(data []byte, where string) (id string, err error) {
	r := newReader()
	err = r.document(data, func(name []byte) error {
		known, err := r.words(name, map[string]*string{"id": &id}, 1, limits.MaxIDBytes)
		if !known {
			return r.unknown(name, "id")
		}
		return err
	})
	if err == nil && id == "" {
		err = badInput("id", "id", "id is missing; %s", where)
	}
	return id, err
}

func decodeDead(data []byte) (alerts.DeadFilter, error) {
	r := newReader()
	f := alerts.DeadFilter{Max: defaultAlertPage}
	err := r.document(data, func(name []byte) error {
		if known, err := r.words(name, map[string]*string{"channel": &f.Channel, "after": &f.After}, 0, maxDeliveryID); known {
			return err
		}
		if string(name) != "max" {
			return r.unknown(name, "channel, after, max")
		}
		n, err := r.number("max", 1, limits.MaxAlertPage)
		f.Max = int(n)
		return err
	})
	return f, err
}

// decodeReplay reads what is replayed: nothing said is not all.
func decodeReplay(data []byte) (f alerts.DeadFilter, err error) {
	r := newReader()
	all := false
	err = r.document(data, func(name []byte) error {
		if known, err := r.words(name, map[string]*string{"id": &f.ID, "channel": &f.Channel}, 1, maxDeliveryID); known {
			return err
		}
		if string(name) != "all" {
			return r.unknown(name, "id, channel, all")
		}
		var err error
		all, err = r.bool("all")
		return err
	})
	given := 0
	for _, g := range []bool{f.ID != "", f.Channel != "", all} {
		if g {
			given++
		}
	}
	switch {
	case err != nil:
		return f, err
	case given == 0:
		return f, badInput("id", "id", `id is missing; give the id of a delivery, or channel, or "all":true`)
	case given > 1:
		return f, &limits.Error{Status: 400, Code: "mixed_forms", Field: "id",
			Message: "id selects one delivery, channel and all select many; give one of them"}
	}
	return f, nil
}

const silenceFields = "rule, policy, key, user, for, expiresAt, reason, by"

// decodeSilence reads a silence and how long it lasts.
func (s *Service) decodeSilence(data []byte) (silence alerts.Silence, lasts time.Duration, err error) {
	r := newReader()
	var millis, until int64
	globs := map[string]*string{"rule": &silence.Rule, "policy": &silence.Policy, "key": &silence.Key, "user": &silence.User}
	err = r.document(data, func(name []byte) error {
		if known, err := r.words(name, globs, 1, limits.MaxKeyBytes); known {
			return err
		}
		if known, err := r.words(name, map[string]*string{"reason": &silence.Reason}, 1, limits.MaxReasonBytes); known {
			return err
		}
		if known, err := r.words(name, map[string]*string{"by": &silence.By}, 0, limits.MaxNameBytes); known {
			return err
		}
		var err error
		switch string(name) {
		case "for":
			millis, err = r.number("for", 1, limits.MaxSilenceMillis)
		case "expiresAt":
			until, err = r.number("expiresAt", 1, maxTime)
		default:
			err = r.unknown(name, silenceFields)
		}
		return err
	})
	switch {
	case err != nil:
		return silence, 0, err
	case millis != 0 && until != 0:
		return silence, 0, &limits.Error{Status: 400, Code: "mixed_forms", Field: "for",
			Message: "for and expiresAt both say when the silence ends; give one of them"}
	case until != 0:
		millis = until - s.now().UnixMilli()
	}
	// Bounded before it is a duration, which ends after 292 years.
	lasts = time.Duration(min(millis, limits.MaxSilenceMillis+1)) * time.Millisecond
	if field, err := silence.Validate(lasts); err != nil {
		return silence, 0, badInput(field, field, "%s", err)
	}
	return silence, lasts, nil
}
