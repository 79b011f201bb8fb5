// Package alerts turns the events of the limiter into alerts that flood nobody.
//
// An event goes through three steps, each of which ends in one transaction, so that a crash at any point loses nothing and
// doubles nothing:
//
//	take     event → rule → group: denials are counted, an alert is opened or an open one updated; then the event is
//	         acknowledged
//	notify   alert → silence → quiet hours → throttle (charged through the limiter, with the event's id) → deliveries, or
//	         the digest
//	deliver  delivery → channel, with retries, until it was sent or is a dead letter
//
// Beside them jobs resolve alerts whose denials stopped, and gather what was held back into digests.
//
// The package knows rules, time and what a channel is. It knows no SQL and no NATS: [Store] and [Limiter] stand for them.
package alerts
