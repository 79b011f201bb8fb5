package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

// HistoryConfig says which events of the stream to read.
type HistoryConfig struct {
	// Conn is required.
	Conn *nats.Conn
	// Since is when the first of them was stored.
	Since time.Time
	// Max bounds how many are read, the oldest first; required.
	Max int
	// Progress is called now and then with how many of how many were read. May be nil.
	Progress func(read, total uint64)
}

// History says what was read.
type History struct {
	// Unreadable counts the messages that are no events.
	Unreadable int
	// Left is how many were not read because there are more than Max.
	Left uint64
}

// pullBytes bounds the memory of one pull. A pull never ends if a single message does not fit, so
// the bound is at least twice the server's largest message.
const pullBytes = 8 << 20

const (
	// nextTimeout bounds the wait for the next event.
	nextTimeout = 10 * time.Second
	// progressEvery is after how many messages Progress is called.
	progressEvery = 1000
)

// ReadHistory calls each with the events that the stream had when it began, in order, until each
// returns false. It changes nothing: its consumer is its own, and it does not matter what alerters
// have taken.
func ReadHistory(ctx context.Context, cfg HistoryConfig, each func(alerts.Event) (more bool)) (History, error) {
	js, err := jetstream.New(cfg.Conn)
	if err != nil {
		return History{}, fmt.Errorf("read events: %w", err)
	}
	messages, total, err := openHistory(ctx, js, &cfg)
	if err != nil {
		return History{}, fmt.Errorf("read events: %w", explainJetStream(err))
	}
	if total == 0 {
		return History{}, nil
	}
	defer messages.Stop()
	var h History
	for n := uint64(1); ; n++ {
		m, err := nextMessage(ctx, messages)
		if err != nil {
			return h, fmt.Errorf("read events: got %d of %d: %w", n-1, total, explainJetStream(err))
		}
		meta, err := m.Metadata()
		if err != nil {
			return h, fmt.Errorf("read events: %w", err)
		}
		e, err := parseEvent(m.Subject(), m.Data(), meta.Timestamp)
		if err != nil {
			h.Unreadable++
		} else if !each(e) {
			return h, nil
		}
		if cfg.Progress != nil && (n%progressEvery == 0 || n == total) {
			cfg.Progress(n, total)
		}
		if n >= total || meta.NumPending == 0 || n >= uint64(cfg.Max) {
			h.Left = total - min(n, total)
			return h, nil
		}
	}
}

// openHistory begins to read. total is how many events there are; if it is 0, messages is nil.
func openHistory(ctx context.Context, js jetstream.JetStream, cfg *HistoryConfig) (messages jetstream.MessagesContext, total uint64, err error) {
	c, err := js.OrderedConsumer(ctx, limits.EventStream, jetstream.OrderedConsumerConfig{
		FilterSubjects: alertableSubjects, DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &cfg.Since,
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, 0, fmt.Errorf("stream %s not found on this NATS server; a limiter creates it with its first event", limits.EventStream)
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := c.Info(ctx)
	if err != nil {
		return nil, 0, err
	}
	if info.NumPending == 0 {
		return nil, 0, nil
	}
	batch, _ := pullLimits(&info.Config, 256, 0)
	messages, err = c.Messages(jetstream.PullMaxMessagesWithBytesLimit(batch, max(pullBytes, 2*int(cfg.Conn.MaxPayload()))))
	return messages, info.NumPending, err
}

func nextMessage(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, nextTimeout)
	defer cancel()
	return messages.Next(jetstream.NextContext(ctx))
}
