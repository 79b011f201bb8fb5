package postgres

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestClaimsAndResultsOfDeliveriesTakeOneRoundTrip each: a channel makes them in turn, so the distance to PostgreSQL bounds how
// many deliveries it has in a second.
func TestClaimsAndResultsOfDeliveriesTakeOneRoundTrip(t *testing.T) {
	t.Parallel()
	p := startProxy(t, testenv.Postgres(t))
	s := open(t, Config{URL: p.url})
	const calls = 20
	for i := range 2 * calls {
		m := alerts.Message{ID: fmt.Sprintf("m%02d", i)}
		if err := s.AddDelivery(t.Context(), alerts.NewDelivery(m, "ops")); err != nil {
			t.Fatal(err)
		}
	}
	turn := func(when string, most int) {
		t.Helper()
		claims, results := 0, 0
		for range calls {
			before := p.roundTripsSoFar()
			due, err := s.DueDeliveries(t.Context(), "ops", 1, time.Minute)
			if err != nil || len(due) != 1 {
				t.Fatal(due, err)
			}
			between := p.roundTripsSoFar()
			if err := s.SaveResults(t.Context(), []alerts.DeliveryResult{{ID: due[0].ID, State: alerts.DeliverySent}}); err != nil {
				t.Fatal(err)
			}
			claims, results = claims+between-before, results+p.roundTripsSoFar()-between
		}
		if t.Logf("%s: %d claims in %d round trips, as many results in %d", when, calls, claims, results); max(claims, results) > most {
			t.Errorf("%s: more than %d round trips", when, most)
		}
	}
	turn("while statements are prepared", 20*calls)
	turn("then", calls+5) // the pool may ping a connection on a busy machine
}
