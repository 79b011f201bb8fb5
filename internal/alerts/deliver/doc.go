// Package deliver empties the outbox of alerts: it claims deliveries that are due, sends each over its channel, and stores
// the result.
//
// Every channel has a loop of its own, so that a slow target does not delay the others. A delivery is claimed with a lease
// that is longer than any attempt; if the process dies, another one claims it after that. So a message may arrive twice,
// with the same id, but none is lost: it is sent, or becomes a dead letter that can be replayed.
//
// The package decides when to try. How a channel sends is not its business.
package deliver
