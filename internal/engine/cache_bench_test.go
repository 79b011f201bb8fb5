package engine_test

import (
	"testing"

	"github.com/seed503877ad/limits/internal/engine"
)

// BenchmarkFromMemory measures an answer that needs no store: a denial, one from a lease that is
// renewed as in a service, and one from three leases.
func BenchmarkFromMemory(b *testing.B) {
	for name, c := range map[string]struct {
		limit int64
		keys  []string
	}{
		"denied":       {1, []string{"api:user:123"}},
		"leased":       {1_000_000_000, []string{"api:user:123"}},
		"three leased": {1_000_000_000, []string{"api:user:123", "api:ip:203.0.113.9", "global"}},
	} {
		b.Run(name, func(b *testing.B) {
			e := start(b, engine.Config{Store: openTap(b)})
			var limits []engine.Limit
			for _, key := range c.keys {
				l := leased(b, key, c.limit)
				l.Ref = new(engine.Ref)
				limits = append(limits, l)
			}
			r := &engine.Request{}
			ask := func(answered func(engine.Decision, error)) {
				*r = engine.Request{Limits: append(r.Limits[:0], limits...), Cost: 1, Done: answered}
				if err := e.Submit(r); err != nil {
					b.Fatal(err)
				}
			}
			done := make(chan struct{}, 1)
			answered := func(engine.Decision, error) { done <- struct{}{} }
			for range 1000 {
				ask(answered)
				<-done
			}
			b.ReportAllocs()
			for b.Loop() {
				ask(answered)
				<-done
			}
		})
	}
}
