package postgres

import (
	"context"
	"slices"
	"sync"
)

// sharedReads are reads that wait for a turn, of which the one that gets it serves as many as it can: requests that anybody
// may make wait for few round trips then, and what waits behind them does, too, however many there are.
type sharedReads[Q, A any] struct {
	// turn is held by the read that serves the others.
	turn    chan struct{}
	mu      sync.Mutex
	waiting []*sharedRead[Q, A]
}

type sharedRead[Q, A any] struct {
	question Q
	answer   A
	err      error
	// done is closed once answer or err is set.
	done chan struct{}
}

func newSharedReads[Q, A any]() *sharedReads[Q, A] {
	return &sharedReads[Q, A]{turn: make(chan struct{}, 1)}
}

// read answers a question. It calls serve while it has the turn, which answers reads that it takes, and whose error is of
// this caller alone.
func (s *sharedReads[Q, A]) read(ctx context.Context, question Q, serve func(ctx context.Context) error) (answer A, err error) {
	r := s.add(question)
	for {
		select {
		case <-r.done:
			return r.answer, r.err
		case <-ctx.Done():
			s.remove(r)
			return answer, ctx.Err()
		case s.turn <- struct{}{}:
		}
		select {
		case <-r.done: // by the one before
		default:
			err = serve(ctx)
		}
		<-s.turn
		if err != nil {
			s.remove(r)
			return answer, err
		}
	}
}

func (s *sharedReads[Q, A]) add(question Q) *sharedRead[Q, A] {
	r := &sharedRead[Q, A]{question: question, done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, r)
	return r
}

// take returns up to max reads, those that have waited longest.
func (s *sharedReads[Q, A]) take(max int) []*sharedRead[Q, A] {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.waiting), max)
	taken := s.waiting[:n:n]
	if s.waiting = s.waiting[n:]; len(s.waiting) == 0 {
		s.waiting = nil
	}
	return taken
}

// giveBack puts reads that were taken before those that wait.
func (s *sharedReads[Q, A]) giveBack(reads []*sharedRead[Q, A]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.Concat(reads, s.waiting)
}

// remove takes back a read whose caller has given up.
func (s *sharedReads[Q, A]) remove(r *sharedRead[Q, A]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting, r); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
}

func (r *sharedRead[Q, A]) end(answer A, err error) {
	r.answer, r.err = answer, err
	close(r.done)
}
