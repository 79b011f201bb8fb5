package bus

import (
	"context"
	"fmt"
	"time"
)

// HandOver returns when another worker decides, if one stands by. Requests are answered until then,
// so the engine must still hear what other workers change. [Service.Stop] hands over if that was
// not done before.
func (s *Service) HandOver(ctx context.Context) {
	if s.lead != nil {
		s.lead.close(ctx)
	}
}

// Stop takes no further requests, answers every request that was taken, and returns when the server
// has the answers. The engine must still run. If ctx ends first, the error says how many requests
// are unanswered.
func (s *Service) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() {
		defer close(s.stopped)
		defer s.cancel()
		s.stopErr = s.stop(ctx)
	})
	<-s.stopped
	return s.stopErr
}

func (s *Service) stop(ctx context.Context) error {
	s.HandOver(ctx)
	defer s.invalidLines.flush()
	defer s.removeInline()
	s.noteDrain()
	if s.next != nil {
		_ = s.next.Stop() // it only begins to drain, as below
	}
	if err := s.current.Stop(); err != nil {
		return fmt.Errorf("stop micro service: %w", err)
	}
	// Stop only begins to drain. A subscription leaves the connection after its last callback has
	// returned, so once there are none no request can begin.
	for s.cfg.Conn.NumSubscriptions() > 0 && !s.cfg.Conn.IsClosed() {
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("drain subscriptions: %w", err)
		}
	}
	if s.drainEnded() {
		if err := s.flush(ctx); err != nil { // what came on the previous connection may still be taken until then
			return fmt.Errorf("reconnect: %w", err)
		}
	}
	s.removeInline()
	for s.pending.Load() > 0 {
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("wait for %d answers: %w", s.pending.Load(), err)
		}
	}
	if err := s.flush(ctx); err != nil {
		return fmt.Errorf("flush answers: %w", err)
	}
	return nil
}

// flush returns when the server has received all that was published.
func (s *Service) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	return s.cfg.Conn.FlushWithContext(ctx)
}
