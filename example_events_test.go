package limits_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
)

// A program that must not miss events reads them from the JetStream stream. After a restart it continues where it was, and
// gets again what it did not acknowledge. An event may come twice, so its ID is stored together with the work.
func ExampleParseEvent() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	nc, err := nats.Connect(natsURL, limits.Reconnect())
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	for range 2 {
		if _, err := limits.NewClient(nc).Consume(ctx, limits.Per("orders:user:7", 1, "1h")); err != nil {
			log.Fatal(err)
		}
	}

	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := js.CreateOrUpdateConsumer(ctx, limits.EventStream, jetstream.ConsumerConfig{
		Durable: "call-the-customer", FilterSubject: limits.EventExceeded, AckPolicy: jetstream.AckExplicitPolicy,
	})
	if err != nil {
		log.Fatal(err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		log.Fatal(err)
	}
	defer messages.Stop()
	done := map[string]bool{} // by ID: a unique column of the table that the work is written to
	for called := false; !called; {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			log.Fatal(err)
		}
		event, err := limits.ParseEvent(msg.Data())
		if err != nil {
			log.Print(err)
			_ = msg.Term() // a redelivery could not be parsed either
			continue
		}
		d, ok := event.Data.(*limits.Exceeded)
		if called = ok && event.Subject == "orders:user:7" && !done[event.ID]; called {
			fmt.Println("call", d.User, "about", d.Limit, "order in", d.Window) // the work
		}
		done[event.ID] = true
		_ = msg.Ack() // after the work: if the ack is lost, the event comes again
	}
	// Output: call 7 about 1 order in 1h
}
