package bus

import (
	"context"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

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

func decodeDead(data []byte) (alerts.DeadFilter, error) {
	f := alerts.DeadFilter{Max: defaultAlertPage}
	err := readFields(data, text("channel", &f.Channel, 0, maxDeliveryID), text("after", &f.After, 0, maxDeliveryID),
		number("max", &f.Max, 1, limits.MaxAlertPage))
	return f, err
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
		return f, badInput("id", "id", `id is missing; give the id of a delivery, or channel, or "all":true`)
	case given > 1:
		return f, mixedForms("id", "id selects one delivery, channel and all select many; give one of them")
	}
	return f, nil
}
