package sqlite

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/engine"
)

// TestADecisionWaitsForOneTransactionOfAlerting: it has its turn before the next one, which begins at once.
func TestADecisionWaitsForOneTransactionOfAlerting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Config{})
		var order []string
		decided := make(chan error, 1)
		take := func(during func()) {
			err := s.Take(t.Context(), alerts.TakeQuery{}, func(alerts.TakeState) (alerts.Changes, error) {
				during()
				order = append(order, "take")
				return alerts.Changes{}, nil
			})
			if err != nil {
				t.Error(err)
			}
		}
		take(func() {
			go func() {
				decided <- s.Update(t.Context(), engine.Batch{}, func(engine.Snapshot) engine.Changes {
					order = append(order, "decision")
					return engine.Changes{}
				})
			}()
			synctest.Wait() // until the decision waits
		})
		take(func() {})
		if err := <-decided; err != nil || !slices.Equal(order, []string{"take", "decision", "take"}) {
			t.Errorf("%v, %v", order, err)
		}
	})
}
