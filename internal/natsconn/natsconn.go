// Package natsconn is a connection for nats.go that handles the messages of some subjects where they are read.
//
// For each message nats.go allocates it, its subject, reply and data, puts it into a queue, and wakes the goroutine of the subscription.
// An answer takes the lock of the connection and wakes a goroutine that writes it. For an answer from memory that is twice the work of
// the answer itself. So the connections of this package stand below nats.go, which connects, authenticates, subscribes and reconnects
// as ever, and keep from it the messages that a [Handler] takes. Everything else passes through them as it came.
//
// What goes over TLS or a websocket cannot be read here: then no handler is called, and nats.go has all of it.
package natsconn

import (
	"bytes"
	"net"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Message has a subject to answer to, and no headers.
type Message struct{ Reply, Data []byte }

// Handler takes messages of one subject that came together, the first of all, and says how many: the one behind these it leaves to
// nats.go, and is called again for the rest. The bytes are valid until it returns. It is called on the goroutine that reads, so it must
// not block.
type Handler func(c *Conn, all []Message) (taken int)

// Handlers are those of the connections that one client makes, one after another, by subject. They can be set at any time. A subject
// without one, and one that nobody has subscribed to, costs nothing.
type Handlers struct {
	set atomic.Pointer[map[string]Handler]
}

// Set replaces all of them. The map must not be changed any more.
func (h *Handlers) Set(all map[string]Handler) { h.set.Store(&all) }

func (h *Handlers) all() map[string]Handler {
	if set := h.set.Load(); set != nil {
		return *set
	}
	return nil
}

// Together is how many messages a handler gets at a time, at most.
const Together = 32

const (
	// readSize bounds a message that a handler can take, with its head; nats.go reads as much at a time.
	readSize = 32 << 10
	// aloneMost is how long a connection is read while nothing else of the process may run.
	aloneMost = time.Millisecond
	// writeSize is from when on answers are written at once, and keptSize what is kept of the room for them.
	writeSize, keptSize = 32 << 10, 64 << 10
)

// Conn is one connection. It has no write deadline but its timeout, which each write has.
type Conn struct {
	net.Conn
	handlers *Handlers
	timeout  time.Duration

	// in[from:to] has come, the last of it at came, and was not given away. It belongs to who reads, as all up to readable.
	in       []byte
	from, to int
	came     time.Time
	// yielded is when others were let run last.
	yielded time.Time
	// pass is how many bytes from there on are the client's; with line they are so up to the end of a line, and with broken all.
	pass         int
	line, broken bool
	// found are the messages that a handler gets, and ends where each of them does.
	found [Together]Message
	ends  [Together]int
	// readable says that what comes is the protocol of NATS itself. What the client writes first tells it.
	readable atomic.Bool

	mu sync.Mutex
	// wrote says that the client has written, and scanning that handlers run, behind which out is written.
	wrote, scanning bool
	out             []byte
	// err is why nothing can be written any more.
	err error
}

// New makes one of a connection to a NATS server. A write that takes longer than timeout closes it.
func New(conn net.Conn, handlers *Handlers, timeout time.Duration) *Conn {
	return &Conn{Conn: conn, handlers: handlers, timeout: timeout}
}

// Read implements [net.Conn]: it gives what no handler took.
func (c *Conn) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if !c.readable.Load() {
			return c.Conn.Read(p)
		}
		if n = c.scan(p); n > 0 {
			return n, nil
		}
		// Where there is always more to read, and one processor, nothing else would run for 10 ms at a time.
		if c.came.Sub(c.yielded) >= aloneMost {
			c.yielded = c.came
			runtime.Gosched()
		}
		if c.in == nil {
			c.in = make([]byte, readSize)
		}
		c.to = copy(c.in, c.in[c.from:c.to])
		c.from = 0
		n, err = c.Conn.Read(c.in[c.to:])
		if c.to += n; err != nil {
			return 0, err
		}
		c.came = time.Now()
	}
}

// Came is when a message came, for its handler: that asks no clock for each of many that came together.
func (c *Conn) Came() time.Time { return c.came }

// scan has handlers take what is theirs, and writes what they answer. What is there of all else it moves to p, and gives how many bytes.
func (c *Conn) scan(p []byte) (n int) {
	if c.from == c.to {
		return 0
	}
	c.mu.Lock()
	c.scanning = true
	c.mu.Unlock()
	handlers := c.handlers.all()
	for n < len(p) && c.from < c.to {
		if c.pass == 0 {
			if handler, count := c.gather(handlers); count > 0 {
				taken := handler(c, c.found[:count])
				if taken > 0 {
					c.from = c.ends[taken-1]
				}
				if taken < count {
					c.pass = c.ends[taken] - c.from
				}
			} else if c.pass == 0 {
				break // there is more to come
			}
		}
		k := copy(p[n:], c.in[c.from:min(c.to, c.from+c.pass)])
		n, c.from, c.pass = n+k, c.from+k, c.pass-k
	}
	c.mu.Lock()
	c.scanning = false
	_ = c.flush() // when it fails the connection is closed, which the next read tells
	c.mu.Unlock()
	return n
}

// gather finds the next messages for one handler. When what comes next is the client's, or begins with that, it sets pass instead, and
// when too little is there to tell it does neither.
func (c *Conn) gather(handlers map[string]Handler) (handler Handler, count int) {
	var of []byte
	for at := c.from; count < Together; {
		rest := c.in[at:c.to]
		if !c.isMessage(rest) {
			if count == 0 {
				c.passOther(rest)
			}
			break
		}
		end := bytes.IndexByte(rest, '\n') + 1
		if end == 0 && len(rest) < readSize {
			break
		}
		subject, reply, size := head(rest[:end])
		whole := end + size + len("\r\n")
		switch {
		case count > 0:
			if !bytes.Equal(subject, of) || len(reply) == 0 {
				return handler, count
			}
		case size < 0: // the client will say so
			c.broken = true
			c.passOther(rest)
			return nil, 0
		default:
			of, handler = subject, handlers[string(subject)]
			if handler == nil || len(reply) == 0 || rest[0] == 'H' || whole > readSize {
				c.pass = whole
				return nil, 0
			}
		}
		if size < 0 || rest[0] == 'H' || len(rest) < whole {
			break
		}
		at += whole
		c.found[count], c.ends[count] = Message{reply, rest[end : end+size]}, at
		count++
	}
	return handler, count
}

// isMessage tells whether rest is the begin of a message, or may be.
func (c *Conn) isMessage(rest []byte) bool {
	if c.line || c.broken {
		return false
	}
	const message, withHeaders = "MSG ", "HMSG "
	return bytes.HasPrefix(rest, []byte(message)) || bytes.HasPrefix(rest, []byte(withHeaders)) ||
		len(rest) < len(withHeaders) && (bytes.HasPrefix([]byte(message), rest) || bytes.HasPrefix([]byte(withHeaders), rest))
}

// passOther passes on what is no message: a line, of any length.
func (c *Conn) passOther(rest []byte) {
	end := bytes.IndexByte(rest, '\n') + 1
	if c.line = end == 0; c.line || c.broken {
		end = len(rest)
	}
	c.pass = end
}

// head reads the first line of a message: its subject, where to answer, and how many bytes follow up to the end of line behind it. The
// size is below 0 when it is no such line.
func head(line []byte) (subject, reply []byte, size int) {
	rest, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok {
		return nil, nil, -1
	}
	_, rest, _ = bytes.Cut(rest, []byte(" ")) // MSG or HMSG
	subject, rest, _ = bytes.Cut(rest, []byte(" "))
	_, rest, _ = bytes.Cut(rest, []byte(" ")) // the subscription
	reply, number, hasReply := bytes.Cut(rest, []byte(" "))
	if !hasReply {
		reply, number = nil, rest
	}
	// Of a message with headers their size stands before that of all.
	number = number[bytes.LastIndexByte(number, ' ')+1:]
	if len(number) == 0 || len(number) > 9 {
		return nil, nil, -1
	}
	for _, digit := range number {
		if digit < '0' || digit > '9' {
			return nil, nil, -1
		}
		size = size*10 + int(digit-'0')
	}
	return subject, reply, size
}

// Publish sends a message, soon, to the subject that a message had to answer to. Both are copied. How many bytes the server takes is for
// the caller to know. When it fails nothing was sent.
func (c *Conn) Publish(subject, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	nothing := len(c.out) == 0
	c.out = append(append(c.out, "PUB "...), subject...)
	c.out = strconv.AppendInt(append(c.out, ' '), int64(len(data)), 10)
	c.out = append(append(append(c.out, "\r\n"...), data...), "\r\n"...)
	switch {
	case len(c.out) >= writeSize:
		return c.flush()
	case nothing && !c.scanning:
		go func() {
			c.mu.Lock()
			_ = c.flush() // as in scan
			c.mu.Unlock()
		}()
	}
	return nil
}

// Write implements [net.Conn], for the client: what was published before goes before it.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.wrote && len(p) > 0 {
		c.wrote = true
		c.readable.Store(bytes.HasPrefix(p, []byte("CONNECT ")))
	}
	c.out = append(c.out, p...)
	if err := c.flush(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// flush writes what is to be written; mu is held.
func (c *Conn) flush() error {
	if c.err != nil || len(c.out) == 0 {
		return c.err
	}
	_ = c.Conn.SetWriteDeadline(time.Now().Add(c.timeout))
	_, c.err = c.Conn.Write(c.out)
	if c.out = c.out[:0]; cap(c.out) > keptSize {
		c.out = nil
	}
	if c.err != nil {
		_ = c.Conn.Close()
	}
	return c.err
}

// Close implements [net.Conn].
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = net.ErrClosed
	}
	return err
}

// SetDeadline implements [net.Conn], for reads alone.
func (c *Conn) SetDeadline(t time.Time) error { return c.Conn.SetReadDeadline(t) }

// SetWriteDeadline implements [net.Conn], and does nothing: the client would end the deadline of others' writes with its own.
func (c *Conn) SetWriteDeadline(time.Time) error { return nil }
