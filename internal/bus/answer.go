package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/natsconn"
	"github.com/seed503877ad/limits/internal/outage"
)

// Handlers that answer on goroutines of their own, and how all answers are sent.

const (
	// maxStoreRequests bounds the admin requests that use the store at a time, maxReports those
	// that report on usage, and maxStatuses those of status. More are answered 503. A store makes
	// one report at a time, so more that wait would gain nothing.
	maxStoreRequests = 32
	maxReports       = 4
	maxStatuses      = 1024
	// storeTimeout bounds a request that uses the store, as it does a decision: callers should
	// learn that the store does not answer before they give up.
	storeTimeout = limits.DefaultTimeout * 3 / 4
	// scanTimeout bounds a request that may go through all rows: a report or a reset. Our client
	// waits longer for these.
	scanTimeout = 5 * time.Second
)

// answerFunc answers the body of a request with a value that becomes the JSON of the answer.
type answerFunc func(ctx context.Context, data []byte) (any, error)

// storeHandler makes the handler of an endpoint that uses the store.
func (s *Service) storeHandler(answer answerFunc) micro.HandlerFunc {
	return s.asyncHandler(s.storeSlots, s.cfg.storeTimeout, answer)
}

// reportHandler makes the handler of an endpoint that reports on usage. It has slots of its own, so that reports that wait
// for each other keep nobody from revoking an API key.
func (s *Service) reportHandler(answer answerFunc) micro.HandlerFunc {
	return s.asyncHandler(s.reportSlots, s.cfg.scanTimeout, answer)
}

// asyncHandler makes a handler that answers on a goroutine of its own, or with 503 if no slot is
// free.
func (s *Service) asyncHandler(free slots, timeout time.Duration, answer answerFunc) micro.HandlerFunc {
	return func(m micro.Request) {
		if !answerable(m.Reply()) {
			s.ignore(m)
			return
		}
		s.begin()
		started := free.tryGo(func() {
			defer s.end()
			ctx, cancel := context.WithTimeout(s.ctx, timeout)
			defer cancel()
			s.answerJSON(ctx, m, answer)
		})
		if !started {
			s.refuse(m, engine.ErrOverloaded)
			s.end()
		}
	}
}

// slots bound how many goroutines run at a time.
type slots chan struct{}

// tryGo runs f on a goroutine of its own, if a slot is free.
func (s slots) tryGo(f func()) bool {
	select {
	case s <- struct{}{}:
	default:
		return false
	}
	go func() {
		defer func() { <-s }()
		f()
	}()
	return true
}

// answerJSON answers a request with the JSON of what answer returns, or with its error.
func (s *Service) answerJSON(ctx context.Context, m micro.Request, answer answerFunc) {
	v, err := answer(ctx, m.Data())
	var body []byte
	if err == nil {
		body, err = json.Marshal(v)
	}
	if err != nil {
		if e := wireError(err, nil); e.Status == 503 && !errors.Is(err, engine.ErrOverloaded) && !errors.Is(err, engine.ErrClosed) {
			s.noteStoreFailure(m.Subject(), err)
		}
		s.publish(s.errorMsg(m.Reply(), err))
		return
	}
	s.noteStoreAnswer(m.Subject())
	s.answer(m.Reply(), body)
}

// answer publishes an answer, of which nats.go makes a copy. Instead of an answer that is larger
// than NATS takes it publishes an error that says so.
func (s *Service) answer(reply string, body []byte) {
	err := s.cfg.Conn.Publish(reply, body)
	if errors.Is(err, nats.ErrMaxPayload) {
		err = s.cfg.Conn.PublishMsg(s.errorMsg(reply, &limits.Error{Status: 413, Code: limits.CodeTooLarge, Message: fmt.Sprintf(
			"the answer has %d bytes, but NATS accepts at most %d; ask for fewer items with max, or for fewer limits; a decision already made stands",
			len(body), s.cfg.Conn.MaxPayload())}))
	}
	s.sent(err)
}

// wireAll returns rows as they are on the wire: an empty list, and not null, if there are none.
func wireAll[Row, Wire any](rows []Row, wire func(*Row) Wire) []Wire {
	all := make([]Wire, len(rows))
	for i := range rows {
		all[i] = wire(&rows[i])
	}
	return all
}

// cut returns the first page of rows, and whether there are more.
func cut[Row any](rows []Row, max int) (page []Row, more bool) {
	return rows[:min(len(rows), max)], len(rows) > max
}

// noteStoreFailure and noteStoreAnswer keep the log of an endpoint: it tells when the store begins
// to fail the requests of a subject, and when that is over.
func (s *Service) noteStoreFailure(subject string, err error) {
	log, known := s.failures.Load(subject)
	if !known {
		log, _ = s.failures.LoadOrStore(subject, outage.New(s.cfg.Logger, slog.LevelWarn, "requests to the store are failing", "the store answers "+subject+" again"))
	}
	log.(*outage.Log).Tried(err, "endpoint", subject)
}

func (s *Service) noteStoreAnswer(subject string) {
	if log, failed := s.failures.Load(subject); failed {
		log.(*outage.Log).Tried(nil)
	}
}

// refuse answers an error while the handler runs, so that the statistics of the endpoint count it.
func (s *Service) refuse(m micro.Request, err error) {
	msg := s.errorMsg(m.Reply(), err)
	s.sent(m.Error(msg.Header.Get(micro.ErrorCodeHeader), msg.Header.Get(micro.ErrorHeader), msg.Data))
}

func (s *Service) publish(m *nats.Msg) { s.sent(s.cfg.Conn.PublishMsg(m)) }

// sent notes whether the connection took an answer.
func (s *Service) sent(err error) {
	if err == nil {
		return
	}
	s.lostAnswers.Add(1)
	if n := s.lostLog.due(); n > 0 {
		s.cfg.Logger.Warn("cannot publish an answer", "error", err, "times", n)
	}
}

// ignore drops a request that cannot be answered.
func (s *Service) ignore(m micro.Request) {
	if n := s.ignoredLog.due(); n > 0 {
		s.cfg.Logger.Warn("ignored a request whose reply subject is missing or not allowed", "subject", m.Subject(), "reply", m.Reply(), "times", n)
	}
}

// answerable reports whether an answer may be sent to a reply subject. The client chooses that
// subject and the service publishes with its own rights, so the subject must not be one of the
// server ($JS.API, $SYS) or of events. A reply subject that is too long arrives only over a
// websocket, because natsconn drops it elsewhere.
func answerable[T string | []byte](reply T) bool {
	begins := func(with string) bool { return len(reply) >= len(with) && string(reply[:len(with)]) == with }
	return len(reply) > 0 && len(reply) <= natsconn.MaxReplySubject && !begins("$") && !begins("limits.") && !begins("alerts.")
}

// begin and end count the requests that wait for an answer; Stop waits for all of them.
func (s *Service) begin() { s.pending.Add(1) }

func (s *Service) end() { s.pending.Add(-1) }
