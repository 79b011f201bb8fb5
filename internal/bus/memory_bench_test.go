package bus

import (
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
	"github.com/seed503877ad/limits/internal/usage"
)

// BenchmarkDenied is the work of a worker for a denial from memory, without NATS: it reads the
// request, decides, counts and writes the answer. With many keys most of the time is spent waiting
// for memory.
func BenchmarkDenied(b *testing.B) {
	for _, keys := range []int{1, 10_000} {
		b.Run(strconv.Itoa(keys), func(b *testing.B) {
			store := eachstore.SQLite(b, nil)
			recorder, err := usage.NewRecorder(usage.Config{Store: store, Logger: slog.New(slog.DiscardHandler), Keys: 100_000})
			if err != nil {
				b.Fatal(err)
			}
			defer recorder.Close(b.Context())
			var ids atomic.Int64
			e, err := engine.New(b.Context(), engine.Config{Store: store, Tally: recorder.Tally, NewID: func() string { return strconv.FormatInt(ids.Add(1), 10) }})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close(b.Context())
			d := testDecoder(b)
			c := new(call)
			answered := make(chan struct{}, 1)
			done := func(d engine.Decision, err error) {
				c.body = appendReply(c.body[:0], c.Verb, &d, c.Cost)
				answered <- struct{}{}
			}
			body := make([]byte, 0, 256)
			ask := func(key int) {
				body = strconv.AppendInt(append(body[:0], `{"key":"bench:key:`...), int64(key), 10)
				body = append(body, `","limit":1,"window":"1h"}`...)
				c.Request = engine.Request{Limits: c.oneLimit[:0], Done: done}
				if err := d.decode(engine.Consume, body, nil, &c.Request); err != nil {
					b.Fatal(err)
				}
				if err := e.Submit(&c.Request); err != nil {
					b.Fatal(err)
				}
				<-answered
			}
			for range 4 {
				for key := range keys {
					ask(key)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				ask(rand.IntN(keys))
			}
		})
	}
}
