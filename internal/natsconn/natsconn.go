// Package natsconn is a connection for nats.go that handles the messages of some subjects where they are read.
//
// For each message nats.go allocates it, its subject, reply and data, puts it into a queue, and wakes the goroutine of the subscription.
// An answer takes the lock of the connection and wakes a goroutine that writes it. For an answer from memory that is twice the work of
// the answer itself. So the connections of this package stand below nats.go, which connects, authenticates, subscribes and reconnects
// as ever, and keep from it the messages that a [Handler] takes. Everything else passes through them as it came.
//
// TLS is made here, too ([Conn.Secure]), where the server asks for it in the protocol. What goes over a websocket cannot be read: then no
// handler is called, and nats.go has all of it.
package natsconn

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed503877ad/limits/internal/quickconn"
)

// Message has a subject to answer to. Its headers are not told.
type Message struct {
	Reply, Data []byte
}

// Handler takes messages of one subject that came together, the first of all, and says how many: the one behind these it leaves to
// nats.go, and is called again for the rest. The bytes are valid until it returns. It is called on the goroutine that reads, so it must
// not block.
type Handler func(c *Conn, all []Message) (taken int)

// Handlers are those of the connections that one client makes, one after another, by subject. They can be set at any time. One is
// called for what the server sends, which somebody has to subscribe to.
type Handlers struct {
	set atomic.Pointer[handlerSet]
	// Dropped is told of each message that is kept from everybody because it, or its answer, would end the connection: one with a carriage
	// return in a subject, or with more than [MostReply] bytes in that of its answer. It is called where messages are read, and set before there
	// is a connection; nil for none.
	Dropped func()
	// Refused is told of each error of the server that is kept from nats.go for the same reason; like Dropped.
	Refused func(text string)
}

// handlerSet has all handlers, and those that are called while they are behind.
type handlerSet struct{ all, always map[string]Handler }

// Set replaces all of them. The map must not be changed any more. Those of the subjects in always are called also while handlers are behind
// what comes, so they must be done at once.
func (h *Handlers) Set(all map[string]Handler, always ...string) {
	set := handlerSet{all, make(map[string]Handler, len(always))}
	for _, subject := range always {
		set.always[subject] = all[subject]
	}
	h.set.Store(&set)
}

// called gives those that are called; behind, when they are.
func (h *Handlers) called(behind bool) map[string]Handler {
	switch set := h.set.Load(); {
	case set == nil:
		return nil
	case behind:
		return set.always
	default:
		return set.all
	}
}

// MostReply bounds the subject of an answer: a NATS server takes a line of 4096 bytes from a client unless told otherwise, and ends the
// connection at a longer one, but hands on what came over another server.
const MostReply = 1024

// Together is how many messages a handler gets at a time, at most.
const Together = 32

const (
	// readSize bounds a message that a handler can take, with its head; nats.go reads as much at a time.
	readSize = 32 << 10
	// longestHead bounds what is kept of a head that has no end yet.
	longestHead = 1 << 20
	// aloneMost is how long a connection is read while nothing else of the process may run, and how long, where it cannot be tried, it is
	// not read while answers are written.
	aloneMost = time.Millisecond
	// behindMost is how long handlers may be behind what comes before all of it is left to the client, which copies it and drops what its
	// subscriptions have no room for: the server would end a connection on which too much waits.
	behindMost = 50 * time.Millisecond
	// refusalMost is how long is waited for why a server ended the connection.
	refusalMost = 100 * time.Millisecond
	// writeSize is from when on an answer waits until all are written, and mostOut where handlers run; keptSize is what is kept of the
	// room for them. sendSize is what the timeout of a write is for; a longer one may take sendMost times as long.
	writeSize, mostOut, keptSize, sendSize, sendMost = 32 << 10, 1 << 20, 64 << 10, 64 << 10, 5
)

// Conn is one connection. It has no write deadline but its timeout, which each write has.
type Conn struct {
	net.Conn
	// below is the same, or what TLS goes over.
	below net.Conn
	// trier is the one below where it can; a deadline for each write would have its timer wake the process.
	trier    quickconn.Trier
	handlers *Handlers
	timeout  time.Duration
	// behindMost is how long handlers may be behind.
	behindMost time.Duration

	// in[from:to] has come, the last of it at came, and was not given away. It belongs to who reads, as all up to readable.
	in       []byte
	from, to int
	came     time.Time
	// failed is why nothing more comes than what came with it; nil for nothing.
	failed error
	// yielded is when others were let run last, and behind since when there is always something to read; the zero time while there is not.
	yielded, behind time.Time
	// pass is how many bytes from there on are the client's, or, with drop, nobody's; with line they are so up to the end of a line.
	pass       int
	drop, line bool
	// connected says that the server has answered a client that connected.
	connected bool
	// found are the messages that a handler gets, and ends where each of them does. No more are looked for than together: one behind what a
	// handler has left, since what stands behind such a one is found again, and then twice as many each time.
	found    [Together]Message
	ends     [Together]int
	together int
	// begun says that the client has written, and readable that what comes is the protocol of NATS itself. What the client writes first tells
	// it, and all that comes. heard says that anything has come before, and listens that the client has begun to read behind what it wrote first.
	begun, readable, heard, listens atomic.Bool
	// made says that the client is done with connecting, and over that nothing more is read or written.
	made, over atomic.Bool

	mu sync.Mutex
	// scanning says that handlers run, behind which out is written, and whole that a write that takes too long leaves nothing to go on with.
	scanning, whole bool
	// out is to be written, and spare is room for it. One goroutine at a time writes, without mu; added and written count bytes up to the
	// end of out, and up to the end of what was written, which ended tells of.
	out, spare     []byte
	writing        bool
	added, written int64
	ended          sync.Cond
	// err is why nothing can be written any more.
	err error
}

// New makes one of a connection to a NATS server. A write that takes longer than timeout, or five times that for more than sendSize, closes it.
func New(conn net.Conn, handlers *Handlers, timeout time.Duration) *Conn {
	c := &Conn{Conn: conn, below: conn, handlers: handlers, timeout: timeout, behindMost: behindMost, together: Together}
	c.ended.L = &c.mu
	c.trier, _ = conn.(quickconn.Trier)
	return c
}

// Heard tells whether the server has said anything before the client has.
func (c *Conn) Heard() bool { return c.heard.Load() }

// Up tells, without a wait, whether the client has connected, and nothing has failed since. Over a websocket, too.
func (c *Conn) Up() bool { return c.made.Load() && !c.over.Load() }

var errEarly = errors.New("something came in plain text behind the server's first line, before TLS was made")

// Secure makes the rest of the connection go over TLS. It is for who connects, while nobody else uses the connection. When it fails the
// connection is of no use any more. What has come behind the first line is nobody's who can be trusted, so it fails.
func (c *Conn) Secure(config *tls.Config) error {
	if c.from < c.to {
		return errEarly
	}
	secure := tls.Client(c.Conn, config)
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	if err := secure.HandshakeContext(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Conn, c.whole = secure, true
	return nil
}

// Fail closes the connection; err is that of each write from here on.
func (c *Conn) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over.Store(true)
	if c.err == nil {
		c.err = err
	}
	_ = c.below.Close()
}

// Close implements [net.Conn].
func (c *Conn) Close() error {
	c.over.Store(true)
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = net.ErrClosed
	}
	c.ended.Broadcast()
	return err
}

// SetDeadline implements [net.Conn], for reads alone. nats.go sets one while it connects, and ends it then.
func (c *Conn) SetDeadline(t time.Time) error {
	c.made.Store(t.IsZero())
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline implements [net.Conn], and does nothing: the client would end the deadline of others' writes with its own.
func (c *Conn) SetWriteDeadline(time.Time) error { return nil }
