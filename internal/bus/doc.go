// Package bus is the NATS side of the limiter. It embeds a server or connects to one, answers the
// endpoints of the micro service, carries broadcasts between workers, publishes events from the
// outbox to JetStream, and reads them for the alerter.
//
// It turns bytes into [engine.Request], [engine.Decision] into bytes, and errors into the codes of
// the wire contract, each in one place. It never decides and never sees SQL or HTTP.
//
// Where to find what:
//
//   - The service: service.go (its configuration and start), stop.go.
//   - A request for a decision: call.go (its way through the engine), inline.go (taking it where the
//     connection is read), decode.go with spec.go and policies.go (strict reading), quick.go and
//     repeats.go (the two shortcuts around that), encode.go and errors.go (the answer).
//   - All other requests: endpoints.go lists them with their handlers, answer.go runs these and sends
//     the answers, reader.go and fields.go read the JSON.
//   - Several workers: lead.go and its parts (which of them decides), microservice.go (changing what
//     a worker answers), broadcast.go (what workers tell each other).
//   - Connections: connect.go, dialer.go, subscriptions.go; embed.go for the server in the process.
//   - Events: relay.go and event.go (outbox to JetStream), stream.go and durable.go (the streams and
//     the consumer), consumer.go and its parts (JetStream to the alerter), history.go (reading the
//     stream from its beginning).
package bus
