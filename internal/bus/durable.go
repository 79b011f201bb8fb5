package bus

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
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

// ensureConsumer creates the consumer if it is missing. An existing one is up to its operator: only
// what would lose events is changed.
func ensureConsumer(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	c, err := js.Consumer(ctx, limits.EventStream, consumerName)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		c, err = withinMaxAckPending(ctx, js.CreateConsumer, consumerConfig())
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
	c, err = withinMaxAckPending(ctx, js.UpdateConsumer, cfg)
	return c, wrapConsumer("update", err)
}

// withinMaxAckPending creates or updates the consumer, and if the server allows less max_ack_pending,
// lets it choose: it then takes 1000 or what it allows.
func withinMaxAckPending(ctx context.Context, do func(context.Context, string, jetstream.ConsumerConfig) (jetstream.Consumer, error),
	cfg jetstream.ConsumerConfig,
) (jetstream.Consumer, error) {
	c, err := do(ctx, limits.EventStream, cfg)
	if hasCode(err, errMaxAckPending) {
		cfg.MaxAckPending = 0
		return do(ctx, limits.EventStream, cfg)
	}
	return c, err
}

// pullLimits lowers the messages and the wait of a pull to what the consumer allows. The server puts
// its own limit into the consumer when it is created.
func pullLimits(cfg *jetstream.ConsumerConfig, batch int, wait time.Duration) (int, time.Duration) {
	if most := cfg.MaxRequestBatch; most > 0 {
		batch = min(batch, most)
	}
	if most := cfg.MaxRequestExpires; most > 0 {
		wait = min(wait, most)
	}
	return batch, wait
}

// repairConsumer changes what would lose events, and reports whether it changed anything.
func repairConsumer(cfg *jetstream.ConsumerConfig) (changed bool) {
	if cfg.MaxDeliver > 0 {
		cfg.MaxDeliver, changed = -1, true
	}
	if cfg.HeadersOnly { // each event would be dead-lettered, for want of its data
		cfg.HeadersOnly, changed = false, true
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
	if hasCode(err, errConsumerStore) {
		err = fmt.Errorf("%w: the NATS server's log says why; if the consumer's files are damaged, stop the server, move the folder %s of its "+
			"store directory away, and start it: all events come again, and those that were taken before are ignored",
			err, filepath.ToSlash(consumerFolder(filepath.Join("jetstream", "ACCOUNT"))))
	}
	return fmt.Errorf("%s consumer %s of stream %s: %w", act, consumerName, limits.EventStream, err)
}

func wrongConsumer(what string) error {
	return fmt.Errorf("consumer %s of stream %s %s; remove it and it is recreated: nats consumer rm %[2]s %[1]s",
		consumerName, limits.EventStream, what)
}
