// Package deliver empties the outbox of alerts: it takes deliveries that are due, sends each over its channel, and keeps how
// that ended.
//
// Every channel has a loop of its own, so that one slow target keeps no other waiting. A delivery is claimed for a time that
// is longer than any try; who dies leaves it to others when that time is over. A message may so arrive twice, with the same
// id, but none is lost: it is sent, or becomes a dead letter that somebody can replay.
//
// The package knows when to try, and nothing of what a channel does.
package deliver
