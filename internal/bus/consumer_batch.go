package bus

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

// What becomes of the messages that a [Consumer] receives.

// delivered is an event with the message that carried it.
type delivered struct {
	message jetstream.Msg
	event   alerts.Event
	// sequence is the message's place in the stream.
	sequence uint64
}

// handle takes a batch. If it returns an error, which is the store's, toReturn has all that was not
// taken.
func (c *Consumer) handle(ctx context.Context, messages []jetstream.Msg) error {
	var fresh, suspects []delivered
	stuck := false // poison cannot be stored
	for _, m := range messages {
		meta, err := m.Metadata()
		if err != nil || !slices.Contains(alertableSubjects, m.Subject()) {
			_ = m.Ack() // of another subject that the stream has
			continue
		}
		d := delivered{message: m, sequence: meta.Sequence.Stream}
		d.event, err = parseEvent(m.Subject(), m.Data(), meta.Timestamp)
		switch {
		case err == nil && c.strikes[d.sequence] > 0:
			suspects = append(suspects, d)
		case err == nil:
			fresh = append(fresh, d)
		case stuck: // a store that is down takes its time to fail for each
			c.returnPoison(&d)
		default:
			stuck = !c.poison(ctx, &d, err.Error())
		}
	}
	err := c.takeAll(ctx, fresh)
	// An event that failed alone before is tried alone again, so that it does not hold up others.
	for i := range suspects {
		if err != nil {
			c.queueReturn(suspects[i:])
			return err
		}
		err = c.takeAll(ctx, suspects[i:i+1])
	}
	return err
}

// maxEventBytes bounds an event. The largest that a limiter makes are far smaller.
const maxEventBytes = 64 << 10

// parseEvent parses a message that the stream stored at a time.
func parseEvent(subject string, data []byte, at time.Time) (alerts.Event, error) {
	if len(data) > maxEventBytes {
		return alerts.Event{}, fmt.Errorf("the message has %d bytes; an event may have at most %d", len(data), maxEventBytes)
	}
	raw, err := limits.ParseEvent(data)
	if err != nil {
		return alerts.Event{}, err
	}
	if raw.Time.IsZero() { // CloudEvents need not have one
		raw.Time = at
	}
	e, err := alerts.NewEvent(raw)
	if err != nil {
		return alerts.Event{}, err
	}
	// Permissions are by subject, so the type must be the subject's.
	if e.Type != subject {
		return alerts.Event{}, fmt.Errorf("an event of type %s arrived on subject %s", e.Type, subject)
	}
	// What an event is about happened before it was published, whatever its clock says.
	e.Time = min(e.Time, at.UnixMilli())
	return e, nil
}

// takeAll takes events. If that fails it finds out whether the store or an event is to blame.
func (c *Consumer) takeAll(ctx context.Context, all []delivered) error {
	if len(all) == 0 {
		return nil
	}
	err := c.take(ctx, all)
	if err == nil {
		c.acknowledge(all)
		return nil
	}
	if c.cfg.OwnFault(err) || c.take(ctx, nil) != nil {
		c.storeDown = true
		c.queueReturn(all)
		return fmt.Errorf("process events: %w", err)
	}
	if len(all) == 1 {
		c.strike(ctx, &all[0], err)
		return nil
	}
	half := len(all) / 2
	if err := c.takeAll(ctx, all[:half]); err != nil {
		c.queueReturn(all[half:])
		return err
	}
	return c.takeAll(ctx, all[half:])
}

// acknowledge acknowledges events. If an acknowledgement is lost the event comes again, which is
// harmless.
func (c *Consumer) acknowledge(all []delivered) {
	for i := range all {
		_ = all[i].message.Ack()
		delete(c.strikes, all[i].sequence)
	}
	c.struck.Store(nil)
}

// strike counts that an event failed alone while the store answers.
func (c *Consumer) strike(ctx context.Context, d *delivered, cause error) {
	if len(c.strikes) >= maxSuspects { // some may have been taken elsewhere since
		clear(c.strikes)
	}
	n := c.strikes[d.sequence] + 1
	c.strikes[d.sequence] = n
	note(&c.struck, fmt.Errorf("process events: %w", cause), c.struckBefore())
	if n >= maxStrikes {
		c.poison(ctx, d, fmt.Sprintf("gave up after %d tries: %v", n, cause))
		return
	}
	if n == 1 {
		c.cfg.Logger.Warn("an event cannot be processed, will retry", "event", d.event.ID, "sequence", d.sequence, "error", cause)
	}
	_ = d.message.NakWithDelay(c.delay(n))
	c.cfg.Observer.EventsReturned(1)
}

// delay is how long a message waits after its n-th failure.
func (c *Consumer) delay(n int) time.Duration {
	return min(c.cfg.retry<<min(n-1, 16), 300*c.cfg.retry)
}

// poison dead-letters a message: it stores the message and then ends its delivery. If the message
// cannot be stored it comes again.
func (c *Consumer) poison(ctx context.Context, d *delivered, reason string) (stored bool) {
	reason = truncate(replaceUnprintable(reason), 500)
	err := c.keepPoison(ctx, d, reason)
	c.unkept.Tried(err, "sequence", d.sequence, "reason", reason)
	if err != nil {
		c.returnPoison(d)
		return false
	}
	if n := c.poisoned.due(); n > 0 {
		c.cfg.Logger.Error("messages of the stream were dead-lettered; see: limiter alerts dead", "count", n, "last", d.sequence, "reason", reason)
	}
	_ = d.message.TermWithReason(reason) // if this is lost the message comes again, and is known by then
	delete(c.strikes, d.sequence)
	if len(c.strikes) == 0 {
		c.struck.Store(nil)
	}
	c.cfg.Observer.EventPoisoned()
	return true
}

// returnPoison gives back a message that could not be dead-lettered.
func (c *Consumer) returnPoison(d *delivered) {
	deliveries := 1
	if meta, err := d.message.Metadata(); err == nil {
		deliveries = int(min(meta.NumDelivered, 64))
	}
	_ = d.message.NakWithDelay(c.delay(deliveries))
	c.cfg.Observer.EventsReturned(1)
}

func (c *Consumer) keepPoison(ctx context.Context, d *delivered, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	data := d.message.Data()
	return c.cfg.Poison(ctx, alerts.Poison{Sequence: d.sequence, Subject: d.message.Subject(), Reason: reason,
		Data: bytes.Clone(data[:min(len(data), alerts.MaxPoisonBytes)]), At: time.Now().UnixMilli()})
}

// queueReturn queues events to be given back.
func (c *Consumer) queueReturn(all []delivered) {
	for i := range all {
		c.toReturn = append(c.toReturn, all[i].message)
	}
}

// returnAll gives back what a pull brought and nobody took, so that another process receives it at
// once. It must be called when the pull is over: a pull that goes on would receive it again and
// again.
func (c *Consumer) returnAll() {
	for _, m := range c.toReturn {
		_ = m.Nak()
	}
	c.cfg.Observer.EventsReturned(len(c.toReturn))
	c.toReturn = nil
}
