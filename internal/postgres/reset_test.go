package postgres

import (
	"math"
	"testing"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestAResetWaitsInItsLastRoundTrip for the next millisecond, since all other decisions wait for its turn. The others take
// the turn, and read what is to be removed.
func TestAResetWaitsInItsLastRoundTrip(t *testing.T) {
	t.Parallel()
	p := startProxy(t, testenv.Postgres(t))
	s := open(t, Config{URL: p.url})
	batch := engine.Batch{Counters: []engine.CounterID{{Key: "k", Name: "n"}}}
	var removedAt int64
	fewest := math.MaxInt // of some tries, since the store may connect or have something else to do
	for range 20 {
		var clock [2]int64
		for j := range clock {
			update(t, s, batch, func(snap engine.Snapshot) engine.Changes {
				clock[j] = snap.Now
				return engine.Changes{Counters: []engine.CounterChange{{ExpiresAt: snap.Now + 1e6, State: []byte{1}, Spec: []byte("s")}}}
			})
		}
		if clock[0] <= removedAt {
			t.Errorf("a counter begins at %d, in the same millisecond as the one that was removed, or earlier", clock[0])
		}
		removedAt = clock[1]
		before := p.roundTripsSoFar()
		if n, err := s.Reset(t.Context(), engine.Selection{}, false); n != 1 || err != nil {
			t.Fatalf("it removed %d: %v", n, err)
		}
		fewest = min(fewest, p.roundTripsSoFar()-before)
	}
	if fewest != 3 {
		t.Errorf("a reset took %d round trips, want 3", fewest)
	}
}
