package natsconn

import (
	"bytes"
	"runtime"
	"slices"
	"time"
)

// Read implements [net.Conn]: it gives what no handler took.
func (c *Conn) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if !c.readable.Load() {
			return c.readOther(p)
		}
		if n = c.scan(p); n > 0 {
			return n, nil
		} else if !c.readable.Load() {
			continue // it was found not to be
		}
		// Where there is always more to read, and one processor, nothing else would run for 10 ms at a time.
		if !c.overrun() && c.came.Sub(c.yielded) >= aloneMost {
			c.yielded = c.came
			runtime.Gosched()
		}
		if !c.listens.Load() {
			c.listens.Store(true)
		}
		if c.in == nil {
			c.in = make([]byte, readSize)
		}
		c.to = copy(c.in, c.in[c.from:c.to])
		c.from = 0
		if c.to == len(c.in) { // a head that is longer than any message for a handler
			c.in = append(c.in, make([]byte, readSize)...)
		}
		n, err = c.receive(c.in[c.to:])
		if c.to += n; err != nil {
			return 0, err
		}
		c.came = time.Now()
		if c.paused() {
			c.behind = time.Time{}
		} else if c.behind.IsZero() {
			c.behind = c.came
		}
	}
}

// readOther is Read where nothing is for handlers. As long as the client has written nothing it gives a line at most: the client may make TLS
// behind the first, and would take what it has of the next for something that came over that.
func (c *Conn) readOther(p []byte) (n int, err error) {
	begun := c.begun.Load()
	if c.from == c.to {
		if begun {
			return c.receive(p)
		}
		if c.in == nil {
			c.in = make([]byte, readSize)
		}
		c.from = 0
		if c.to, err = c.receive(c.in); err != nil {
			return 0, err
		}
		if c.to > 0 {
			c.heard.Store(true)
		}
	}
	there := c.in[c.from:c.to]
	if end := bytes.IndexByte(there, '\n') + 1; end > 0 && !begun {
		there = there[:end]
	}
	n = copy(p, there)
	c.from += n
	return n, nil
}

// receive reads from below. An error beside something that came is that of the next call: the client would leave what came.
func (c *Conn) receive(p []byte) (n int, err error) {
	if err, c.failed = c.failed, nil; err == nil {
		if n, err = c.Conn.Read(p); err != nil {
			c.over.Store(true)
		}
	}
	if n > 0 && err != nil {
		c.failed, err = err, nil
	}
	return n, c.why(err)
}

// paused tells whether there was nothing to read before the last read; where that is not known, whether nothing is behind it.
func (c *Conn) paused() bool {
	if c.trier != nil {
		return c.trier.Waited()
	}
	return c.to < len(c.in)
}

// overrun tells whether more comes, for long, than handlers take.
func (c *Conn) overrun() bool { return !c.behind.IsZero() && c.came.Sub(c.behind) > c.behindMost }

// why gives the error of a read, or that of a write because of which there is nothing to read.
func (c *Conn) why(err error) error {
	if err == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	return err
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
	handlers := c.handlers.called(c.overrun())
	for n < len(p) && c.from < c.to {
		if c.pass == 0 {
			if handler, count := c.gather(handlers); count > 0 {
				taken := handler(c, c.found[:count])
				if taken > 0 {
					c.from = c.ends[taken-1]
				}
				if c.together = min(2*c.together, Together); taken < count {
					c.pass, c.together = c.ends[taken]-c.from, 1
				}
			} else if c.pass == 0 {
				break // there is more to come
			}
		}
		there := c.in[c.from:min(c.to, c.from+c.pass)]
		k := len(there)
		if !c.drop {
			k = copy(p[n:], there)
			n += k
		}
		if c.from, c.pass = c.from+k, c.pass-k; c.pass == 0 {
			c.drop = false
		}
	}
	c.mu.Lock()
	c.scanning = false
	c.writeBriefly()
	c.mu.Unlock()
	return n
}

// gather finds the next messages for one handler. When what comes next is the client's, or begins with that, it sets pass instead, and
// when too little is there to tell it does neither.
func (c *Conn) gather(handlers map[string]Handler) (handler Handler, count int) {
	var of []byte
	for at := c.from; count < c.together; {
		rest := c.in[at:c.to]
		if !c.isMessage(rest) {
			if count == 0 {
				c.passOther(rest)
			}
			break
		}
		end := bytes.IndexByte(rest, '\n') + 1
		if end == 0 {
			if len(rest) >= longestHead { // the client will say what it thinks of that
				c.readable.Store(false)
			}
			break
		}
		subject, reply, headers, size := head(rest[:end])
		whole := end + size + len("\r\n")
		// At a carriage return, which a client may have put there, nats.go ends the connection, and at too long an answer the server does.
		fatal := size >= 0 && (bytes.IndexByte(rest[:end], '\r') < end-len("\r\n") || len(reply) > MostReply)
		switch {
		case count > 0:
			if !bytes.Equal(subject, of) || len(reply) == 0 || fatal || whole > readSize {
				return handler, count
			}
		case size < 0: // the client will say so
			c.readable.Store(false)
			return nil, 0
		default:
			of, handler = subject, handlers[string(subject)]
			if fatal {
				c.pass, c.drop = whole, true
				if c.handlers.Dropped != nil {
					c.handlers.Dropped()
				}
				return nil, 0
			}
			if handler == nil || len(reply) == 0 || whole > readSize {
				c.pass = whole
				return nil, 0
			}
		}
		if size < 0 || len(rest) < whole {
			break
		}
		at += whole
		c.found[count], c.ends[count] = Message{reply, rest[end+headers : end+size : end+size]}, at
		count++
	}
	return handler, count
}

// isMessage tells whether rest is the begin of a message, or may be.
func (c *Conn) isMessage(rest []byte) bool {
	if c.line {
		return false
	}
	const message, withHeaders = "MSG ", "HMSG "
	return bytes.HasPrefix(rest, []byte(message)) || bytes.HasPrefix(rest, []byte(withHeaders)) ||
		len(rest) < len(withHeaders) && (bytes.HasPrefix([]byte(message), rest) || bytes.HasPrefix([]byte(withHeaders), rest))
}

// passOther passes on what is no message: a line, of any length. One that may tell of an error, or that the client is connected, is waited
// for.
func (c *Conn) passOther(rest []byte) {
	end := bytes.IndexByte(rest, '\n') + 1
	if end == 0 && !c.line && (rest[0] == '-' || rest[0] == 'P') && len(rest) < longestHead {
		return
	}
	whole := end > 0 && !c.line
	if c.line = end == 0; c.line {
		end = len(rest)
	}
	c.pass = end
	if !whole {
		return
	}
	c.connected = c.connected || bytes.HasPrefix(rest, []byte("PONG"))
	if text, ok := bytes.CutPrefix(rest[:end], []byte("-ERR")); ok && c.connected && !goesOn(text) {
		c.drop = true
		if c.handlers.Refused != nil {
			c.handlers.Refused(string(bytes.Trim(text, "' \t\r\n")))
		}
	}
}

// goneOn are the errors of a server after which nats.go v1.55 goes on, or connects anew (processErr in nats.go), by how they begin. At
// all others it closes the connection for good, however often it is to reconnect: such as where the server takes less of a message than
// before, or an answer's subject is too long for it. Where such an error is the end of the connection the server closes it, which nats.go
// takes for a reason to reconnect.
var goneOn = []string{
	"stale connection", "maximum connections exceeded", "maximum account active connections exceeded", "unknown protocol operation",
	"permissions violation", "maximum subscriptions exceeded", "authorization violation", "user authentication expired",
	"user authentication revoked", "account authentication expired",
}

// goesOn tells whether nats.go goes on after an error.
func goesOn(text []byte) bool {
	text = bytes.ToLower(bytes.Trim(text, "' \t\r\n"))
	return slices.ContainsFunc(goneOn, func(begin string) bool { return bytes.HasPrefix(text, []byte(begin)) })
}

// head reads the first line of a message: its subject, where to answer, how many bytes of headers follow, and how many with them up to the
// end of line behind it. The size is below 0 when it is no such line.
func head(line []byte) (subject, reply []byte, headers, size int) {
	rest, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok {
		return nil, nil, 0, -1
	}
	verb, rest, _ := bytes.Cut(rest, []byte(" "))
	subject, rest, _ = bytes.Cut(rest, []byte(" "))
	_, rest, _ = bytes.Cut(rest, []byte(" ")) // the subscription
	rest, size = cutNumber(rest)
	if verb[0] == 'H' {
		rest, headers = cutNumber(rest)
	}
	if headers < 0 || headers > size || bytes.IndexByte(rest, ' ') >= 0 {
		return nil, nil, 0, -1
	}
	return subject, rest, headers, size
}

// cutNumber cuts off the last word, a number below 10^9; it is -1 for another.
func cutNumber(text []byte) (before []byte, n int) {
	at := bytes.LastIndexByte(text, ' ')
	digits := text[at+1:]
	if len(digits) == 0 || len(digits) > 9 {
		return nil, -1
	}
	for _, digit := range digits {
		if digit < '0' || digit > '9' {
			return nil, -1
		}
		n = n*10 + int(digit-'0')
	}
	return text[:max(at, 0)], n
}
