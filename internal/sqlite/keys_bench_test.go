package sqlite

import (
	"fmt"
	"testing"

	"github.com/seed503877ad/limits/internal/keys"
)

// BenchmarkKey looks up API keys, with one caller and with many.
func BenchmarkKey(b *testing.B) {
	s := open(b, Config{})
	id := func(i int) string { return fmt.Sprintf("%08d", i%1000) }
	for i := range 1000 {
		if err := s.CreateKey(b.Context(), keys.Key{ID: id(i), User: id(i), Attributes: map[string]string{"plan": "free"}}); err != nil {
			b.Fatal(err)
		}
	}
	look := func(i int) {
		if _, found, err := s.Key(b.Context(), id(i)); !found || err != nil {
			b.Error(found, err)
		}
	}
	b.Run("one", func(b *testing.B) {
		i := 0
		for b.Loop() {
			i++
			look(i)
		}
	})
	b.Run("many", func(b *testing.B) {
		b.SetParallelism(16)
		b.RunParallel(func(p *testing.PB) {
			for i := 0; p.Next(); i++ {
				look(i)
			}
		})
	})
}
