package main

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed503877ad/limits"
)

// TestLateReservationIsReleased: a request to reserve that got no answer may arrive after the release.
func TestLateReservationIsReleased(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *server) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.release(t.Context(), "job-9", false)
		}()
		if _, err := s.client.Settle(t.Context(), "job-9", 0); err == nil { // at about the same time as the first attempt of release
			t.Fatal("settled before it was reserved")
		}
		if _, err := s.client.Consume(t.Context(), limits.Request{Policy: "money", Attributes: map[string]string{"user": "7"},
			Cost: maxCents, ID: "job-9"}); err != nil {
			t.Fatal(err)
		}
		<-done
		if got := s.use(t, "7", "FREE"); !strings.Contains(got, "money 0/100") {
			t.Errorf("%s, want nothing charged", got)
		}
	})
}

// TestReleasesAreBounded: nothing is released after a refusal, an unknown id is not released again and again, and there are
// never more releases at a time than allowed.
func TestReleasesAreBounded(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *server) {
		running := make(goroutines, 1)
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/renders", nil)
		r.Header.Set("X-Job", "job-10")
		for _, status := range []int{400, 404, 409, 413} {
			s.releaseUndecided(running)(r, &limits.Error{Status: status})
			if len(running) != 0 {
				t.Errorf("refused with %d: is given back", status)
			}
		}
		s.releaseUndecided(running)(r, &limits.Error{Status: 503, Code: limits.CodeOverloaded})
		running <- struct{}{}                                    // waits until the previous one has ended
		s.releaseUndecided(running)(r, context.DeadlineExceeded) // does not wait
		if running.try(func() {}) {
			t.Error("two at a time where one is allowed")
		}
	})
}
