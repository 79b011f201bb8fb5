package bus

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed503877ad/limits"
)

// consumerStateFile is the server's file of what a consumer has delivered, in the consumer's folder.
const consumerStateFile = "o.dat"

// reviveConsumer sets the state of the consumer of events aside if the server could make no consumer
// of it, as after a write that was cut off. Nobody could make one with that name either, so there
// would be no alerts any more. Without the file the consumer, as it was set up, begins at the
// beginning of the stream, and what was taken before is known by its id. Consumers of others are
// left alone: theirs may not know what comes again.
func (r *streamRepairer) reviveConsumer() error {
	state := filepath.Join(consumerFolder(filepath.Join(r.server.StoreDir(), server.DEFAULT_GLOBAL_ACCOUNT)), consumerStateFile)
	if _, err := os.ReadFile(state); err != nil || !lacksConsumer(r.server) {
		return nil
	}
	aside := state + ".damaged"
	if err := os.Rename(state, aside); err != nil {
		return fmt.Errorf("set the damaged state of consumer %s aside: %w", consumerName, err)
	}
	r.log.Warn("the state of the consumer of events is damaged and was set aside: all events come again, and those that were taken before "+
		"are ignored", "stream", limits.EventStream, "consumer", consumerName, "file", state, "now", aside)
	return r.reopen()
}

// consumerFolder is the folder of the consumer of events in that of an account's streams.
func consumerFolder(account string) string {
	return filepath.Join(account, "streams", limits.EventStream, "obs", consumerName)
}

// lacksConsumer reports whether the server has the stream of events and not its consumer.
func lacksConsumer(s *server.Server) bool {
	all, err := s.Jsz(&server.JSzOptions{Accounts: true, Streams: true, Consumer: true})
	if err != nil {
		return false
	}
	for _, account := range all.AccountDetails {
		for _, stream := range account.Streams {
			if account.Name == server.DEFAULT_GLOBAL_ACCOUNT && stream.Name == limits.EventStream {
				return !slices.ContainsFunc(stream.Consumer, func(c *server.ConsumerInfo) bool { return c.Name == consumerName })
			}
		}
	}
	return false
}

// reopen closes the streams and opens them.
func (r *streamRepairer) reopen() error {
	if err := r.server.ShutdownJetStream(); err != nil {
		return err
	}
	streams := r.streams
	return r.server.EnableJetStream(&streams)
}
