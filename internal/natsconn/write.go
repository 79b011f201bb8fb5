package natsconn

import (
	"bytes"
	"errors"
	"net"
	"os"
	"strconv"
	"time"
)

// Publish sends a message, soon, to the subject that a message had to answer to. Both are copied. How many bytes the server takes is for
// the caller to know. When it fails the message was not sent, nor will be; what waits when the connection ends is lost.
func (c *Conn) Publish(subject, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	alone := c.add(subject, data)
	switch {
	case len(c.out) >= mostOut, len(c.out) >= writeSize && !c.scanning:
		return c.writeAll()
	case alone:
		go c.writeRest()
	}
	return nil
}

var errFull = errors.New("too much waits to be written")

// Offer is Publish, on any subject, for who cannot wait for a server that does not read. It is for a connection that is up, and fails with
// [errors.ErrUnsupported] over a websocket.
func (c *Conn) Offer(subject string, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return c.err
	case !c.readable.Load():
		return errors.ErrUnsupported
	case len(c.out) >= mostOut:
		return errFull
	}
	if c.add([]byte(subject), data) {
		go c.writeRest()
	}
	return nil
}

// add puts a message behind what is to be written; mu is held. It tells whether nobody is about to write that.
func (c *Conn) add(subject, data []byte) (alone bool) {
	before := len(c.out)
	c.out = append(append(c.out, "PUB "...), subject...)
	c.out = strconv.AppendInt(append(c.out, ' '), int64(len(data)), 10)
	c.out = append(append(append(c.out, "\r\n"...), data...), "\r\n"...)
	c.added += int64(len(c.out) - before)
	return before == 0 && !c.scanning && !c.writing
}

// Write implements [net.Conn], for the client: what was published before goes before it.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun.Load() && len(p) > 0 {
		c.readable.Store(bytes.HasPrefix(p, []byte("CONNECT ")))
		c.begun.Store(true)
	}
	if c.err != nil {
		return 0, c.err
	}
	c.out = append(c.out, p...)
	c.added += int64(len(p))
	if err := c.writeAll(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// writeAll returns when all that was added up to now is written; mu is held.
func (c *Conn) writeAll() error {
	end := c.added
	for c.err == nil && c.written < end {
		if c.writing {
			c.ended.Wait()
		} else {
			c.write()
		}
	}
	if c.written < end {
		return c.err
	}
	if len(c.out) > 0 && !c.writing {
		go c.writeRest()
	}
	return nil
}

// write writes what is there. mu is held, but while it writes.
func (c *Conn) write() {
	data := c.take()
	c.mu.Unlock()
	n, err := c.send(data, c.timeout)
	c.mu.Lock()
	c.sent(data, n, err)
}

// writeRest writes until there is nothing, unless somebody does, who then sees to the rest.
func (c *Conn) writeRest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && !c.writing && len(c.out) > 0 {
		c.write()
	}
}

// writeBriefly is write for who has to read on: a server may take no more before more of what it says is read. What is left is written
// beside the caller.
func (c *Conn) writeBriefly() {
	if c.err != nil || c.writing || len(c.out) == 0 {
		return
	}
	if c.whole {
		go c.writeRest()
		return
	}
	data := c.take()
	c.mu.Unlock()
	var n int
	var err error
	if c.trier != nil {
		n, err = c.trier.TryWrite(data)
	} else if n, err = c.send(data, aloneMost); errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	c.mu.Lock()
	if n == len(data) || err != nil {
		c.sent(data, n, err)
		if len(c.out) > 0 {
			go c.writeRest()
		}
		return
	}
	go func() {
		more, err := c.send(data[n:], c.timeout)
		c.mu.Lock()
		c.sent(data, n+more, err)
		c.mu.Unlock()
		c.writeRest()
	}()
}

// take begins a write; mu is held.
func (c *Conn) take() (data []byte) {
	data = c.out
	c.out, c.spare, c.writing = c.spare[:0], nil, true
	return data
}

// send writes, each sendSize of it within most, and all within sendMost times that.
func (c *Conn) send(data []byte, most time.Duration) (n int, err error) {
	end := time.Now().Add(sendMost * most)
	for n < len(data) && err == nil {
		var k int
		by := time.Now().Add(most)
		if by.After(end) {
			by = end
		}
		_ = c.Conn.SetWriteDeadline(by)
		k, err = c.Conn.Write(data[n:min(n+sendSize, len(data))])
		n += k
	}
	return n, err
}

// sent notes the end of a write, of which n bytes went; mu is held.
func (c *Conn) sent(data []byte, n int, err error) {
	c.writing = false
	c.written += int64(n)
	if cap(data) <= keptSize {
		c.spare = data[:0]
	}
	if err != nil && c.err == nil {
		c.over.Store(true)
		if c.err = err; c.whole && !c.listens.Load() {
			c.err = c.refusal(err)
		}
		_ = c.below.Close() // TLS would say goodbye
	}
	c.ended.Broadcast()
}

// refusal gives why a server ended TLS, as it may behind a handshake that went well: then it has said so, and a write fails with less.
func (c *Conn) refusal(err error) error {
	_ = c.Conn.SetReadDeadline(time.Now().Add(refusalMost))
	_, refused := c.Conn.Read(make([]byte, 1))
	if e, ok := errors.AsType[*net.OpError](refused); ok && e.Op == "remote error" {
		return refused
	}
	return err
}
