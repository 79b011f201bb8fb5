package bus

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
)

// answering is a micro service that answers on all subjects, or on all but those that are decided on. It has so many subscriptions for
// them, and the verbs of micro.
type microService struct {
	micro.Service
	decides   bool
	endpoints int
	// inline counts by subject what was taken before it.
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

// decideOrNot changes what is answered, without a moment in which less is. An endpoint cannot be taken from a micro service, so there
// is another one. What the server does not confirm stays as it is, until this is called again.
func (s *Service) setDeciding(decide bool) (err error) {
	if s.next == nil && s.current.decides == decide {
		return nil
	}
	if s.next == nil {
		if s.next, err = s.startMicro(decide); err != nil {
			return err
		}
	}
	if err := s.cfg.Conn.FlushTimeout(decidingAskInterval); err != nil {
		return fmt.Errorf("subscribe endpoints: %w", err)
	}
	replaced := s.current
	if s.next.decides == decide {
		s.current = s.next
		s.installInline()
	} else { // it was for what is not wanted any more
		replaced = s.next
	}
	s.next = nil
	s.noteDrain()
	if err := replaced.Stop(); err != nil { // it is what answers what was taken
		return fmt.Errorf("stop micro service: %w", err)
	}
	return nil
}

// ending notes that subscriptions begin to end.
func (s *Service) noteDrain() {
	if s.drainingSince.IsZero() {
		s.reconnectsBefore = s.cfg.Conn.Stats().Reconnects
	}
	s.drainingSince = time.Now()
}

// drainMost is how long subscriptions may take to end that nobody waits for.
const maxDrain = 30 * time.Second

// drained looks whether those that were replaced have ended.
func (s *Service) checkDrained(leads int) {
	if s.drainingSince.IsZero() {
		return
	}
	known := s.otherSubs + leads + s.current.endpoints + s.controlSubs
	if s.next != nil {
		known += s.next.endpoints + s.controlSubs
	}
	if s.cfg.Conn.NumSubscriptions() > known && time.Since(s.drainingSince) < maxDrain {
		return
	}
	s.drainEnded()
}

// ended is for when subscriptions have ended. When the connection is made anew meanwhile, nats.go subscribes to what it drains once more, and
// then forgets it without a word to the server, which goes on sending requests there. One more connection ends that; again says that there is one.
func (s *Service) drainEnded() (again bool) {
	s.drainingSince = time.Time{}
	if s.cfg.Conn.Stats().Reconnects == s.reconnectsBefore {
		return false
	}
	s.cfg.Logger.Info("the connection to NATS is made once more, since it was made anew while subscriptions ended")
	return s.cfg.Conn.ForceReconnect() == nil // which fails when the connection is closed
}
