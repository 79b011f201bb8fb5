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
	cacheSets = 1 << 14
	cacheWays = 2
	// repeatBytes and repeatLimits bound each of them. All together are 20 MB at most, where bodies are of 100 bytes.
	maxCachedBody   = 256
	maxCachedLimits = 2
)

// repeats remembers what bodies of requests ask for. Who limits a key asks byte for byte the same each time, and to
// compare costs a tenth of reading.
type requestCache struct {
	seed maphash.Seed
	sets [cacheSets]cacheSet
}

type cacheSet struct {
	// last is the hash of the last body that was not known: only one that comes twice running is remembered, so that
	// those that come once cost no memory.
	lastMiss atomic.Uint64
	// tags are of the hashes of what is known, so that mostly no other repeat is looked at than the one that is meant.
	tags    [cacheWays]atomic.Uint32
	entries [cacheWays]atomic.Pointer[cachedRequest]
}

// repeat is a remembered request; it is never changed.
type cachedRequest struct {
	cost   int64
	body   []byte
	limits []engine.Limit
	// text, room and refs are for the body and the limits, in one piece of memory with the rest where there is room, as mostly.
	bodyBuf  [160]byte
	limitBuf [1]engine.Limit
	refs     [maxCachedLimits]engine.Ref
}

func newRequestCache() *requestCache { return &requestCache{seed: maphash.MakeSeed()} }

// place is where a body is remembered, or would be.
type cacheLookup struct {
	set  *cacheSet
	hash uint64
	// known is nil when it is not.
	hit *cachedRequest
}

// place gives that of a body. Of one that is too long to be known only the begin is looked at.
func (r *requestCache) locate(data []byte) cacheLookup {
	h := maphash.Bytes(r.seed, data[:min(len(data), maxCachedBody)])
	return cacheLookup{set: &r.sets[h%cacheSets], hash: h}
}

// findAll looks up what came together. With many keys nearly all of it is in memory that the processor's caches do not have; so step by
// step for all, that it waits for several of them at a time.
func (r *requestCache) lookupAll(all []natsconn.Message, lookups []cacheLookup) {
	for i := range all {
		lookups[i] = r.locate(all[i].Data)
		lookups[i].set.tags[0].Load()
	}
	for i := range all {
		p := &lookups[i]
		p.lookup(all[i].Data)
		if p.hit != nil {
			p.hit.refs[0].Tally.Denied.Load()
		}
	}
	for i := range all {
		if k := lookups[i].hit; k != nil && k.limitBuf[0].Limit >= 0 { // which loads the limit
			k.refs[0].Prefetch()
		}
	}
}

// recall finds out whether the body is known.
func (p *cacheLookup) lookup(data []byte) {
	for i := range p.set.entries {
		if p.set.tags[i].Load() != tag(p.hash) {
			continue
		}
		if k := p.set.entries[i].Load(); k != nil && bytes.Equal(k.body, data) {
			p.hit = k
			return
		}
	}
}

// remember keeps what the body asks for, which must follow from the body alone.
func (p *cacheLookup) store(data []byte, req *engine.Request) {
	s, hash := p.set, p.hash
	if len(data) > maxCachedBody || len(req.Limits) > maxCachedLimits || s.lastMiss.Swap(hash) != hash {
		return
	}
	k := &cachedRequest{cost: req.Cost}
	k.body = append(k.bodyBuf[:0], data...)
	k.limits = append(k.limitBuf[:0], req.Limits...)
	for i := range k.limits {
		l := &k.limits[i]
		l.Ref = &k.refs[i]
		// The key is told in each answer: it is read from the body, which was just compared, where it stands there as it is.
		if at := bytes.Index(k.body, []byte(l.Key)); at >= 0 {
			l.Key = unsafe.String(&k.body[at], len(l.Key))
		}
	}
	way := hash / cacheSets % cacheWays
	for i := range s.entries {
		if s.entries[i].Load() == nil {
			way = uint64(i)
			break
		}
	}
	s.entries[way].Store(k)
	s.tags[way].Store(tag(hash))
}

// tag is a part of the hash that the choice of the set says nothing of.
func tag(hash uint64) uint32 { return uint32(hash >> 32) }
