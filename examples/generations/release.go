package main

import (
	"context"
	"errors"
	"log"
	"net/http"
	"time"

	"github.com/seed503877ad/limits"
)

// maxReleases bounds the reservations that are released at a time, so that they do not pile up while the limiter is down.
const maxReleases = 1000

// goroutines is a semaphore: its capacity is how many goroutines may run.
type goroutines chan struct{}

// try runs f in a goroutine. It returns false if too many run already.
func (g goroutines) try(f func()) bool {
	select {
	case g <- struct{}{}:
	default:
		return false
	}
	go func() {
		defer func() { <-g }()
		f()
	}()
	return true
}

// releaseUndecided returns the handler for renders that the middleware got no decision for. The cost may have been reserved
// nevertheless, so it is released. A request that the limiter refused, for example because of an invalid user, charged nothing.
func (s *server) releaseUndecided(running goroutines) func(*http.Request, error) {
	return func(r *http.Request, err error) {
		log.Printf("reserve: %v", err)
		refusal, answered := errors.AsType[*limits.Error](err)
		if answered && refusal.Status < http.StatusInternalServerError {
			return
		}
		job := r.Header.Get("X-Job")
		if !running.try(func() { s.release(r.Context(), job, answered) }) {
			log.Printf("job %s was not released, because %d other releases are running: %d cents may stay charged", job, cap(running), maxCents)
		}
	}
}

// releaseDelays are the delays before the attempts to release a reservation.
var releaseDelays = []time.Duration{0, time.Second, 10 * time.Second, time.Minute}

// release releases what may have been reserved. If the request to reserve got no answer, it may still be on its way, and a busy
// limiter may process the release first, when it knows no reservation yet. So the release is repeated. That is not necessary if
// the request to reserve was answered, with an error.
func (s *server) release(ctx context.Context, job string, answered bool) {
	for _, delay := range releaseDelays {
		time.Sleep(delay)
		err := s.settle(ctx, job, 0)
		refusal, told := errors.AsType[*limits.Error](err)
		unknown := told && refusal.Code == limits.CodeUnknownID
		if err == nil || unknown && answered || told && !unknown && !refusal.Temporary() {
			return
		}
	}
}
