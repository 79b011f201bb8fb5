package bus

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
)

// answering is a micro service that answers on all subjects, or on all but those that are decided on. It has so many subscriptions for
// them, and the verbs of micro.
type answering struct {
	micro.Service
	decides bool
	subs    int
	// inline counts by subject what was taken before it.
	inline map[string]*inline
}

func (s *Service) listen(decide bool) (*answering, error) {
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
	return &answering{Service: m, decides: decide, subs: len(endpoints)}, nil
}

// decideOrNot changes what is answered, without a moment in which less is. An endpoint cannot be taken from a micro service, so there
// is another one. What the server does not confirm stays as it is, until this is called again.
func (s *Service) decideOrNot(decide bool) (err error) {
	if s.next == nil && s.micro.decides == decide {
		return nil
	}
	if s.next == nil {
		if s.next, err = s.listen(decide); err != nil {
			return err
		}
	}
	if err := s.cfg.Conn.FlushTimeout(settleEvery); err != nil {
		return fmt.Errorf("subscribe endpoints: %w", err)
	}
	replaced := s.micro
	if s.next.decides == decide {
		s.micro = s.next
		s.takeInline()
	} else { // it was for what is not wanted any more
		replaced = s.next
	}
	s.next = nil
	s.ending()
	if err := replaced.Stop(); err != nil { // it is what answers what was taken
		return fmt.Errorf("stop micro service: %w", err)
	}
	return nil
}

// ending notes that subscriptions begin to end.
func (s *Service) ending() {
	if s.drains.IsZero() {
		s.reconnects = s.cfg.Conn.Stats().Reconnects
	}
	s.drains = time.Now()
}

// drainMost is how long subscriptions may take to end that nobody waits for.
const drainMost = 30 * time.Second

// drained looks whether those that were replaced have ended.
func (s *Service) drained(leads int) {
	if s.drains.IsZero() {
		return
	}
	known := s.others + leads + s.micro.subs + s.verbs
	if s.next != nil {
		known += s.next.subs + s.verbs
	}
	if s.cfg.Conn.NumSubscriptions() > known && time.Since(s.drains) < drainMost {
		return
	}
	s.ended()
}

// ended is for when subscriptions have ended. When the connection is made anew meanwhile, nats.go subscribes to what it drains once more, and
// then forgets it without a word to the server, which goes on sending requests there. One more connection ends that; again says that there is one.
func (s *Service) ended() (again bool) {
	s.drains = time.Time{}
	if s.cfg.Conn.Stats().Reconnects == s.reconnects {
		return false
	}
	s.cfg.Logger.Info("the connection to NATS is made once more, since it was made anew while subscriptions ended")
	return s.cfg.Conn.ForceReconnect() == nil // which fails when the connection is closed
}
