package natsconn

import (
	"bytes"
	"errors"
	"net"
	"os"
	"strconv"
	"time"
)

// Publish queues an answer for the reply subject of a message, and copies both. It may wait until
// earlier answers are written. The caller checks that the server accepts as many bytes. After an
// error the answer was not sent and will not be. Without one it may still be lost, if the connection
// ends before it is written.
func (c *Conn) Publish(subject, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	alone := c.enqueue(subject, data)
	switch {
	case len(c.out) >= maxQueued, len(c.out) >= flushSize && !c.dispatching:
		return c.writeAll()
	case alone:
		go c.writeQueued()
	}
	return nil
}

var errFull = errors.New("too much data is waiting to be written")

// PublishNoWait is Publish to any subject, for callers that cannot wait for a server that does not
// read. The connection must be up. Over a websocket it fails with [errors.ErrUnsupported].
func (c *Conn) PublishNoWait(subject string, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return c.err
	case !c.parsing.Load():
		return errors.ErrUnsupported
	case len(c.out) >= maxQueued:
		return errFull
	}
	if c.enqueue([]byte(subject), data) {
		go c.writeQueued()
	}
	return nil
}

// enqueue appends a message to out; mu is held. alone says that nobody else is about to write out,
// so that the caller has to.
func (c *Conn) enqueue(subject, data []byte) (alone bool) {
	before := len(c.out)
	c.out = append(append(c.out, "PUB "...), subject...)
	c.out = strconv.AppendInt(append(c.out, ' '), int64(len(data)), 10)
	c.out = append(append(append(c.out, "\r\n"...), data...), "\r\n"...)
	c.queued += int64(len(c.out) - before)
	return before == 0 && !c.dispatching && !c.writing
}

// Write implements [net.Conn] for the client. What was published before is written first.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.clientWrote.Load() && len(p) > 0 {
		c.parsing.Store(bytes.HasPrefix(p, []byte("CONNECT ")))
		c.clientWrote.Store(true)
	}
	if c.err != nil {
		return 0, c.err
	}
	c.out = append(c.out, p...)
	c.queued += int64(len(p))
	if err := c.writeAll(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// writeAll returns when all that is queued now has been written; mu is held.
func (c *Conn) writeAll() error {
	end := c.queued
	for c.err == nil && c.written < end {
		if c.writing {
			c.writeDone.Wait()
		} else {
			c.write()
		}
	}
	if c.written < end {
		return c.err
	}
	if len(c.out) > 0 && !c.writing {
		go c.writeQueued()
	}
	return nil
}

// write writes what is queued. The caller holds mu, which is released during the write.
func (c *Conn) write() {
	data := c.beginWrite()
	c.mu.Unlock()
	n, err := c.writeChunks(data, c.writeTimeout)
	c.mu.Lock()
	c.endWrite(data, n, err)
}

// writeQueued writes until nothing is queued. If another goroutine is writing, that one goes on
// instead.
func (c *Conn) writeQueued() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && !c.writing && len(c.out) > 0 {
		c.write()
	}
}

// tryWrite is write for the goroutine that reads, which must not wait: a server may stop reading
// until more of what it sends is read. Another goroutine writes what is left.
func (c *Conn) tryWrite() {
	if c.err != nil || c.writing || len(c.out) == 0 {
		return
	}
	if c.overTLS {
		go c.writeQueued()
		return
	}
	data := c.beginWrite()
	c.mu.Unlock()
	var n int
	var err error
	if c.trier != nil {
		n, err = c.trier.TryWrite(data)
	} else if n, err = c.writeChunks(data, briefWrite); errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	c.mu.Lock()
	if n == len(data) || err != nil {
		c.endWrite(data, n, err)
		if len(c.out) > 0 {
			go c.writeQueued()
		}
		return
	}
	go func() {
		more, err := c.writeChunks(data[n:], c.writeTimeout)
		c.mu.Lock()
		c.endWrite(data, n+more, err)
		c.mu.Unlock()
		c.writeQueued()
	}()
}

// beginWrite takes what is queued, to be written by the caller; mu is held.
func (c *Conn) beginWrite() (data []byte) {
	data = c.out
	c.out, c.spare, c.writing = c.spare[:0], nil, true
	return data
}

// writeChunks writes data. Each chunk may take timeout, and all of it maxChunkTimeouts times as long.
func (c *Conn) writeChunks(data []byte, timeout time.Duration) (n int, err error) {
	end := time.Now().Add(maxChunkTimeouts * timeout)
	for n < len(data) && err == nil {
		deadline := time.Now().Add(timeout)
		if deadline.After(end) {
			deadline = end
		}
		_ = c.Conn.SetWriteDeadline(deadline)
		var written int
		written, err = c.Conn.Write(data[n:min(n+chunkSize, len(data))])
		n += written
	}
	return n, err
}

// endWrite notes that a write has ended after n bytes; mu is held.
func (c *Conn) endWrite(data []byte, n int, err error) {
	c.writing = false
	c.written += int64(n)
	if cap(data) <= maxSpare {
		c.spare = data[:0]
	}
	if err != nil && c.err == nil {
		c.broken.Store(true)
		if c.err = err; c.overTLS && !c.clientReads.Load() {
			c.err = c.refusal(err)
		}
		_ = c.raw.Close() // TLS would write a goodbye first
	}
	c.writeDone.Broadcast()
}

// refusal returns the reason why a server ended TLS, which it may do right after a successful
// handshake: for example because of the client's certificate. It has sent an alert then, and a
// write fails with a lesser error.
func (c *Conn) refusal(err error) error {
	_ = c.Conn.SetReadDeadline(time.Now().Add(refusalTimeout))
	_, refused := c.Conn.Read(make([]byte, 1))
	if e, ok := errors.AsType[*net.OpError](refused); ok && e.Op == "remote error" {
		return refused
	}
	return err
}
