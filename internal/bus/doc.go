// Package bus is the NATS side of the limiter: it embeds a server or connects to one, answers the endpoints of the
// micro service, carries what workers tell each other to forget, and relays events from the outbox to JetStream.
//
// It turns bytes into [engine.Request] and [engine.Decision] into bytes, and errors into the codes of the wire
// contract, each in one place. It never decides and never sees SQL or HTTP.
package bus
