package bus

import (
	"hash/maphash"
	"slices"
	"sync/atomic"

	"github.com/seed503877ad/limits/internal/engine"
)

const (
	// repeatSlots bounds the remembered requests: each slot has one. They are for the keys that are asked for most, and
	// few enough to stay in the processor's cache beside requests for many keys.
	repeatSlots = 1024
	// repeatBytes bounds their bodies, and with them the limits of each.
	repeatBytes = 256
)

// repeats remembers what bodies of requests ask for. Who limits a key asks byte for byte the same each time, and to
// compare costs a tenth of reading.
type repeats struct {
	seed  maphash.Seed
	slots [repeatSlots]repeatSlot
}

type repeatSlot struct {
	// last is the hash of the last body that was not known: only one that comes twice running is remembered, so that
	// those that come once cost no memory.
	last  atomic.Uint64
	known atomic.Pointer[repeat]
}

// repeat is a remembered request; it is never changed.
type repeat struct {
	body   string
	limits []engine.Limit
	cost   int64
}

func newRepeats() *repeats { return &repeats{seed: maphash.MakeSeed()} }

// slot gives the place of a body, and its hash. Of a body too long to be known only the begin is looked at.
func (r *repeats) slot(data []byte) (*repeatSlot, uint64) {
	h := maphash.Bytes(r.seed, data[:min(len(data), repeatBytes)])
	return &r.slots[h%repeatSlots], h
}

// recall tells whether the body is known, and then what it asks for.
func (s *repeatSlot) recall(data []byte, req *engine.Request) bool {
	k := s.known.Load()
	if k == nil || k.body != string(data) {
		return false
	}
	req.Limits, req.Cost = append(req.Limits, k.limits...), k.cost
	return true
}

// remember keeps what the body asks for, which must follow from the body alone.
func (s *repeatSlot) remember(data []byte, hash uint64, req *engine.Request) {
	if len(data) <= repeatBytes && s.last.Swap(hash) == hash {
		s.known.Store(&repeat{string(data), slices.Clone(req.Limits), req.Cost})
	}
}
