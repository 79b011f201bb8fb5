package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestASettleCountsOnceAcrossCrashes consumes, kills the worker, settles with the next one, and kills that while it settles.
// A repeated settle must give the same answer and charge, whether the first one was answered or not.
func TestASettleCountsOnceAcrossCrashes(t *testing.T) {
	t.Parallel()
	for name, env := range map[string][]string{
		"sqlite":   {"DATA_DIR=" + filepath.Join(t.TempDir(), "data")},
		"postgres": {"DATABASE_URL=" + testenv.Postgres(t), "DATA_DIR=" + filepath.Join(t.TempDir(), "nats")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n = 60
			w := start(t, env...)
			nc := connect(t, w.nats)
			for i := range n {
				if r := decide(t, nc, limits.SubjectConsume, fmt.Sprintf(`{"key":"k","limit":10000,"window":"1d","cost":100,"id":"job-%d"}`, i)); !r.Allowed {
					t.Fatalf("%+v", r)
				}
			}
			w.kill()
			settle := func(i int) string { return fmt.Sprintf(`{"id":"job-%d","cost":%d}`, i, i*3) }
			w = start(t, env...)
			nc = connect(t, w.nats)
			for i := range n {
				if i == n/2 {
					go w.kill()
				}
				if _, err := try(nc, limits.SubjectSettle, settle(i), time.Second); err != nil {
					break
				}
			}
			w.kill()
			w = start(t, env...)
			nc = connect(t, w.nats)
			var want int64
			for range 2 {
				want = 0
				for i := range n {
					decide(t, nc, limits.SubjectSettle, settle(i))
					want += int64(i * 3)
				}
			}
			if got := used(t, nc, "k"); got != want {
				t.Errorf("%d used, want %d", got, want)
			}
		})
	}
}
