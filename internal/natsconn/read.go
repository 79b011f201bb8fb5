package natsconn

import (
	"bytes"
	"runtime"
	"slices"
	"strconv"
	"time"
)

// Read implements [net.Conn]: it returns what no handler took.
func (c *Conn) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if !c.parsing.Load() {
			return c.readUnparsed(p)
		}
		if n = c.dispatch(p); n > 0 {
			return n, nil
		} else if !c.parsing.Load() {
			continue // dispatch found that it cannot parse this
		}
		// On one processor nothing else would run for 10 ms at a time while there is always more to
		// read.
		if !c.lagging() && c.receivedAt.Sub(c.yieldedAt) >= yieldEvery {
			c.yieldedAt = c.receivedAt
			runtime.Gosched()
		}
		if !c.clientReads.Load() {
			c.clientReads.Store(true)
		}
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
}

// fill reads more into the buffer.
func (c *Conn) fill() error {
	if c.in == nil {
		c.in = make([]byte, readSize)
	}
	c.to = copy(c.in, c.in[c.from:c.to])
	c.from = 0
	if c.to == len(c.in) { // a line that is longer than any message for a handler
		c.in = append(c.in, make([]byte, readSize)...)
	}
	n, err := c.receive(c.in[c.to:])
	c.to += n
	if err != nil {
		return err
	}
	c.receivedAt = time.Now()
	if c.caughtUp() {
		c.laggingSince = time.Time{}
	} else if c.laggingSince.IsZero() {
		c.laggingSince = c.receivedAt
	}
	return nil
}

// readUnparsed is Read while nothing is parsed for handlers. Until the client writes, it returns at
// most one line: the client may start TLS after the first, and would take bytes of the next line
// for something that came over TLS.
func (c *Conn) readUnparsed(p []byte) (n int, err error) {
	clientWrote := c.clientWrote.Load()
	if c.from == c.to {
		if clientWrote {
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
			c.serverSpoke.Store(true)
		}
	}
	buffered := c.in[c.from:c.to]
	if end := bytes.IndexByte(buffered, '\n') + 1; end > 0 && !clientWrote {
		buffered = buffered[:end]
	}
	n = copy(p, buffered)
	c.from += n
	return n, nil
}

// receive reads from the connection. An error that comes together with data is returned by the next
// call, because the client would ignore the data.
func (c *Conn) receive(p []byte) (n int, err error) {
	if err, c.nextErr = c.nextErr, nil; err == nil {
		if n, err = c.Conn.Read(p); err != nil {
			c.broken.Store(true)
		}
	}
	if n > 0 && err != nil {
		c.nextErr, err = err, nil
	}
	return n, c.readError(err)
}

// caughtUp reports whether the last read had to wait for data. If the connection does not know, it
// reports whether that read left room in the buffer.
func (c *Conn) caughtUp() bool {
	if c.trier != nil {
		return c.trier.Waited()
	}
	return c.to < len(c.in)
}

// lagging reports whether more has arrived than handlers take, for more than maxLag.
func (c *Conn) lagging() bool {
	return !c.laggingSince.IsZero() && c.receivedAt.Sub(c.laggingSince) > c.maxLag
}

// readError returns the write error that ended the connection, if there is one, instead of the read
// error that followed from it.
func (c *Conn) readError(err error) error {
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

// ReceivedAt is when the messages that a handler gets arrived. With it a handler need not read the
// clock for each message.
func (c *Conn) ReceivedAt() time.Time { return c.receivedAt }

// dispatch calls handlers for their messages in the buffer, and writes their answers. It copies
// everything else to p, and returns how many bytes.
func (c *Conn) dispatch(p []byte) (n int) {
	if c.from == c.to {
		return 0
	}
	c.mu.Lock()
	c.dispatching = true
	c.mu.Unlock()
	handlers := c.handlers.active(c.lagging())
	for n < len(p) && c.from < c.to {
		if c.passLen == 0 {
			if handler, count := c.nextBatch(handlers); count > 0 {
				c.callHandler(handler, count)
				if c.from < c.to && time.Since(c.receivedAt) > c.maxLag {
					handlers = c.handlers.active(true)
				}
			} else if c.passLen == 0 {
				break // what comes next is not complete
			}
		}
		n += c.passTo(p[n:])
	}
	c.mu.Lock()
	c.dispatching = false
	c.tryWrite()
	c.mu.Unlock()
	return n
}

// callHandler gives a batch to its handler. The message after those that the handler took is to be
// passed.
func (c *Conn) callHandler(handler Handler, count int) {
	taken := handler(c, c.batch[:count])
	if taken > 0 {
		c.from = c.batchEnds[taken-1]
	}
	if c.batchLimit = min(2*c.batchLimit, MaxBatch); taken < count {
		c.passLen, c.batchLimit = c.batchEnds[taken]-c.from, 1
	}
}

// passTo copies to p what it can of the next passLen bytes, or drops them.
func (c *Conn) passTo(p []byte) (n int) {
	if len(c.passHead) > 0 {
		n = copy(p, c.passHead)
		c.passHead = c.passHead[n:]
		return n
	}
	pass := c.in[c.from:min(c.to, c.from+c.passLen)]
	done := len(pass)
	if !c.dropPass {
		n = copy(p, pass)
		done = n
	}
	if c.from, c.passLen = c.from+done, c.passLen-done; c.passLen == 0 {
		c.dropPass = false
	}
	return n
}

// nextBatch finds the next messages for one handler. If something for the client comes first, it
// sets passLen instead. It does neither if too little has arrived to tell.
func (c *Conn) nextBatch(handlers map[string]Handler) (handler Handler, count int) {
	var batchSubject []byte
	for at := c.from; count < c.batchLimit; {
		rest := c.in[at:c.to]
		if !c.maybeMessage(rest) {
			if count == 0 {
				c.passLine(rest)
			}
			break
		}
		lineEnd := bytes.IndexByte(rest, '\n') + 1
		if lineEnd == 0 {
			if len(rest) >= maxLine { // nats.go will report it
				c.parsing.Store(false)
			}
			break
		}
		subject, reply, headers, size := parseMessageLine(rest[:lineEnd])
		if size < 0 {
			if count == 0 { // nats.go will report it
				c.parsing.Store(false)
			}
			break
		}
		end := lineEnd + size + len("\r\n")
		// nats.go ends the connection at a carriage return, which a client may have put there. The
		// server ends it at an answer whose subject is too long.
		fatal := bytes.IndexByte(rest[:lineEnd], '\r') < lineEnd-len("\r\n") || len(reply) > MaxReplySubject
		takable := !fatal && end <= readSize
		if count == 0 {
			batchSubject, handler = subject, handlers[string(subject)]
			if handler == nil && takable && len(reply) > 0 && c.handlers.has(subject) {
				if len(rest) >= end {
					c.passStamped(rest[:lineEnd], lineEnd+headers, end)
				}
				return nil, 0
			} else if handler == nil || !takable {
				c.passMessage(end, fatal)
				return nil, 0
			}
		} else if !takable || !bytes.Equal(subject, batchSubject) {
			break
		}
		if len(rest) < end {
			break
		}
		at += end
		data := rest[lineEnd+headers : lineEnd+size : lineEnd+size]
		c.batch[count], c.batchEnds[count] = Message{reply, data}, at
		count++
	}
	return handler, count
}

// maybeMessage reports whether rest begins with a message, or may do so once more has arrived.
func (c *Conn) maybeMessage(rest []byte) bool {
	if c.midLine {
		return false
	}
	const message, withHeaders = "MSG ", "HMSG "
	return bytes.HasPrefix(rest, []byte(message)) || bytes.HasPrefix(rest, []byte(withHeaders)) ||
		len(rest) < len(withHeaders) && (bytes.HasPrefix([]byte(message), rest) || bytes.HasPrefix([]byte(withHeaders), rest))
}

// passMessage passes the next message, or drops it.
func (c *Conn) passMessage(size int, drop bool) {
	c.passLen, c.dropPass = size, drop
	if drop && c.handlers.Dropped != nil {
		c.handlers.Dropped()
	}
}

// passStamped passes a message with one header, which says when it arrived, in place of its own. line
// is its first line, its data begins at data, and all of it ends at end.
func (c *Conn) passStamped(line []byte, data, end int) {
	words, _ := cutSize(bytes.TrimRight(line, "\r\n"))
	if words[0] == 'H' {
		words, _ = cutSize(words[1:])
	}
	after := c.receivedAt.Sub(c.handlers.set.Load().origin)
	header := strconv.AppendInt(append(c.headerBuf[:0], "NATS/1.0\r\n"+receivedHeader+": "...), int64(after), 10)
	header = append(header, "\r\n\r\n"...)
	head := append(append(append(c.headBuf[:0], 'H'), words...), ' ')
	head = append(strconv.AppendInt(head, int64(len(header)), 10), ' ')
	head = strconv.AppendInt(head, int64(len(header)+end-data-len("\r\n")), 10)
	c.headBuf = append(append(head, "\r\n"...), header...)
	c.passHead, c.passLen = c.headBuf, end-data
	c.from += data
}

// passLine passes a line that is no message, of any length. A line that may be an error, or the
// first PONG, is looked at when it is complete.
func (c *Conn) passLine(rest []byte) {
	end := bytes.IndexByte(rest, '\n') + 1
	if end == 0 && !c.midLine && (rest[0] == '-' || rest[0] == 'P') && len(rest) < maxLine {
		return
	}
	complete := end > 0 && !c.midLine
	if c.midLine = end == 0; c.midLine {
		end = len(rest)
	}
	c.passLen = end
	if !complete {
		return
	}
	c.gotPong = c.gotPong || bytes.HasPrefix(rest, []byte("PONG"))
	if text, ok := bytes.CutPrefix(rest[:end], []byte("-ERR")); ok && c.gotPong && !survivable(text) {
		c.dropPass = true
		if c.handlers.Refused != nil {
			c.handlers.Refused(string(bytes.Trim(text, "' \t\r\n")))
		}
	}
}

// survivableErrors are the beginnings of those errors of a server after which nats.go v1.55 goes on
// or reconnects (processErr in nats.go). After any other error it closes the connection for good,
// whatever it was told about reconnecting: for example when the server takes smaller messages than
// before, or an answer's subject is too long for it. Such an error is kept from nats.go. If it ends
// the connection the server closes it, and then nats.go reconnects.
var survivableErrors = []string{
	"stale connection", "maximum connections exceeded", "maximum account active connections exceeded", "unknown protocol operation",
	"permissions violation", "maximum subscriptions exceeded", "authorization violation", "user authentication expired",
	"user authentication revoked", "account authentication expired",
}

// survivable reports whether nats.go goes on after an error of the server.
func survivable(text []byte) bool {
	text = bytes.ToLower(bytes.Trim(text, "' \t\r\n"))
	return slices.ContainsFunc(survivableErrors, func(begin string) bool { return bytes.HasPrefix(text, []byte(begin)) })
}

// parseMessageLine parses the first line of a message. headers is how many bytes of headers follow
// the line, and size how many bytes with them, without the final CR LF. size is below 0 if the line
// is malformed.
func parseMessageLine(line []byte) (subject, reply []byte, headers, size int) {
	rest, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok {
		return nil, nil, 0, -1
	}
	verb, rest, _ := bytes.Cut(rest, []byte(" "))
	subject, rest, _ = bytes.Cut(rest, []byte(" "))
	_, rest, _ = bytes.Cut(rest, []byte(" ")) // the subscription
	rest, size = cutSize(rest)
	if verb[0] == 'H' {
		rest, headers = cutSize(rest)
	}
	if headers < 0 || headers > size || bytes.IndexByte(rest, ' ') >= 0 {
		return nil, nil, 0, -1
	}
	return subject, rest, headers, size
}

// cutSize cuts off the last word, a number below 10^9. n is -1 if the word is anything else.
func cutSize(text []byte) (before []byte, n int) {
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
