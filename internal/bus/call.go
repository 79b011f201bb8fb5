package bus

import (
	"bytes"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/natsconn"
)

// call is a request on its way through the engine. Calls are pooled, together with the space for one
// limit, which is all that most requests have, and for the answer. The engine does not touch a
// request after it has called Done.
type call struct {
	engine.Request
	oneLimit    [1]engine.Limit
	reply, body []byte
	// head begins the answer to a verify, in which the decision is the last member; nil for other requests.
	head []byte
	// conn is the connection that the request was read from; nil if it came through nats.go.
	conn *natsconn.Conn
	svc  *Service
	// answer is the method value c.done, made once to save an allocation for each request.
	answer func(d engine.Decision, err error)
}

func (s *Service) newCall() any {
	c := &call{svc: s, body: make([]byte, 0, 512)}
	c.answer = c.done
	return c
}

// handleDecision is the endpoint of consume, check, record, refund and settle. nats.go runs the callbacks
// of an endpoint one at a time, so it only decodes the request and hands it to the engine. The
// answer is sent when the engine calls Done.
func (s *Service) handleDecision(m micro.Request) {
	received, ok := s.accept(m)
	if !ok {
		return
	}
	c := s.acquireCall(nil, []byte(m.Reply()))
	err := c.decode(engineVerbs[m.Subject()], m.Data(), nil)
	if err == nil {
		c.Waited = time.Since(received)
		err = c.submit()
	}
	if err != nil {
		s.refuse(m, err)
	}
}

// accept returns when a request for a decision arrived that came through nats.go, and whether it is
// to be decided. One that waited there for so long that its sender may have given up is refused
// before anything is read of it: in a flood this is what makes the others early enough.
func (s *Service) accept(m micro.Request) (received time.Time, ok bool) {
	if !answerable(m.Reply()) {
		s.ignore(m)
		return received, false
	}
	if d := dialerOf(s.cfg.Conn); d != nil {
		received = d.handlers.ReceivedAt(m.Headers())
	}
	if received.IsZero() {
		return time.Now(), true
	}
	if s.cfg.Engine.TooLate(received) {
		s.refuse(m, engine.ErrOverloaded)
		return received, false
	}
	return received, true
}

// acquireCall returns a pooled call for a request that is answered to reply. conn is where the
// request was read, or nil if it came through nats.go.
func (s *Service) acquireCall(conn *natsconn.Conn, reply []byte) *call {
	c := s.calls.Get().(*call)
	c.conn, c.reply, c.head = conn, append(c.reply[:0], reply...), nil
	c.Request = engine.Request{Limits: c.oneLimit[:0], OnError: s.cfg.OnError, Done: c.answer}
	if conn != nil {
		c.Received = conn.ReceivedAt()
	}
	return c
}

// decode reads the request; lookup is as for [decoder.decode]. After an error the call is released.
func (c *call) decode(verb engine.Verb, data []byte, lookup *cacheLookup) error {
	err := c.svc.decoder.decode(verb, data, lookup, &c.Request)
	if err != nil {
		c.release()
	}
	return err
}

// submit hands the request to the engine. After an error the call is released, and the caller
// answers.
func (c *call) submit() error {
	s := c.svc
	s.begin()
	err := s.cfg.Engine.Submit(&c.Request)
	if err != nil {
		c.release()
		s.end()
	}
	return err
}

// maxPooledBody bounds the space for the answer that a call keeps. Thousands of calls may wait.
const maxPooledBody = 2 << 10

// release returns the call to the pool, without what only a large request needs.
func (c *call) release() {
	c.conn = nil
	if len(c.Limits) > len(c.oneLimit) {
		c.Request = engine.Request{}
	}
	if cap(c.body) > maxPooledBody {
		c.body = nil
	}
	c.svc.calls.Put(c)
}

// done answers the call. It publishes on the connection and not through the micro.Request: when the
// handler has returned, the endpoint reads that request's error without a lock.
func (c *call) done(d engine.Decision, err error) {
	s := c.svc
	verb := c.Verb
	if verb == engine.Settle {
		err = settleError(c.ConsumeID(), err)
		verb = engine.Record // what did not fit was charged all the same, so the answer is that to a record
	}
	if err != nil {
		s.publish(s.errorMsg(string(c.reply), err))
	} else {
		c.body = appendReply(append(c.body[:0], c.head...), verb, &d, c.Cost)
		if c.head != nil {
			c.body = append(c.body, '}')
		}
		if !c.answerInline() {
			c.answerViaNATS()
		}
	}
	c.release()
	s.end()
}

// answerInline answers on the connection that the request came from, and reports whether it did.
// The answers to record, refund and settle go through nats.go: the broadcast about their change may
// have gone that way ([publishNoWait]), and other workers must get it before the request that follows
// the answer.
func (c *call) answerInline() bool {
	if c.conn == nil || c.Verb >= engine.Record {
		return false
	}
	if !dialerOf(c.svc.cfg.Conn).fits(len(c.body)) {
		return false
	}
	return c.conn.Publish(c.reply, c.body) == nil
}

// answerViaNATS answers through nats.go, on a goroutine of its own if this one may be the one that
// reads the connection.
func (c *call) answerViaNATS() {
	s, reply := c.svc, string(c.reply)
	if c.conn == nil || !c.AtOnce {
		s.answer(reply, c.body)
		return
	}
	body := bytes.Clone(c.body)
	s.writeAside(func() { s.answer(reply, body) })
}
