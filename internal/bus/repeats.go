package bus

import (
	"bytes"
	"hash/maphash"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/natsconn"
)

const (
	// cacheSets times cacheWays bounds the cached requests. It is enough for 10,000 keys that are
	// asked for in turn: then few of them share a set with two others.
	cacheSets = 1 << 14
	cacheWays = 2
	// maxCachedBody and maxCachedLimits bound each of them. With bodies of 100 bytes all of them
	// take 20 MB at most, and 50 if each has four limits of policies.
	maxCachedBody   = 256
	maxCachedLimits = 4
)

// requestCache maps the bodies of requests to what they decode to. A caller that limits a key sends
// the same bytes each time, and comparing them costs a tenth of decoding. It is a set-associative
// cache without locks.
type requestCache struct {
	seed maphash.Seed
	sets [cacheSets]cacheSet
}

type cacheSet struct {
	// lastMiss is the hash of the last body that was not found. Only a body that comes twice in a
	// row is stored, so bodies that come once cost no memory.
	lastMiss atomic.Uint64
	// tags are parts of the entries' hashes, so that a search seldom has to read an entry other
	// than the one it is for.
	tags    [cacheWays]atomic.Uint32
	entries [cacheWays]atomic.Pointer[cachedRequest]
}

// cachedRequest is a decoded request. Only by changes, to what resolved the same limits later.
type cachedRequest struct {
	verified *verifiedKey // nil unless it is of limits.verify
	cost     int64
	onError  engine.OnError // if policies resolved it
	by       atomic.Pointer[resolvedBy]
	body     []byte
	limits   []engine.Limit
	// The space for by, body and limits, which most requests fit in, so that an entry is one
	// allocation.
	firstBy  resolvedBy
	bodyBuf  [160]byte
	limitBuf [1]engine.Limit
	refs     [maxCachedLimits]engine.Ref
}

func newRequestCache() *requestCache { return &requestCache{seed: maphash.MakeSeed()} }

// cacheLookup is the place of a body in the cache, and the entry found there.
type cacheLookup struct {
	set  *cacheSet
	hash uint64
	// hit is nil if the body was not found. What resolved it may not hold any more.
	hit *cachedRequest
}

// locate returns the place of a body, without a search. Of a body that is too long to be stored
// only the beginning is hashed.
func (c *requestCache) locate(data []byte) cacheLookup {
	h := maphash.Bytes(c.seed, data[:min(len(data), maxCachedBody)])
	return cacheLookup{set: &c.sets[h%cacheSets], hash: h}
}

// lookupAll searches for the bodies of a batch. With many keys nearly all memory that it reads
// misses the processor's caches. So it takes each step for the whole batch before the next step:
// then several misses are waited for at the same time.
func (c *requestCache) lookupAll(messages []natsconn.Message, lookups []cacheLookup) {
	for i := range messages {
		lookups[i] = c.locate(messages[i].Data)
		lookups[i].set.tags[0].Load() // a prefetch, as the loads below
	}
	for i := range messages {
		p := &lookups[i]
		p.search(messages[i].Data)
		if p.hit != nil {
			p.hit.refs[0].Tally.Denied.Load()
		}
	}
	for i := range messages {
		if k := lookups[i].hit; k != nil && k.limitBuf[0].Limit >= 0 { // loads the limit
			k.refs[0].Prefetch()
		}
	}
}

// search sets hit if the body is in the cache.
func (p *cacheLookup) search(data []byte) {
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

// store caches what the body decodes to, which must depend on the body, on the key that was verified, and on what resolved it,
// alone. It replaces what was found and does not hold any more.
func (p *cacheLookup) store(data []byte, req *engine.Request, by resolvedBy, verified *verifiedKey) {
	s, hash := p.set, p.hash
	if p.hit != nil && p.hit.sameAs(req, verified) { // something has changed, but not for this request
		later := by // by itself stays off the heap
		p.hit.by.Store(&later)
		return
	}
	if len(data) > maxCachedBody || len(req.Limits) > maxCachedLimits || p.hit == nil && s.lastMiss.Swap(hash) != hash {
		return
	}
	k := &cachedRequest{verified: verified, cost: req.Cost, onError: req.OnError, firstBy: by}
	k.by.Store(&k.firstBy)
	k.body = append(k.bodyBuf[:0], data...)
	k.limits = append(k.limitBuf[:0], req.Limits...)
	for i := range k.limits {
		l := &k.limits[i]
		l.Ref = &k.refs[i]
		// Each answer contains the key. If the body contains it literally, the limit uses those
		// bytes, which were just compared and so are in the processor's caches.
		if at := bytes.Index(k.body, []byte(l.Key)); at >= 0 {
			l.Key = unsafe.String(&k.body[at], len(l.Key))
		}
	}
	way := hash / cacheSets % cacheWays
	for i := range s.entries {
		if e := s.entries[i].Load(); e == nil || e == p.hit {
			way = uint64(i)
			break
		}
	}
	s.entries[way].Store(k)
	s.tags[way].Store(tag(hash))
}

// sameAs reports whether the body that k is of would be cached alike for req.
func (k *cachedRequest) sameAs(req *engine.Request, verified *verifiedKey) bool {
	sameKey := k.verified == verified || k.verified.key == verified.key
	return sameKey && k.onError == req.OnError && slices.EqualFunc(k.limits, req.Limits, func(cached, l engine.Limit) bool {
		cached.Ref = l.Ref
		return cached == l
	})
}

// tag is a part of the hash that does not select the set.
func tag(hash uint64) uint32 { return uint32(hash >> 32) }
