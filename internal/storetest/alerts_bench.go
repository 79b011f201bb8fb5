package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/seed503877ad/limits/internal/alerts"
)

// BenchmarkTake takes batches of size events of 10,000 users, like a burst over all of them: the
// first event of a user raises an alert, and each later one updates it. It reports events per
// second.
func BenchmarkTake(b *testing.B, s alerts.Store, size int) {
	const users = 10_000
	state := json.RawMessage(`{"buckets":[[1700000000000,1],[1700000010000,1],[1700000020000,1]]}`)
	n := 0
	for b.Loop() {
		var t alerts.TakeQuery
		for range size {
			n++
			t.Events = append(t.Events, fmt.Sprintf("01890a5d-ac96-774b-bcce-%012d", n))
			t.Groups = append(t.Groups, group(fmt.Sprint(n*7919%users)))
		}
		err := s.Take(context.Background(), t, func(taken alerts.TakeState) (alerts.Changes, error) {
			c := alerts.Changes{States: map[alerts.GroupID]json.RawMessage{}}
			for i, g := range t.Groups {
				c.States[g] = state
				a, open := taken.Open[g]
				if !open {
					c.Raised = append(c.Raised, raised(t.Events[i], g.Key, taken.Now))
					continue
				}
				a.Denied++
				a.ResolveAt = taken.Now + int64(n)
				c.Updated = append(c.Updated, a)
			}
			return c, nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
}
