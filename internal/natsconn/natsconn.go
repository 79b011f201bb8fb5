// Package natsconn is a connection for nats.go that hands the messages of some subjects to handlers
// as soon as they are read.
//
// For each message nats.go allocates the message, its subject, reply and data, queues it, and wakes
// the goroutine of the subscription. For each answer it takes the connection's lock and wakes a
// goroutine that writes. For an answer from memory that is twice the work of the answer itself. So
// a [Conn] sits below nats.go. nats.go still connects, authenticates, subscribes and reconnects,
// but it never sees the messages that a [Handler] takes. Those that a handler would take, but for which it
// is too slow, get the time of their arrival as a header: they may wait in nats.go for long.
// Everything else passes through unchanged.
//
// TLS is made here too ([Conn.StartTLS]), if the server asks for it in the NATS protocol. Websocket
// frames are not parsed: over a websocket no handler is called, and nats.go gets everything.
//
// Words of this package: the client is nats.go, which reads and writes the Conn. To pass bytes is
// to give them to the client.
package natsconn

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed503877ad/limits/internal/quickconn"
)

// Message is a message. Reply is empty if nobody waits for an answer. Headers are left out.
type Message struct {
	Reply, Data []byte
}

// Handler takes messages of one subject that arrived together, in order, and returns how many it
// took. The message after these is passed to nats.go, and the handler is called again for the rest.
// The bytes are valid until the handler returns. It runs on the goroutine that reads the
// connection, so it must not block.
type Handler func(c *Conn, all []Message) (taken int)

// Handlers are the handlers, by subject, of the connections that one client makes one after
// another. They can be set at any time. Handlers do not subscribe: they see what the server sends
// for subscriptions made elsewhere.
type Handlers struct {
	set atomic.Pointer[handlerSet]
	// Dropped is called for each message that is dropped because it, or its answer, would end the
	// connection: a message with a carriage return in a subject, or with a reply subject of more
	// than [MaxReplySubject] bytes. It is called on the reading goroutine, and must be set before
	// the first connection is made. May be nil.
	Dropped func()
	// Refused is called for each error of the server that is kept from nats.go for the same reason.
	// The rules of Dropped apply.
	Refused func(text string)
}

// handlerSet has all handlers, and those that are called even while handlers lag. Arrivals are told
// as the time since origin, which the clock of the machine, if it is set, does not change.
type handlerSet struct {
	all, always map[string]Handler
	origin      time.Time
}

// Set replaces all handlers. The caller must not change the map afterwards. The handlers of the
// subjects in always are called even while handlers lag behind the messages, so they must return at
// once. Messages of a subject whose handler is nil all go to nats.go, with [Handlers.ReceivedAt].
func (h *Handlers) Set(all map[string]Handler, always ...string) {
	set := handlerSet{all, make(map[string]Handler, len(always)), time.Now()}
	if before := h.set.Load(); before != nil {
		set.origin = before.origin
	}
	for _, subject := range always {
		set.always[subject] = all[subject]
	}
	h.set.Store(&set)
}

// receivedHeader says when a message arrived that nats.go got instead of a handler.
const receivedHeader = "Limits-Received"

// ReceivedAt is when a message arrived that nats.go got because handlers lagged, or because its
// handler is nil. It is zero for any other. Such a message has no other headers.
//
// Anybody may send such a header where messages are not parsed. It can only make a message older.
func (h *Handlers) ReceivedAt(headers map[string][]string) time.Time {
	set, said := h.set.Load(), headers[receivedHeader]
	if set == nil || len(said) == 0 {
		return time.Time{}
	}
	after, err := strconv.ParseInt(said[0], 10, 64)
	at, now := set.origin.Add(time.Duration(after)), time.Now()
	if err != nil || at.After(now) {
		return now
	}
	return at
}

// active returns the handlers to call.
func (h *Handlers) active(lagging bool) map[string]Handler {
	switch set := h.set.Load(); {
	case set == nil:
		return nil
	case lagging:
		return set.always
	default:
		return set.all
	}
}

// has reports whether a subject has a handler, be it nil.
func (h *Handlers) has(subject []byte) bool {
	set := h.set.Load()
	if set == nil {
		return false
	}
	_, known := set.all[string(subject)]
	return known
}

// MaxReplySubject bounds the bytes of a reply subject. By default a NATS server accepts protocol
// lines of up to 4096 bytes from a client and closes the connection at a longer one. But it
// delivers longer subjects that came from another server.
const MaxReplySubject = 1024

// MaxBatch is the most messages that a handler gets at a time.
const MaxBatch = 32

const (
	// readSize bounds a message that a handler can take, protocol line included. nats.go reads as
	// much at a time.
	readSize = 32 << 10
	// maxLine bounds the protocol line that is buffered until its end arrives.
	maxLine = 1 << 20
	// yieldEvery is how long a busy connection is read before other goroutines get to run.
	yieldEvery = time.Millisecond
	// briefWrite is the timeout of each chunk when the reading goroutine writes on a connection that
	// cannot write without waiting.
	briefWrite = time.Millisecond
	// maxLag is how long handlers may lag behind the messages before these are passed to the client
	// instead. The client copies them and drops those for which its subscriptions have no room.
	// Otherwise the server would close a connection on which too much waits.
	maxLag = 50 * time.Millisecond
	// refusalTimeout is how long to wait for the reason why a server closed the connection.
	refusalTimeout = 100 * time.Millisecond

	// Publish waits for the writes once flushSize bytes are queued, or maxQueued while handlers run.
	// PublishNoWait fails once maxQueued are.
	flushSize, maxQueued = 32 << 10, 1 << 20
	// maxSpare bounds the write buffer that is kept for reuse.
	maxSpare = 64 << 10
	// Each chunkSize bytes of a write may take the write timeout, and the whole write
	// maxChunkTimeouts times that.
	chunkSize, maxChunkTimeouts = 64 << 10, 5
)

// Conn is one connection. Write deadlines that the client sets have no effect: each write has the
// timeout of the Conn.
type Conn struct {
	net.Conn
	// raw is the connection below TLS, or Conn itself.
	raw net.Conn
	// trier is raw if it can write without waiting, else nil. A deadline for each write would set a
	// timer, which wakes the process.
	trier        quickconn.Trier
	handlers     *Handlers
	writeTimeout time.Duration
	// maxLag is the constant, unless a test sets it.
	maxLag time.Duration

	// The fields up to batchLimit belong to the goroutine that reads.

	// in[from:to] has arrived, its last bytes at receivedAt, and is neither taken nor passed yet.
	in         []byte
	from, to   int
	receivedAt time.Time
	// nextErr is the error that came together with data: the next read returns it.
	nextErr error
	// yieldedAt is when other goroutines were last let run.
	yieldedAt time.Time
	// laggingSince is since when each read has found data waiting; zero if the last one had to wait.
	laggingSince time.Time
	// The next passLen bytes are passed to the client after passHead, or dropped if dropPass is set.
	// With midLine so is all up to the end of the line.
	passHead, headBuf []byte
	headerBuf         [64]byte
	passLen           int
	dropPass, midLine bool
	// gotPong says that the server has answered a client that connected.
	gotPong bool
	// batch has the messages for a handler, and batchEnds where each of them ends in in.
	batch     [MaxBatch]Message
	batchEnds [MaxBatch]int
	// batchLimit bounds the next batch. It is 1 after a handler left a message, because the
	// messages after that one have to be parsed again, and doubles with each batch.
	batchLimit int

	// clientWrote says that the client has written something. Its first write tells whether the
	// connection speaks the NATS protocol, and then parsing is set: what arrives is parsed for
	// handlers.
	clientWrote, parsing atomic.Bool
	// serverSpoke says that something arrived before the client wrote.
	serverSpoke atomic.Bool
	// clientReads says that the client has begun to read after its first write.
	clientReads atomic.Bool
	// established says that the client has finished connecting, and broken that the connection
	// failed or was closed.
	established, broken atomic.Bool

	mu sync.Mutex
	// dispatching says that handlers run; out is written when they have returned.
	dispatching bool
	// overTLS says that Conn is TLS. A TLS connection cannot be used after a write that timed out.
	overTLS bool
	// out is queued to be written, and spare is an empty buffer for reuse.
	out, spare []byte
	// writing says that a goroutine writes, without holding mu. Only one does at a time.
	writing bool
	// queued counts the bytes ever put into out, and written those that were written. writeDone is
	// signaled when a write has ended, as it does when the connection is closed.
	queued, written int64
	writeDone       sync.Cond
	// err is why nothing can be written any more.
	err error
}

// New wraps a connection to a NATS server. A write of up to 64 KiB that takes longer than
// writeTimeout closes the connection, and so does a larger one that takes five times as long.
func New(conn net.Conn, handlers *Handlers, writeTimeout time.Duration) *Conn {
	c := &Conn{Conn: conn, raw: conn, handlers: handlers, writeTimeout: writeTimeout, maxLag: maxLag, batchLimit: MaxBatch}
	c.writeDone.L = &c.mu
	c.trier, _ = conn.(quickconn.Trier)
	return c
}

// ServerSpoke reports whether the server sent anything before the client wrote.
func (c *Conn) ServerSpoke() bool { return c.serverSpoke.Load() }

// Up reports, without blocking, whether the client has finished connecting and nothing has failed
// since. It works over websockets too.
func (c *Conn) Up() bool { return c.established.Load() && !c.broken.Load() }

var errEarly = errors.New("received plain text after the server's first line, before TLS was established")

// StartTLS makes TLS over the connection. It is called while the client connects, when nobody else
// uses the connection. After an error the connection cannot be used. It fails if plain text
// followed the server's first line: anyone on the way could have sent that.
func (c *Conn) StartTLS(config *tls.Config) error {
	if c.from < c.to {
		return errEarly
	}
	secure := tls.Client(c.Conn, config)
	ctx, cancel := context.WithTimeout(context.Background(), c.writeTimeout)
	defer cancel()
	if err := secure.HandshakeContext(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Conn, c.overTLS = secure, true
	return nil
}

// Fail closes the connection. Each later write returns err.
func (c *Conn) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken.Store(true)
	if c.err == nil {
		c.err = err
	}
	_ = c.raw.Close()
}

// Close implements [net.Conn].
func (c *Conn) Close() error {
	c.broken.Store(true)
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = net.ErrClosed
	}
	return err
}

// SetDeadline implements [net.Conn], for reads alone. nats.go sets a deadline while it connects,
// and clears it when it has connected.
func (c *Conn) SetDeadline(t time.Time) error {
	c.established.Store(t.IsZero())
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline implements [net.Conn] and does nothing: the client's deadline would apply to the
// writes of others.
func (c *Conn) SetWriteDeadline(time.Time) error { return nil }
