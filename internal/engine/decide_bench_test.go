package engine

import (
	"testing"
	"time"
)

func BenchmarkDecide(b *testing.B) {
	zoned := limitOf(b, FixedWindow, MaxAmount, "day")
	zoned.Zone, _ = time.LoadLocation("Europe/Berlin")
	for _, c := range []struct {
		name  string
		limit Limit
	}{
		{"sliding_window", limitOf(b, SlidingWindow, MaxAmount, "1m")},
		{"fixed_window", limitOf(b, FixedWindow, MaxAmount, "1m")},
		{"fixed_window calendar", zoned},
		{"token_bucket", limitOf(b, TokenBucket, MaxAmount, "1m")},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			limits, states := []Limit{c.limit}, []*State{{}}
			now := int64(noon)
			for b.Loop() {
				decide(Consume, limits, states, now, 1)
				now += 10
			}
		})
	}
}

// BenchmarkSpan measures the computation of a calendar window.
func BenchmarkSpan(b *testing.B) {
	for _, period := range []string{"hour", "day", "week", "month"} {
		l := calendar(b, period, "Europe/Berlin")
		b.Run(period, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l.span(noon)
			}
		})
	}
}

// BenchmarkState encodes and decodes a sliding window with all buckets in use, which is the largest
// state.
func BenchmarkState(b *testing.B) {
	h := history{limit: limitOf(b, SlidingWindow, MaxAmount, "1m"), now: noon}
	for range subBuckets {
		h.play(op{1_000, Consume, 1_000})
	}
	room := h.state.Append(nil)
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(room)))
		for b.Loop() {
			room = h.state.Append(room[:0])
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(room)))
		var s State
		for b.Loop() {
			if err := s.Decode(room); err != nil {
				b.Fatal(err)
			}
		}
	})
}
