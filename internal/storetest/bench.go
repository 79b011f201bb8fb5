package storetest

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/seed503877ad/limits/internal/engine"
)

// BenchmarkUpdate writes n stored counters in each transaction, with states as long as those of a
// busy sliding window.
func BenchmarkUpdate(b *testing.B, s Store, n int) {
	ids := numbered(n)
	state := bytes.Repeat([]byte{7}, 150)
	changes := make([]engine.CounterChange, n)
	round := uint64(0)
	decide := func(snap engine.Snapshot) engine.Changes {
		// A new state each time, since SQLite does not write what is already there.
		round++
		binary.LittleEndian.PutUint64(state, round)
		for i := range changes {
			changes[i] = engine.CounterChange{Slot: i, State: state, ExpiresAt: 4_000_000_000_000}
			if snap.States[i] == nil {
				changes[i].Spec = []byte(`{"algorithm":"sliding_window","limit":100,"window":"1m"}`)
			}
		}
		return engine.Changes{Counters: changes}
	}
	// The table has more counters than are written.
	others := numbered(20_000)[n:]
	update(b, s, batch(others...), write("1"))
	update(b, s, batch(ids...), decide)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Update(b.Context(), batch(ids...), decide); err != nil {
			b.Fatal(err)
		}
	}
}
