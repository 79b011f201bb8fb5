package bus

import (
	"bytes"
	"hash/maphash"
	"sync/atomic"
	"unsafe"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/natsconn"
)

const (
	// repeatSets times repeatWays bounds the remembered requests: enough for 10,000 keys that are asked for by turns, of
	// which few then share a set with two others.
	repeatSets = 1 << 14
	repeatWays = 2
	// repeatBytes and repeatLimits bound each of them. All together are 20 MB at most, where bodies are of 100 bytes.
	repeatBytes  = 256
	repeatLimits = 2
)

// repeats remembers what bodies of requests ask for. Who limits a key asks byte for byte the same each time, and to
// compare costs a tenth of reading.
type repeats struct {
	seed maphash.Seed
	sets [repeatSets]repeatSet
}

type repeatSet struct {
	// last is the hash of the last body that was not known: only one that comes twice running is remembered, so that
	// those that come once cost no memory.
	last atomic.Uint64
	// tags are of the hashes of what is known, so that mostly no other repeat is looked at than the one that is meant.
	tags  [repeatWays]atomic.Uint32
	known [repeatWays]atomic.Pointer[repeat]
}

// repeat is a remembered request; it is never changed.
type repeat struct {
	cost   int64
	body   []byte
	limits []engine.Limit
	// text, room and refs are for the body and the limits, in one piece of memory with the rest where there is room, as mostly.
	text [160]byte
	room [1]engine.Limit
	refs [repeatLimits]engine.Ref
}

func newRepeats() *repeats { return &repeats{seed: maphash.MakeSeed()} }

// place is where a body is remembered, or would be.
type place struct {
	set  *repeatSet
	hash uint64
	// known is nil when it is not.
	known *repeat
}

// place gives that of a body. Of one that is too long to be known only the begin is looked at.
func (r *repeats) place(data []byte) place {
	h := maphash.Bytes(r.seed, data[:min(len(data), repeatBytes)])
	return place{set: &r.sets[h%repeatSets], hash: h}
}

// findAll looks up what came together. With many keys nearly all of it is in memory that the processor's caches do not have; so step by
// step for all, that it waits for several of them at a time.
func (r *repeats) findAll(all []natsconn.Message, places []place) {
	for i := range all {
		places[i] = r.place(all[i].Data)
		places[i].set.tags[0].Load()
	}
	for i := range all {
		p := &places[i]
		p.recall(all[i].Data)
		if p.known != nil {
			p.known.refs[0].Tally.Denied.Load()
		}
	}
	for i := range all {
		if k := places[i].known; k != nil && k.room[0].Limit >= 0 { // which loads the limit
			k.refs[0].Prefetch()
		}
	}
}

// recall finds out whether the body is known.
func (p *place) recall(data []byte) {
	for i := range p.set.known {
		if p.set.tags[i].Load() != tag(p.hash) {
			continue
		}
		if k := p.set.known[i].Load(); k != nil && bytes.Equal(k.body, data) {
			p.known = k
			return
		}
	}
}

// remember keeps what the body asks for, which must follow from the body alone.
func (p *place) remember(data []byte, req *engine.Request) {
	s, hash := p.set, p.hash
	if len(data) > repeatBytes || len(req.Limits) > repeatLimits || s.last.Swap(hash) != hash {
		return
	}
	k := &repeat{cost: req.Cost}
	k.body = append(k.text[:0], data...)
	k.limits = append(k.room[:0], req.Limits...)
	for i := range k.limits {
		l := &k.limits[i]
		l.Ref = &k.refs[i]
		// The key is told in each answer: it is read from the body, which was just compared, where it stands there as it is.
		if at := bytes.Index(k.body, []byte(l.Key)); at >= 0 {
			l.Key = unsafe.String(&k.body[at], len(l.Key))
		}
	}
	way := hash / repeatSets % repeatWays
	for i := range s.known {
		if s.known[i].Load() == nil {
			way = uint64(i)
			break
		}
	}
	s.known[way].Store(k)
	s.tags[way].Store(tag(hash))
}

// tag is a part of the hash that the choice of the set says nothing of.
func tag(hash uint64) uint32 { return uint32(hash >> 32) }
