package bus

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
)

// microService is a micro service with the endpoints of a worker that decides, or of one that
// stands by. It has one subscription for each endpoint, and those of the control subjects of
// package micro.
type microService struct {
	micro.Service
	decides   bool
	endpoints int
	// inlineStats count, by subject, the requests that were taken before they reached the micro
	// service.
	inlineStats map[string]*inlineStats
}

func (s *Service) startMicro(decide bool) (*microService, error) {
	m, err := micro.AddService(s.cfg.Conn, micro.Config{
		Name: limits.ServiceName, Version: semver(s.cfg.Version), QueueGroup: limits.QueueGroup,
		Description: "Rate limiting over NATS: decisions, usage and administration; the endpoints say which of them are served here",
		Metadata: map[string]string{
			"error-schema": s.cfg.SchemaBase + "/" + schemaError,
			"asyncapi":     s.cfg.SchemaBase + "/" + asyncAPI,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("start micro service %s: %w", limits.ServiceName, err)
	}
	endpoints := s.endpoints(decide)
	if err := s.addEndpoints(m, endpoints); err != nil {
		_ = m.Stop()
		return nil, err
	}
	return &microService{Service: m, decides: decide, endpoints: len(endpoints)}, nil
}

// switchTimeout bounds how long the server may take to confirm the subscriptions of the next micro
// service. After a failure lead calls setDeciding again.
const switchTimeout = time.Second

// setDeciding changes whether this worker decides, without a moment in which it answers less than
// it should. Endpoints cannot be removed from a micro service, so another one is started, and the
// old one drained. If the server does not confirm the new subscriptions nothing changes until the
// next call.
func (s *Service) setDeciding(decide bool) (err error) {
	if s.next == nil && s.current.decides == decide {
		return nil
	}
	if s.next == nil {
		if s.next, err = s.startMicro(decide); err != nil {
			return err
		}
	}
	if err := s.cfg.Conn.FlushTimeout(switchTimeout); err != nil {
		return fmt.Errorf("subscribe endpoints: %w", err)
	}
	replaced := s.current
	if s.next.decides == decide {
		s.current = s.next
		s.installInline()
	} else { // next was started for the opposite, and is not needed any more
		replaced = s.next
	}
	s.next = nil
	s.noteDrain()
	if err := replaced.Stop(); err != nil { // it drains: requests that it has are answered
		return fmt.Errorf("stop micro service: %w", err)
	}
	return nil
}

// noteDrain notes that subscriptions begin to drain.
func (s *Service) noteDrain() {
	if s.drainingSince.IsZero() {
		s.reconnectsBefore = s.cfg.Conn.Stats().Reconnects
	}
	s.drainingSince = time.Now()
}

// maxDrain bounds the wait for subscriptions to drain.
const maxDrain = 30 * time.Second

// checkDrained looks whether the replaced micro service has drained. leadSubs is how many
// subscriptions lead has.
func (s *Service) checkDrained(leadSubs int) {
	if s.drainingSince.IsZero() {
		return
	}
	known := s.otherSubs + leadSubs + s.current.endpoints + s.controlSubs
	if s.next != nil {
		known += s.next.endpoints + s.controlSubs
	}
	if s.cfg.Conn.NumSubscriptions() > known && time.Since(s.drainingSince) < maxDrain {
		return
	}
	s.drainEnded()
}

// drainEnded is called when subscriptions have drained, and reports whether it makes the connection
// anew. If the connection was made anew during the drain, nats.go has subscribed again to what it
// drains, and then forgotten it without telling the server, which goes on sending requests there.
// Another new connection ends that.
func (s *Service) drainEnded() (reconnecting bool) {
	s.drainingSince = time.Time{}
	if s.cfg.Conn.Stats().Reconnects == s.reconnectsBefore {
		return false
	}
	s.cfg.Logger.Info("reconnecting to NATS, because it reconnected while subscriptions were draining")
	return s.cfg.Conn.ForceReconnect() == nil // it fails when the connection is closed
}
