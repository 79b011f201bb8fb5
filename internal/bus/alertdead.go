package bus

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

// deadLetters answers a page of dead letters and, unless it is of one channel, of poison messages. Each page has the
// next of both, until there are no more of either.
func (s *Service) deadLetters(ctx context.Context, data []byte) (any, error) {
	f, begin, err := decodeDead(data)
	if err != nil {
		return nil, err
	}
	max, last := f.Max, f.After
	f.Max++
	dead, err := s.cfg.Alerts.Store.DeadDeliveries(ctx, f)
	if err != nil {
		return nil, err
	}
	dead, more := cut(dead, max)
	if len(dead) > 0 {
		last = dead[len(dead)-1].ID
	}
	reply := limits.DeadLetters{Deliveries: wireDeliveries(dead), Poison: []limits.PoisonMessage{}}
	if more {
		reply.Next = last
	}
	if f.Channel != "" || begin == noPoison {
		return reply, nil
	}
	poison, morePoison, err := s.poisonPage(ctx, begin, min(max, poisonShown))
	reply.Poison = wireAll(poison, func(p *alerts.Poison) limits.PoisonMessage { return limits.PoisonMessage(*p) })
	if morePoison {
		reply.Next = strings.TrimSpace(last + " " + cursorOfPoison(&poison[len(poison)-1]))
	}
	return reply, err
}

// poisonCursor is the last poison message of a page, by its time and its sequence number. The zero poisonCursor is before
// the first page.
type poisonCursor struct {
	at       int64
	sequence uint64
}

// noPoison is the cursor of a page without poison messages.
var noPoison = poisonCursor{at: -1}

// poisonMark begins a poisonCursor in the next of a page, behind the id of the last delivery.
const poisonMark = "poison:"

func cursorOfPoison(p *alerts.Poison) string {
	return poisonMark + alertCursor(p.At, strconv.FormatUint(p.Sequence, 10))
}

// poisonPage returns up to max poison messages after a cursor, the last one first. Only few are kept, so a later page reads
// all of them.
func (s *Service) poisonPage(ctx context.Context, after poisonCursor, max int) (page []alerts.Poison, more bool, err error) {
	read := max + 1
	if after != (poisonCursor{}) {
		read = alerts.MaxPoison + alerts.PoisonTrim
	}
	page, err = s.cfg.Alerts.Store.PoisonMessages(ctx, read)
	if after != (poisonCursor{}) {
		page = slices.DeleteFunc(page, func(p alerts.Poison) bool {
			return p.At > after.at || p.At == after.at && p.Sequence >= after.sequence
		})
	}
	page, more = cut(page, max)
	return page, more, err
}

func (s *Service) replay(ctx context.Context, data []byte) (any, error) {
	f, err := decodeReplay(data)
	if err != nil {
		return nil, err
	}
	n, err := s.cfg.Alerts.Replay(ctx, f)
	if err != nil {
		name := f.ID + f.Channel
		if _, channel, of := strings.Cut(f.ID, "/"); of && errors.Is(err, alerts.ErrUnknownChannel) {
			name = channel
		}
		return nil, alertError(name, err)
	}
	s.cfg.Logger.Info("dead letters replayed", "delivery", f.ID, "channel", f.Channel, "count", n)
	return limits.ReplayReply{Replayed: int64(n)}, nil
}

func decodeDead(data []byte) (f alerts.DeadFilter, begin poisonCursor, err error) {
	f.Max = defaultAlertPage
	var after string
	err = readFields(data, text("channel", &f.Channel, 0, maxDeliveryID), text("after", &after, 0, maxDeliveryID),
		number("max", &f.Max, 1, limits.MaxAlertPage))
	if after != "" {
		f.After, begin = parseDeadCursor(after)
	}
	return f, begin, err
}

// parseDeadCursor parses the next of a page: the id of a delivery, a poisonCursor, or both.
func parseDeadCursor(after string) (delivery string, begin poisonCursor) {
	delivery, cursor, found := strings.Cut(after, poisonMark)
	at, sequence, _ := strings.Cut(cursor, alertCursorCut)
	millis, err1 := strconv.ParseInt(at, 10, 64)
	number, err2 := strconv.ParseUint(sequence, 10, 64)
	if !found || err1 != nil || err2 != nil {
		return after, noPoison
	}
	return strings.TrimSpace(delivery), poisonCursor{millis, number}
}

// decodeReplay reads what to replay. An empty request does not mean all.
func decodeReplay(data []byte) (f alerts.DeadFilter, err error) {
	all := false
	err = readFields(data, text("id", &f.ID, 1, maxDeliveryID), text("channel", &f.Channel, 1, maxDeliveryID), boolean("all", &all))
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
		return f, invalid("id", `id is missing; give the id of a delivery, or channel, or "all":true`)
	case given > 1:
		return f, mixedForms("id", "id selects one delivery, channel and all select many; give one of them")
	}
	return f, nil
}
