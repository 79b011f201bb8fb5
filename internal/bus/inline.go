package bus

import (
	"bytes"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/natsconn"
)

// Requests for decisions are taken where they are read off a connection of [Connect], before nats.go has them. What cannot be read there,
// as over a websocket, comes to the endpoints of the micro service, which do the same with it.

// inline counts the requests for one subject that were taken so: the micro service, whose statistics are asked for, does not see them.
type inlineStats struct {
	requests, errors atomic.Int64
	// One in timedOne of them is timed; nanos is how long those took together.
	timed, nanos atomic.Int64
	lastError    atomic.Pointer[string]
}

const sampleEvery = 64

// takeInline begins to take what the micro service answers, instead of what was taken before.
func (s *Service) installInline() {
	d := dialerOf(s.cfg.Conn)
	if d == nil {
		return
	}
	handlers := map[string]natsconn.Handler{}
	var always []string
	if a := s.current; a.decides && s.cfg.Engine != nil {
		a.inlineStats = map[string]*inlineStats{}
		for subject, verb := range engineVerbs {
			a.inlineStats[subject] = new(inlineStats)
			handlers[subject] = s.inlineHandler(verb, a.inlineStats[subject])
		}
		tells := s.statsHandler(a)
		for _, name := range [][2]string{{}, {limits.ServiceName}, {limits.ServiceName, a.Info().ID}} {
			subject, _ := micro.ControlSubject(micro.StatsVerb, name[0], name[1]) // there are no others
			handlers[subject] = tells
			always = append(always, subject)
		}
	}
	go d.learnMaxPayload(s.cfg.Conn)
	d.handlers.Set(handlers, always...)
}

// takeNothing leaves all to nats.go: it forgets a subscription of which the server, on a connection that was made anew meanwhile, does not
// know that it has ended.
func (s *Service) removeInline() {
	if d := dialerOf(s.cfg.Conn); d != nil {
		d.handlers.Set(nil)
	}
}

// takes is the handler of a verb. What cannot be answered, and what cannot be read, is left to the endpoint, which says so.
func (s *Service) inlineHandler(verb engine.Verb, count *inlineStats) natsconn.Handler {
	return func(conn *natsconn.Conn, all []natsconn.Message) int {
		var places [natsconn.MaxBatch]cacheLookup
		s.decoder.cache.lookupAll(all, places[:])
		for i := range all {
			if !answerable(all[i].Reply) || !s.handleInline(conn, verb, &all[i], &places[i], count) {
				return i
			}
		}
		return len(all)
	}
}

func (s *Service) handleInline(conn *natsconn.Conn, verb engine.Verb, m *natsconn.Message, at *cacheLookup, count *inlineStats) bool {
	timed := count.requests.Load()%sampleEvery == 0
	var begin time.Time
	if timed {
		begin = time.Now()
	}
	c := s.call(conn, m.Reply)
	if c.decode(verb, m.Data, at) != nil {
		return false
	}
	count.requests.Add(1)
	if err := c.submit(); err != nil {
		refusal := s.errorMsg(string(m.Reply), err)
		s.writeAside(func() { s.publish(refusal) })
		count.errors.Add(1)
		said := refusal.Header.Get(micro.ErrorCodeHeader) + ":" + refusal.Header.Get(micro.ErrorHeader)
		count.lastError.Store(&said)
	}
	if timed {
		count.timed.Add(1)
		count.nanos.Add(int64(time.Since(begin)))
	}
	return true
}

// maxWrites bounds the answers that wait beside the reading for nats.go to write them; more are lost.
const maxWrites = 4096

var errTooManyWrites = errors.New("too many answers wait to be written")

// besideReading answers a request beside the reading, which must not wait for nats.go to write.
func (s *Service) writeAside(answer func()) {
	s.begin()
	if !tryGo(s.writeSlots, func() { answer(); s.end() }) {
		s.sent(errTooManyWrites)
		s.end()
	}
}

// smallAnswer is taken to be less than what any server takes on which a limiter works.
const smallAnswer = 512

// answerInline answers where the request came from, if it can. A record and a refund are answered by nats.go, which may have what other
// workers are told of them before ([tell]): so these have it before the request that follows the answer.
func (c *call) answerInline() bool {
	if c.conn == nil || c.Verb > engine.Check {
		return false
	}
	if !dialerOf(c.svc.cfg.Conn).fits(len(c.body)) {
		return false
	}
	return c.conn.Publish(c.reply, c.body) == nil
}

// answerOver answers over nats.go, beside the reading where that is what has the answer.
func (c *call) answerViaNATS() {
	s, reply := c.svc, string(c.reply)
	if c.conn == nil || !c.AtOnce {
		s.answer(reply, c.body)
		return
	}
	body := bytes.Clone(c.body)
	s.writeAside(func() { s.answer(reply, body) })
}

// maxStats bounds the questions for the statistics that are being answered; more are dropped.
const maxStats = 16

// tellsStats is the handler of questions for the statistics, which are put together beside it. None is left to the micro service, whose
// numbers are less: to who asks again they would go back.
func (s *Service) statsHandler(a *microService) natsconn.Handler {
	room := make(chan struct{}, maxStats)
	return func(_ *natsconn.Conn, all []natsconn.Message) int {
		for _, m := range all {
			reply := string(m.Reply)
			s.begin()
			if !tryGo(room, func() {
				defer s.end()
				body, err := json.Marshal(a.Stats())
				if err == nil {
					err = s.cfg.Conn.Publish(reply, body)
				}
				s.sent(err)
			}) {
				s.end()
			}
		}
		return len(all)
	}
}

// Stats implements [micro.Service].
func (a *microService) Stats() micro.Stats {
	all := a.Service.Stats()
	for _, e := range all.Endpoints {
		count := a.inlineStats[e.Subject]
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
	return all
}
