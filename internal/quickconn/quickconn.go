// Package quickconn spares a busy connection what Go's scheduler does around a system call.
//
// Before each read and write of a socket Go notes that its thread may be gone for long. It wakes a thread of its own, the monitor,
// which then looks every 20 µs whether to give the thread's work to another one. But a socket of Go does not block: where there is
// nothing to read, or no room to write, the call returns at once, and Go waits for the socket elsewhere. So the monitor is woken,
// thousands of times a second in a worker that waits for its next requests as often, for calls that are over before it looks. That
// took a worker a quarter of its processor time.
//
// The connections of this package make the same calls without that note. They serve where there are many small messages:
// a worker's connections to NATS and to PostgreSQL.
package quickconn

import "net"

// Trier is a connection that can write without waiting. TryWrite gives how much there was room for, which may be nothing; an error is one
// of writing. No deadline ends it, and nobody else may write meanwhile. Waited tells whether a read has found nothing since that was asked
// last; it is for who reads. What Wrap has wrapped is one, on Linux.
type Trier interface {
	TryWrite(p []byte) (n int, err error)
	Waited() bool
}

// Wrap gives a connection that does as conn does. Where the system is not Linux, or conn is neither TCP nor a Unix stream, it is
// conn itself.
func Wrap(conn net.Conn) net.Conn { return wrap(conn) }
