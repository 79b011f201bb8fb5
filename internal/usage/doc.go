// Package usage records usage: the decisions per key, policy, user and minute, and a log of the
// requests that clients report. It writes after the answers were given: decisions are counted in
// memory and requests queued, both bounded, and a goroutine writes them to a [Store] every few
// seconds. A crash loses those seconds. If the store fails the recorder tries again while there is
// room; what has no room is dropped and counted, because nothing waits for it.
//
// The package decides nothing, and knows nothing of SQL and NATS.
package usage
