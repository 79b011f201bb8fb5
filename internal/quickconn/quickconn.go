// Package quickconn makes the reads and writes of a busy connection cheaper: it leaves out what
// Go's scheduler does around a system call.
//
// Before each read and write of a socket Go notes that the thread may block for long. It wakes a
// thread of its own, the monitor, which then looks every 20 µs whether to give the thread's work to
// another one. But Go's sockets do not block: if there is nothing to read, or no room to write, the
// call returns at once, and Go waits for the socket elsewhere. So in a worker that waits for its
// next requests thousands of times a second, the monitor is woken as often, for calls that are over
// before it looks. That cost a quarter of the worker's processor time.
//
// The connections of this package make the same calls without that note. They are for many small
// messages: a worker's connections to NATS and to PostgreSQL.
package quickconn

import "net"

// Trier is a connection that can write without waiting. On Linux, what [Wrap] has wrapped is one.
//
// TryWrite writes as much as there is room for, which may be nothing, and returns how much.
// A lack of room is no error. Deadlines do not apply. Nobody else may write at the same time.
//
// Waited reports whether a read had to wait for data since the last call of Waited. Only the
// goroutine that reads may call it.
type Trier interface {
	TryWrite(p []byte) (n int, err error)
	Waited() bool
}

// Wrap returns a connection that behaves as conn does. It returns conn itself if the system is not
// Linux, or conn is neither TCP nor a Unix stream.
func Wrap(conn net.Conn) net.Conn { return wrap(conn) }
