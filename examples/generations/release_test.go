package main

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed503877ad/limits"
)

// TestAReservationThatComesLateIsGivenBack: a question that got no answer may be behind the one that gives back what it reserves.
func TestAReservationThatComesLateIsGivenBack(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *server) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.release(t.Context(), "job-9", false)
		}()
		if _, err := s.client.Settle(t.Context(), "job-9", 0); err == nil { // about when release is told the same for the first time
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

// TestNothingIsGivenBackInVain: neither what the limiter has refused, nor again and again what it knows nothing of, nor more at a
// time than there is room for.
func TestNothingIsGivenBackInVain(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *server) {
		room := make(goroutines, 1)
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/renders", nil)
		r.Header.Set("X-Job", "job-10")
		for _, status := range []int{400, 404, 409, 413} {
			s.releaseUndecided(room)(r, &limits.Error{Status: status})
			if len(room) != 0 {
				t.Errorf("refused with %d: is given back", status)
			}
		}
		s.releaseUndecided(room)(r, &limits.Error{Status: 503, Code: limits.CodeOverloaded})
		room <- struct{}{}                                    // as soon as the one before has ended
		s.releaseUndecided(room)(r, context.DeadlineExceeded) // waits for no room
		if room.try(func() {}) {
			t.Error("two at a time in room for one")
		}
	})
}
