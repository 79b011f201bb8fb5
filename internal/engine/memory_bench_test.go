package engine_test

import (
	"testing"

	"github.com/seed503877ad/limits/internal/engine"
)

// BenchmarkFromMemory is what the engine costs for an answer that needs no store: a denial, and one from a lease that
// is renewed like in a service.
func BenchmarkFromMemory(b *testing.B) {
	for name, limit := range map[string]int64{"denied": 1, "leased": 1_000_000_000} {
		b.Run(name, func(b *testing.B) {
			e := start(b, engine.Config{Store: openTap(b)})
			l := leased(b, "api:user:123", limit)
			r := &engine.Request{}
			ask := func(answered func(engine.Decision, error)) {
				*r = engine.Request{Limits: append(r.Limits[:0], l), Cost: 1, Done: answered}
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
