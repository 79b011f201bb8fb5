// Package engine decides requests. It holds the arithmetic of the three algorithms, gathers
// requests into batches that are read, decided and written in one transaction each (group commit),
// answers from memory where that is safe, and decides what to answer when the store fails.
//
// The arithmetic is pure: (state, limit, now, cost) in, (state, decision) out, and reads no clock.
// Decisions use the store's time, in Unix milliseconds, which arrives with the counters that a
// transaction reads. The worker's own clock only bounds waits and estimates the store's. The
// package knows nothing of NATS, SQL or HTTP.
//
// A request takes this path:
//
//   - [Engine.Submit] answers it from memory (engine.go) if a lease of this worker covers it
//     (lease.go, sweep.go, lent.go) or a cached counter denies it (cache.go, denials.go). Otherwise it joins
//     the queue.
//   - One goroutine takes what is queued as a batch (dispatch.go) and has the store run one
//     transaction for it (commit.go), in which the batch is decided (batch.go, decide.go,
//     receipt.go, settle.go) and its events are raised (events.go).
//   - Another goroutine hands out the answers. What the store could not decide is answered without
//     it (fallback.go).
//
// Failures of the store are noticed in failure.go, a call that does not return in hung.go, and a
// pause of the process itself in heartbeat.go. A counter's state is in state.go, and the three
// algorithms in sliding.go, fixed.go and bucket.go.
//
// The invariants:
//
//   - fixed_window: charged cost never passes the limit in a window; sliding_window: in any
//     interval of one window's length; token_bucket: limit + burst + rate·t over any interval t.
//   - a denial charges nothing; several limits are charged together or not at all.
//   - a retry at the moment that a denial names is allowed if there was no other traffic, and a
//     retry one millisecond earlier is not.
//   - the event of a decision is written in the decision's transaction.
package engine
