package bus

import (
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/natsconn"
)

// Requests for decisions are taken where they are read off a connection of [Connect], before nats.go has them. What cannot be read there,
// as behind TLS, comes to the endpoints of the micro service, which do the same with it.

// inline counts the requests for one subject that were taken so: the micro service, whose statistics are asked for, does not see them.
type inline struct {
	requests, errors atomic.Int64
	// nanos is how long one in timedOne of them took.
	nanos     atomic.Int64
	lastError atomic.Pointer[string]
}

const timedOne = 64

// takeInline begins to take what the micro service answers, instead of what was taken before.
func (s *Service) takeInline() {
	d, ok := s.cfg.Conn.Opts.CustomDialer.(*dialer)
	if !ok {
		return
	}
	handlers := map[string]natsconn.Handler{}
	if a := s.micro; a.decides && s.cfg.Engine != nil {
		a.inline = map[string]*inline{}
		for subject, verb := range decided {
			a.inline[subject] = new(inline)
			handlers[subject] = s.takes(verb, a.inline[subject])
		}
		for _, name := range [][2]string{{}, {limits.ServiceName}, {limits.ServiceName, a.Info().ID}} {
			subject, _ := micro.ControlSubject(micro.StatsVerb, name[0], name[1]) // there are no others
			handlers[subject] = a.tellStats
		}
	}
	d.handlers.Set(handlers)
}

// takes is the handler of a verb.
func (s *Service) takes(verb engine.Verb, count *inline) natsconn.Handler {
	return func(conn *natsconn.Conn, all []natsconn.Message) int {
		var places [natsconn.Together]place
		s.decoder.repeats.findAll(all, places[:])
		for i := range all {
			if !answerable(all[i].Reply) {
				return i // it is ignored elsewhere
			}
			s.take(conn, verb, &all[i], &places[i], count)
		}
		return len(all)
	}
}

func (s *Service) take(conn *natsconn.Conn, verb engine.Verb, m *natsconn.Message, at *place, count *inline) {
	n := count.requests.Add(1)
	if n%timedOne == 0 {
		begin := time.Now()
		defer func() { count.nanos.Add(int64(time.Since(begin))) }()
	}
	if err := s.call(conn, m.Reply).submit(verb, m.Data, at); err != nil {
		refusal := s.errorMsg(string(m.Reply), err)
		s.publish(refusal)
		count.errors.Add(1)
		said := refusal.Header.Get(micro.ErrorCodeHeader) + ":" + refusal.Header.Get(micro.ErrorHeader)
		count.lastError.Store(&said)
	}
}

// smallAnswer is a size of an answer that every server takes which takes requests.
const smallAnswer = 512

// answerInline answers where the request came from, if it can.
func (c *call) answerInline() bool {
	if c.conn == nil || len(c.body) > smallAnswer && int64(len(c.body)) > c.svc.cfg.Conn.MaxPayload() {
		return false
	}
	return c.conn.Publish(c.reply, c.body) == nil
}

// tellStats answers a question for the statistics.
func (a *answering) tellStats(conn *natsconn.Conn, all []natsconn.Message) int {
	for i, m := range all {
		body, err := json.Marshal(a.Stats())
		if err != nil || int64(len(body)) > a.maxPayload() || conn.Publish(m.Reply, body) != nil {
			return i
		}
	}
	return len(all)
}

// Stats implements [micro.Service].
func (a *answering) Stats() micro.Stats {
	all := a.Service.Stats()
	for _, e := range all.Endpoints {
		count := a.inline[e.Subject]
		if count == nil {
			continue
		}
		e.NumRequests += int(count.requests.Load())
		e.NumErrors += int(count.errors.Load())
		if last := count.lastError.Load(); last != nil {
			e.LastError = *last
		}
		e.ProcessingTime += timedOne * time.Duration(count.nanos.Load())
		e.AverageProcessingTime = e.ProcessingTime / time.Duration(max(1, e.NumRequests))
	}
	return all
}
