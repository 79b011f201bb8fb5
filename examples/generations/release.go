package main

import (
	"context"
	"errors"
	"log"
	"net/http"
	"time"

	"github.com/seed503877ad/limits"
)

// mostReleases is how many reservations are given back at a time. What a limiter that is away keeps waiting is bounded by it.
const mostReleases = 1000

// few is room for so many goroutines.
type few chan struct{}

// try begins one, and tells whether there was room.
func (f few) try(do func()) bool {
	select {
	case f <- struct{}{}:
	default:
		return false
	}
	go func() {
		defer func() { <-f }()
		do()
	}()
	return true
}

// undecided is what happens to a render that the middleware got no decision for: it may have been reserved all the same, and is
// given back then. What the limiter refused, as a user that it cannot read, charged nothing.
func (s *server) undecided(room few) func(*http.Request, error) {
	return func(r *http.Request, err error) {
		log.Printf("reserve: %v", err)
		refusal, answered := errors.AsType[*limits.Error](err)
		if answered && refusal.Status < http.StatusInternalServerError {
			return
		}
		job := r.Header.Get("X-Job")
		if !room.try(func() { s.release(r.Context(), job, answered) }) {
			log.Printf("job %s is not given back, as %d others are: %d cents may stay charged", job, cap(room), mostCents)
		}
	}
}

// releases are the waits before the tries to give back what may have been reserved.
var releases = []time.Duration{0, time.Second, 10 * time.Second, time.Minute}

// release gives back what may have been reserved. A question that got no answer may still be on its way, and a limiter that is behind
// may take this one first, and knows of no reservation then: so it is told again. Where the question was answered, with an error of
// the limiter, there is none on its way.
func (s *server) release(ctx context.Context, job string, answered bool) {
	for _, wait := range releases {
		time.Sleep(wait)
		err := s.settle(ctx, job, 0)
		refusal, told := errors.AsType[*limits.Error](err)
		unknown := told && refusal.Code == limits.CodeUnknownID
		if err == nil || unknown && answered || told && !unknown && !refusal.Temporary() {
			return
		}
	}
}
