package bus

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

// alertStore keeps in memory what a desk asks for. Whether SQL answers so is the conformance suite's to say.
type alertStore struct {
	alerts.Store
	mu         sync.Mutex
	now        int64
	all        []alerts.Alert
	deliveries []alerts.Delivery
	silences   []alerts.Silence
	disabled   []alerts.Disabled
	poison     []alerts.Poison
}

func (s *alertStore) Alerts(_ context.Context, f alerts.AlertFilter) (out []alerts.Alert, _ error) {
	all := slices.SortedFunc(slices.Values(s.all), func(a, b alerts.Alert) int {
		return cmp.Or(cmp.Compare(b.RaisedAt, a.RaisedAt), cmp.Compare(b.ID, a.ID))
	})
	for _, a := range all {
		behind := f.Before == 0 || a.RaisedAt < f.Before || a.RaisedAt == f.Before && a.ID < f.BeforeID
		if behind && (f.User == "" || f.User == a.User) && (f.Rule == "" || f.Rule == a.Rule) &&
			(f.Policy == "" || f.Policy == a.Policy) && (!f.OpenOnly || a.ResolvedAt == 0) && len(out) < f.Max {
			out = append(out, a)
		}
	}
	return out, nil
}

func (s *alertStore) Alert(_ context.Context, id string) (alerts.Alert, bool, error) {
	i := slices.IndexFunc(s.all, func(a alerts.Alert) bool { return a.ID == id })
	if i < 0 {
		return alerts.Alert{}, false, nil
	}
	return s.all[i], true, nil
}

func (s *alertStore) AddDelivery(_ context.Context, d alerts.Delivery) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.CreatedAt, d.DueAt = s.now, s.now
	s.deliveries = append(s.deliveries, d)
	return nil
}

func (s *alertStore) DeliveriesOf(_ context.Context, alert string, max int) (out []alerts.Delivery, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.deliveries {
		if strings.HasPrefix(d.ID, alert+".") && len(out) < max {
			out = append(out, d)
		}
	}
	return out, nil
}

func (s *alertStore) WaitingDeliveries(context.Context) (map[string]int64, error) {
	n := map[string]int64{}
	for _, d := range s.deliveries {
		if d.State == alerts.DeliveryWaiting {
			n[d.Channel]++
		}
	}
	return n, nil
}

func (s *alertStore) dead(f alerts.DeadFilter) (out []int) {
	for i, d := range s.deliveries {
		if d.State == alerts.DeliveryDead && (f.ID == "" || f.ID == d.ID) && (f.Channel == "" || f.Channel == d.Channel) &&
			d.ID > f.After && len(out) < f.Max {
			out = append(out, i)
		}
	}
	return out
}

func (s *alertStore) DeadDeliveries(_ context.Context, f alerts.DeadFilter) (out []alerts.Delivery, _ error) {
	for _, i := range s.dead(f) {
		out = append(out, s.deliveries[i])
	}
	return out, nil
}

func (s *alertStore) ReplayDeliveries(_ context.Context, f alerts.DeadFilter) (int, error) {
	found := s.dead(f)
	for _, i := range found {
		s.deliveries[i].State = alerts.DeliveryWaiting
	}
	return len(found), nil
}

func (s *alertStore) EnableChannel(_ context.Context, channel string) (bool, error) {
	before := len(s.disabled)
	s.disabled = slices.DeleteFunc(s.disabled, func(d alerts.Disabled) bool { return d.Channel == channel })
	return len(s.disabled) < before, nil
}

func (s *alertStore) DisabledChannels(context.Context) ([]alerts.Disabled, error) {
	return s.disabled, nil
}

func (s *alertStore) AddSilence(_ context.Context, x alerts.Silence, lasts time.Duration) (alerts.Silence, error) {
	x.CreatedAt, x.ExpiresAt = s.now, s.now+lasts.Milliseconds()
	s.silences = append([]alerts.Silence{x}, s.silences...)
	return x, nil
}

func (s *alertStore) EndSilence(_ context.Context, id string) (alerts.Silence, bool, error) {
	for i := range s.silences {
		if x := &s.silences[i]; x.ID == id && x.ExpiresAt > s.now {
			x.ExpiresAt = s.now
			return *x, true, nil
		}
	}
	return alerts.Silence{}, false, nil
}

func (s *alertStore) Silences(_ context.Context, ended bool, max int) (out []alerts.Silence, _ error) {
	for _, x := range s.silences {
		if (ended || x.ExpiresAt > s.now) && len(out) < max {
			out = append(out, x)
		}
	}
	return out, nil
}

func (s *alertStore) PoisonMessages(_ context.Context, max int) ([]alerts.Poison, error) {
	return s.poison[:min(len(s.poison), max)], nil
}
