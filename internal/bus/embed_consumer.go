package bus

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed503877ad/limits"
)

// consumerStateFile is the server's file of what a consumer has delivered, in the consumer's folder.
const consumerStateFile = "o.dat"

// setConsumerAside sets the state of the consumer of events aside if the server could make no
// consumer of it, as after a write that was cut off. Nobody could make one with that name either, so
// there would be no alerts any more. Without the file the consumer, as it was set up, begins at the
// beginning of the stream when the streams are opened again, and what was taken before is known by
// its id. Consumers of others are left alone: theirs may not know what comes again.
func setConsumerAside(s *server.Server, log *slog.Logger) (was bool, err error) {
	state := filepath.Join(consumerFolder(filepath.Join(s.StoreDir(), server.DEFAULT_GLOBAL_ACCOUNT)), consumerStateFile)
	if _, err := os.ReadFile(state); err != nil || !lacksConsumer(s) {
		return false, nil
	}
	aside := state + ".damaged"
	if err := os.Rename(state, aside); err != nil {
		return false, fmt.Errorf("set the damaged state of consumer %s aside: %w", consumerName, err)
	}
	log.Warn("the state of the consumer of events is damaged and was set aside: all events come again, and those that were taken before "+
		"are ignored", "stream", limits.EventStream, "consumer", consumerName, "file", state, "now", aside)
	return true, nil
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
