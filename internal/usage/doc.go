// Package usage keeps what was used: decisions per key, policy, user and minute, and a log of the requests that clients
// tell of. Both are written behind the answers: what is told is counted in memory or put in a queue, both bounded, and
// a goroutine writes it to a [Store] every few seconds. A crash loses those seconds. A store that fails is tried again
// while there is room; what has none is dropped and counted, because nobody waits for it.
//
// The package decides nothing, and knows of SQL and NATS nothing.
package usage
