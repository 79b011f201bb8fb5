package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
)

// consumerName is the durable consumer of the stream of events. All alerters share it.
const consumerName = "alerter"

const (
	// ackWait is when a message that was not acknowledged comes again.
	ackWait = 30 * time.Second
	// maxAckPending bounds the messages that all alerters together have in hand.
	maxAckPending = 4096
)

// consumerConfig is the configuration with which the consumer is created. It delivers the stream
// from its beginning: an event that was taken before is known by its id. It delivers reports too,
// so that [Consumer.checkLosses] can tell what the stream has lost.
func consumerConfig() jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: consumerName, Description: "Events on their way to alerts", FilterSubjects: eventSubjects,
		DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: ackWait, MaxAckPending: maxAckPending, MaxDeliver: -1,
	}
}

// ensureConsumer creates the stream and the consumer if they are missing. An existing consumer is
// up to its operator: only what would lose events is changed.
func ensureConsumer(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	if err := ensureStream(ctx, js, eventStream()); err != nil {
		return nil, err
	}
	c, err := js.Consumer(ctx, limits.EventStream, consumerName)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		c, err = js.CreateConsumer(ctx, limits.EventStream, consumerConfig())
		return c, wrapConsumer("create", err)
	case errors.Is(err, jetstream.ErrNotPullConsumer):
		return nil, wrongConsumer("is a push consumer instead of a pull consumer")
	case err != nil:
		return nil, wrapConsumer("look up", err)
	}
	cfg := c.CachedInfo().Config
	if cfg.AckPolicy != jetstream.AckExplicitPolicy {
		return nil, wrongConsumer(fmt.Sprintf("has the acknowledgement policy %s instead of explicit", cfg.AckPolicy))
	}
	if !repairConsumer(&cfg) {
		return c, nil
	}
	c, err = js.UpdateConsumer(ctx, limits.EventStream, cfg)
	return c, wrapConsumer("update", err)
}

// repairConsumer changes what would lose events, and reports whether it changed anything.
func repairConsumer(cfg *jetstream.ConsumerConfig) (changed bool) {
	if cfg.MaxDeliver > 0 {
		cfg.MaxDeliver, changed = -1, true
	}
	filters := filtersOf(cfg)
	if len(filters) == 0 { // all subjects
		return changed
	}
	if missing := missingSubjects(alertableSubjects, filters); len(missing) > 0 {
		cfg.FilterSubject, cfg.FilterSubjects, changed = "", append(filters, missing...), true
	}
	return changed
}

// filtersOf returns the subjects that a consumer delivers; none means all.
func filtersOf(cfg *jetstream.ConsumerConfig) []string {
	if cfg.FilterSubject != "" {
		return []string{cfg.FilterSubject}
	}
	return cfg.FilterSubjects
}

func wrapConsumer(act string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s consumer %s of stream %s: %w", act, consumerName, limits.EventStream, err)
}

func wrongConsumer(what string) error {
	return fmt.Errorf("consumer %s of stream %s %s; remove it and it is recreated: nats consumer rm %[2]s %[1]s",
		consumerName, limits.EventStream, what)
}
