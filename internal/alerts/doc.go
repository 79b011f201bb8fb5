// Package alerts turns the events of the limiter into alerts that flood nobody.
//
// An event goes through three steps. Each ends in one transaction, so a crash at any point loses nothing and doubles
// nothing:
//
//	take     event → rule → group: denials are counted, and an alert is raised or an open one updated; then the event
//	         is acknowledged
//	notify   pending alert → silence → quiet hours → throttle (charged through the limiter, with the event's id) →
//	         deliveries in the outbox, or held for the digest
//	deliver  delivery → channel, with retries, until it is sent or a dead letter (package deliver)
//
// A group is the events that belong to one alert: those of one rule that agree in its groupBy fields. Two jobs run
// beside the steps. Resolve resolves alerts whose denials have stopped; Digest sends held alerts in one message per user
// and hour.
//
// The package knows no SQL and no NATS: [Store] and [Limiter] stand for them.
package alerts
