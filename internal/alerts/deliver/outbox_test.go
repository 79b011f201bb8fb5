package deliver_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

// memory is an outbox in memory with the semantics of [alerts.Store], for tests in a synctest bubble. The conformance suite
// tests real stores.
type memory struct {
	mu       sync.Mutex
	all      map[string]*alerts.Delivery
	gone     map[string]alerts.Disabled
	replayed map[string]int64
	failures int // so many writes of outcomes fail
	asked    int // how often due deliveries were asked for
	advances int // how often deliveries were to be brought forward
}

func newMemory() *memory {
	return &memory{all: map[string]*alerts.Delivery{}, gone: map[string]alerts.Disabled{}, replayed: map[string]int64{}}
}

// add puts deliveries into it, due at once.
func (o *memory) add(channel string, ids ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range ids {
		now := time.Now().UnixMilli()
		o.all[id] = &alerts.Delivery{ID: id, Channel: channel, Message: alerts.Message{ID: id},
			State: alerts.DeliveryWaiting, CreatedAt: now, DueAt: now}
	}
}

// grow makes all deliveries older.
func (o *memory) grow(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, one := range o.all {
		one.CreatedAt -= d.Milliseconds()
	}
	for id := range o.replayed {
		o.replayed[id] -= d.Milliseconds()
	}
}

func (o *memory) get(id string) alerts.Delivery {
	o.mu.Lock()
	defer o.mu.Unlock()
	return *o.all[id]
}

// count counts the deliveries of a state.
func (o *memory) count(state alerts.DeliveryState) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.all {
		if d.State == state {
			n++
		}
	}
	return n
}

// questions returns how often due deliveries were claimed.
func (o *memory) questions() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.asked
}

func (o *memory) waiting(fits func(*alerts.Delivery) bool, max int) (found []*alerts.Delivery) {
	for _, d := range o.all {
		if d.State == alerts.DeliveryWaiting && fits(d) {
			found = append(found, d)
		}
	}
	slices.SortFunc(found, func(a, b *alerts.Delivery) int {
		return cmp.Or(cmp.Compare(a.DueAt, b.DueAt), cmp.Compare(a.ID, b.ID))
	})
	return found[:min(max, len(found))]
}

func (o *memory) DueDeliveries(_ context.Context, channel string, max int, lease time.Duration) (due []alerts.Delivery, _ error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked++
	now := time.Now()
	for _, d := range o.waiting(func(d *alerts.Delivery) bool { return d.Channel == channel && d.DueAt <= now.UnixMilli() }, max) {
		d.DueAt = now.Add(lease).UnixMilli()
		due = append(due, *d)
	}
	return due, nil
}

func (o *memory) OtherDeliveries(_ context.Context, channels []string, due time.Duration, max int) (others []alerts.Delivery, _ error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	until := time.Now().Add(-due).UnixMilli()
	for _, d := range o.waiting(func(d *alerts.Delivery) bool { return !slices.Contains(channels, d.Channel) && d.DueAt <= until }, max) {
		others = append(others, *d)
	}
	return others, nil
}

func (o *memory) SaveResults(ctx context.Context, all []alerts.DeliveryResult) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failures--; o.failures >= 0 {
		return errors.New("the store is away")
	}
	for _, t := range all {
		d := o.all[t.ID]
		if d.State != alerts.DeliveryWaiting {
			continue
		}
		d.State, d.DueAt, d.Error = t.State, t.DueAt, t.Error
		if t.Counts {
			d.Attempts++
		}
	}
	return ctx.Err()
}

func (o *memory) RecallDeliveries(ctx context.Context, later, lease time.Duration, max int) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	ahead := o.waiting(func(d *alerts.Delivery) bool { return d.DueAt > now.Add(later).UnixMilli() }, max)
	for _, d := range ahead {
		d.DueAt, d.CreatedAt = now.Add(lease).UnixMilli(), min(d.CreatedAt, now.UnixMilli())
	}
	return len(ahead), ctx.Err()
}

func (o *memory) AdvanceDeliveries(ctx context.Context, channel string, lease time.Duration, max int) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.advances++
	now := time.Now()
	ahead := o.waiting(func(d *alerts.Delivery) bool { return d.Channel == channel && d.DueAt > now.Add(lease).UnixMilli() }, max)
	for _, d := range ahead {
		d.DueAt = now.UnixMilli()
	}
	return len(ahead), ctx.Err()
}

func (o *memory) EndDeliveries(ctx context.Context, q alerts.Overdue, reason func(*alerts.Delivery) string) (ended []alerts.Delivery, _ error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for _, d := range o.waiting(func(d *alerts.Delivery) bool {
		claimed := d.DueAt > now.UnixMilli() && d.DueAt <= now.Add(q.Lease).UnixMilli()
		return !claimed && max(d.CreatedAt, o.replayed[d.ID]) <= now.Add(-q.Age).UnixMilli()
	}, q.Max) {
		ended = append(ended, *d)
		d.State, d.Error = alerts.DeliveryDead, reason(d)
	}
	return ended, ctx.Err()
}

func (o *memory) DisableChannel(_ context.Context, d alerts.Disabled) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gone[d.Channel] = d
	return nil
}

func (o *memory) EnableChannel(_ context.Context, channel string) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, found := o.gone[channel]
	delete(o.gone, channel)
	return found, nil
}

func (o *memory) DisabledChannels(context.Context) (all []alerts.Disabled, _ error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.gone {
		all = append(all, d)
	}
	return all, nil
}

// replay makes a dead letter wait again.
func (o *memory) replay(t *testing.T, id string) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	d := o.all[id]
	if d.State != alerts.DeliveryDead {
		t.Fatalf("%s is %s, not dead", id, d.State)
	}
	d.State, d.Attempts, d.DueAt = alerts.DeliveryWaiting, 0, time.Now().UnixMilli()
	o.replayed[id] = d.DueAt
}
