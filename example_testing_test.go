package limits_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
)

// A test of code that uses a Client, or the middleware of package httplimit, needs no limiter and no port: a NATS server runs
// inside the test, and a subscriber answers with the replies that the test is about. On a subject without a subscriber,
// calls fail as if no limiter were there.
func Example_testing() {
	client, stop := fakeLimiter(func(r limits.Request) limits.Reply {
		if r.Key == "api:user:7" {
			return limits.Reply{Key: r.Key, Limit: r.Limit, RetryAfter: 1000, Message: "enough"}
		}
		return limits.Reply{Allowed: true, Key: r.Key, Limit: r.Limit, Remaining: 1}
	})
	defer stop()
	for _, key := range []string{"api:user:6", "api:user:7"} {
		reply, err := client.Consume(context.Background(), limits.Per(key, 2, "1h")) // as the code under test does
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(reply.Allowed, reply.RetryIn())
	}
	// Output:
	// true 0s
	// false 1s
}

// fakeLimiter answers limits.consume.
func fakeLimiter(decide func(limits.Request) limits.Reply) (client *limits.Client, stop func()) {
	s, err := server.NewServer(&server.Options{DontListen: true})
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	nc, err := nats.Connect("", nats.InProcessServer(s), limits.Reconnect())
	if err != nil {
		log.Fatal(err)
	}
	_, err = nc.Subscribe(limits.SubjectConsume, func(m *nats.Msg) {
		var r limits.Request
		if err := json.Unmarshal(m.Data, &r); err != nil {
			log.Fatal(err)
		}
		answer, err := json.Marshal(decide(r))
		if err != nil {
			log.Fatal(err)
		}
		_ = m.Respond(answer)
	})
	if err != nil {
		log.Fatal(err)
	}
	return limits.NewClient(nc), func() { nc.Close(); s.Shutdown() }
}
