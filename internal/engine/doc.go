// Package engine decides. It holds the arithmetic of the three algorithms, gathers requests into batches that are
// read, decided and written in one transaction each (group commit), remembers what is exhausted, and says what to
// answer when the store fails.
//
// The arithmetic is pure: (state, limit, now, cost) in, (state, decision) out. It never sees a clock. Counters' time is the
// store's, in Unix milliseconds, and arrives with the counters that were read; the worker's own clock only bounds waits and
// guesses at the store's. The package never sees NATS, SQL or HTTP.
//
// What it keeps (the invariants):
//
//   - fixed_window: charged cost never passes the limit in a window; sliding_window: in any interval of one
//     window's length; token_bucket: limit + burst + rate·t over any interval t.
//   - a denial charges nothing; several limits are charged together or not at all.
//   - a retry at the moment that a denial names is allowed, absent other traffic, and one a millisecond earlier
//     is not.
//   - the event of a decision is written in the decision's transaction.
package engine
