package bus

import (
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/natsconn"
)

// Inline handling: requests for decisions are taken on the goroutine that reads a connection of
// [Connect], before nats.go sees them. Requests that cannot be read there, such as those over a
// websocket, come to the endpoints of the micro service, which do the same with them.

// inlineStats count the inline requests for one subject: the statistics of the micro service do not
// see these.
type inlineStats struct {
	requests, errors atomic.Int64
	// One request in sampleEvery is timed. timed counts these, and nanos adds up how long they
	// took.
	timed, nanos atomic.Int64
	lastError    atomic.Pointer[string]
}

const sampleEvery = 64

// installInline sets the inline handlers for what the current micro service answers. They replace
// those that were set before.
func (s *Service) installInline() {
	d := dialerOf(s.cfg.Conn)
	if d == nil {
		return
	}
	handlers := map[string]natsconn.Handler{}
	var always []string
	if service := s.current; service.decides && s.cfg.Engine != nil {
		service.inlineStats = map[string]*inlineStats{}
		for subject, verb := range engineVerbs {
			service.inlineStats[subject] = new(inlineStats)
			handlers[subject] = s.inlineHandler(verb, service.inlineStats[subject])
		}
		if s.cfg.Keys != nil {
			service.inlineStats[limits.SubjectVerify] = new(inlineStats)
			handlers[limits.SubjectVerify] = s.verifyHandler(service.inlineStats[limits.SubjectVerify])
		}
		handlers[subjectForget] = s.forgetHandler
		always = append(always, subjectForget)
		statsHandler := s.statsHandler(service)
		for _, name := range [][2]string{{}, {limits.ServiceName}, {limits.ServiceName, service.Info().ID}} {
			subject, _ := micro.ControlSubject(micro.StatsVerb, name[0], name[1]) // the verb is known, so it cannot fail
			handlers[subject] = statsHandler
			always = append(always, subject)
		}
	}
	go d.learnMaxPayload(s.cfg.Conn)
	d.handlers.Set(handlers, always...)
}

// removeInline leaves all requests to nats.go. If the connection was made anew while subscriptions
// drained, the server may go on sending requests for a subscription that nats.go has forgotten.
// nats.go drops these.
func (s *Service) removeInline() {
	if d := dialerOf(s.cfg.Conn); d != nil {
		d.handlers.Set(nil)
	}
}

// inlineHandler is the handler of a verb. It leaves requests that cannot be answered or read to the
// endpoint, which reports what is wrong with them.
func (s *Service) inlineHandler(verb engine.Verb, stats *inlineStats) natsconn.Handler {
	take := func(c *call, data []byte, lookup *cacheLookup) error {
		if c.decode(verb, data, lookup) != nil {
			return errLeft
		}
		return c.submit()
	}
	return func(conn *natsconn.Conn, messages []natsconn.Message) int {
		var lookups [natsconn.MaxBatch]cacheLookup
		s.decoder.cache.lookupAll(messages, lookups[:])
		for i := range messages {
			if !s.handleInline(conn, &messages[i], take, &lookups[i], stats) {
				return i
			}
		}
		return len(messages)
	}
}

// verifyHandler is the handler of verify.
func (s *Service) verifyHandler(stats *inlineStats) natsconn.Handler {
	return func(conn *natsconn.Conn, messages []natsconn.Message) int {
		for i := range messages {
			if !s.handleInline(conn, &messages[i], (*call).takeVerify, nil, stats) {
				return i
			}
		}
		return len(messages)
	}
}

// errLeft says that the endpoint has to answer a request, because it cannot be read.
var errLeft = errors.New("the endpoint reports what is wrong with the request")

// handleInline takes one request. It returns false if that is left to the endpoint.
func (s *Service) handleInline(conn *natsconn.Conn, m *natsconn.Message, take func(*call, []byte, *cacheLookup) error,
	lookup *cacheLookup, stats *inlineStats) bool {
	if !answerable(m.Reply) {
		return false
	}
	timed := stats.requests.Load()%sampleEvery == 0
	var begin time.Time
	if timed {
		begin = time.Now()
	}
	err := take(s.acquireCall(conn, m.Reply), m.Data, lookup)
	if err == errLeft {
		return false
	}
	stats.requests.Add(1)
	if err != nil {
		refusal := s.errorMsg(string(m.Reply), err)
		s.writeAside(func() { s.publish(refusal) })
		stats.errors.Add(1)
		lastError := refusal.Header.Get(micro.ErrorCodeHeader) + ":" + refusal.Header.Get(micro.ErrorHeader)
		stats.lastError.Store(&lastError)
	}
	if timed {
		stats.timed.Add(1)
		stats.nanos.Add(int64(time.Since(begin)))
	}
	return true
}

// forgetHandler heeds broadcasts of what to forget. nats.go would give them to a goroutine of its own, which requests that
// were sent later could overtake: a reset would have been answered, and its leases still be served. What cannot be read is
// left to the subscription of [NewForgets], which logs it.
func (s *Service) forgetHandler(_ *natsconn.Conn, messages []natsconn.Message) int {
	for i, m := range messages {
		what, err := decodeBroadcast(m.Data, maxForgetBytes, saysWhat)
		if err != nil {
			return i
		}
		s.cfg.Engine.Forget(what)
	}
	return len(messages)
}

// maxWrites bounds the answers that wait for nats.go to write them. More are lost.
const maxWrites = 4096

var errTooManyWrites = errors.New("too many answers are waiting to be written")

// writeAside runs answer on a goroutine of its own. The goroutine that reads the connection must
// not wait for nats.go to write.
func (s *Service) writeAside(answer func()) {
	s.begin()
	if !s.writeSlots.tryGo(func() { answer(); s.end() }) {
		s.sent(errTooManyWrites)
		s.end()
	}
}

// maxStats bounds the requests for statistics that are being answered. More are dropped.
const maxStats = 16

// statsHandler is the inline handler of requests for the statistics of the micro service. It
// answers on goroutines of its own. It leaves no request to the micro service, whose numbers lack
// the inline requests: to somebody who asks repeatedly the counts would seem to go back.
func (s *Service) statsHandler(service *microService) natsconn.Handler {
	free := make(slots, maxStats)
	return func(_ *natsconn.Conn, messages []natsconn.Message) int {
		for i, m := range messages {
			if len(m.Reply) == 0 {
				return i
			}
			reply := string(m.Reply)
			s.begin()
			started := free.tryGo(func() {
				defer s.end()
				body, err := json.Marshal(service.Stats())
				if err == nil {
					err = s.cfg.Conn.Publish(reply, body)
				}
				s.sent(err)
			})
			if !started {
				s.end()
			}
		}
		return len(messages)
	}
}

// Stats implements [micro.Service]. It adds the inline requests.
func (m *microService) Stats() micro.Stats {
	stats := m.Service.Stats()
	for _, e := range stats.Endpoints {
		count := m.inlineStats[e.Subject]
		if count == nil {
			continue
		}
		requests := count.requests.Load()
		e.NumRequests += int(requests)
		e.NumErrors += int(count.errors.Load())
		if last := count.lastError.Load(); last != nil {
			e.LastError = *last
		}
		e.ProcessingTime += time.Duration(count.nanos.Load() / max(1, count.timed.Load()) * requests)
		e.AverageProcessingTime = e.ProcessingTime / time.Duration(max(1, e.NumRequests))
	}
	return stats
}
