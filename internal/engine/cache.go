package engine

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// cacheFor is how long after the last transaction a denial may be answered from memory.
	cacheFor = time.Second
	// refreshAfter is the age of the last transaction at which a denial from memory queues another
	// one, so that no denial has to wait for one when cacheFor is over.
	refreshAfter = 600 * time.Millisecond
	// maxCached bounds the cached counters. A full shard is emptied, which only costs lookups in
	// the store.
	maxCached = 65536
	// shardCount is the number of shards of the cache, and of the leases.
	shardCount = 16
)

// denialCache holds counters that have nothing left, so that they deny again without the store.
// Such a counter becomes freer only with time, which the cached state knows, or by a refund or
// reset, which is broadcast. A broadcast may get lost, so an entry is valid for a second only. But
// each transaction that succeeds proves all entries anew, apart from those that the store says
// others have changed. If a request has several limits, all of its counters are cached, so that the
// denial can describe them; what it says of the ones that do not deny may be a second old.
type denialCache struct {
	sharding
	shards [shardCount]denialShard
	// count is how many counters are cached; when it is 0 requests need not look.
	count atomic.Int64
}

type denialShard struct {
	mu      sync.RWMutex
	entries map[CounterID]*cachedCounter
	names   nameCounts
	// generation counts the invalidations in the shard. What was read before one must not be
	// cached after it.
	generation atomic.Uint64
}

// nameCounts counts the counters of a shard by their names. There are mostly few, so those of a key
// are found by them, while a look at every counter would take so long that requests wait.
type nameCounts map[string]int

func (c nameCounts) remove(name string) {
	if c[name]--; c[name] <= 0 {
		delete(c, name)
	}
}

// eachForgotten calls forget for those of a shard's counters that f names, and perhaps for others that
// the shard does not have. forget may remove the counter.
func eachForgotten[V any](f Forget, entries map[CounterID]V, names nameCounts, forget func(CounterID)) {
	switch {
	case f.Name != "":
		forget(CounterID{f.Key, f.Name})
	case f.Key != "":
		for name := range names {
			forget(CounterID{f.Key, name})
		}
	default:
		for id := range entries {
			if f.All || f.Prefix != "" && strings.HasPrefix(id.Key, f.Prefix) {
				forget(id)
			}
		}
	}
}

// generations are those of all shards.
type generations [shardCount]uint64

func (x *denialCache) generations() (all generations) {
	for i := range x.shards {
		all[i] = x.shards[i].generation.Load()
	}
	return all
}

// cachedCounter is the state of a counter as a transaction left it. Only counted, stale, ownDenials
// and otherDefinition change once it is cached. The fields that every denial needs come first, close
// together.
type cachedCounter struct {
	// used is what was used. deniedUntil is when a cost of 1 fits again, 0 if it fits already.
	// freeAt is when the whole limit is free again.
	used, deniedUntil, freeAt int64
	// exceededAt is when the last exceeded event of the counter was raised, 0 for never.
	exceededAt int64
	// counted is where the last denial of the counter was counted, usually ownDenials; nil before
	// the first.
	counted atomic.Pointer[unreported]
	// stale says that the entry was removed or replaced; holders of a pointer must not use it any more.
	stale      atomic.Bool
	ownDenials unreported
	state      State
	// otherDefinition is the same counter under another definition, nil for none; the shard's lock
	// guards it.
	otherDefinition *cachedCounter
}

// newCachedCounter copies a state that was advanced to the limit.
func newCachedCounter(l *Limit, s *State) *cachedCounter {
	m := &cachedCounter{exceededAt: s.exceededAt, ownDenials: unreported{limit: *l}, state: s.clone()}
	m.state.bucket.notYet = 0 // it is there when the denial is described
	m.used, m.freeAt = m.state.counting().used(), m.state.counting().freeAt()
	if m.state.remaining(l) == 0 {
		m.deniedUntil = m.state.counting().fitsAt(l.capacity(), 1)
	}
	return m
}

func (x *denialCache) init() {
	x.sharding = sharding{maphash.MakeSeed()}
	for i := range x.shards {
		x.shards[i].entries, x.shards[i].names = make(map[CounterID]*cachedCounter), make(nameCounts)
	}
}

// sharding assigns counters to shards, by their keys.
type sharding struct{ seed maphash.Seed }

func (s *sharding) shardIndex(id CounterID) int {
	return int(maphash.String(s.seed, id.Key) % shardCount)
}

// afterCommit updates the cache with what a batch left.
func (x *denialCache) afterCommit(b *batch) {
	for i := range b.counters {
		c := &b.counters[i]
		switch {
		case c.denied && !c.refunded && !c.freed: // perhaps only another counter denied the request
			x.put(newCachedCounter(c.limit, &c.state), c.dirty, &b.generations)
		case c.dirty && x.count.Load() > 0:
			x.update(c, &b.generations)
		}
		if c.otherDefinition != nil && !c.dirty && !c.voidsLeases {
			c.otherDefinition.exceededAt = c.state.exceededAt
			x.put(c.otherDefinition, false, &b.generations)
		}
	}
}

// put caches a counter as a transaction left it, unless there was an invalidation in its shard
// since read, the generations when the counter was read. If the counter did not change, its entry
// under another definition stays.
func (x *denialCache) put(m *cachedCounter, changed bool, read *generations) {
	id := m.ownDenials.limit.CounterID
	shard := x.shardIndex(id)
	s := &x.shards[shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation.Load() != read[shard] {
		return
	}
	if len(s.entries) >= maxCached/shardCount {
		for id := range s.entries {
			x.remove(s, id)
		}
	}
	if s.entries[id] == nil {
		s.names[id.Name]++
	}
	for old := s.entries[id]; old != nil; old = old.otherDefinition {
		if !changed && m.otherDefinition == nil && !old.ownDenials.limit.sameDefinition(&m.ownDenials.limit) {
			m.otherDefinition = old
			continue
		}
		old.stale.Store(true)
		x.count.Add(-1)
	}
	if m.otherDefinition != nil {
		m.otherDefinition.otherDefinition = nil
	}
	x.count.Add(1)
	s.entries[id] = m
}

// update replaces the entry of a counter that has changed, or removes it if the counter has
// something left.
func (x *denialCache) update(c *counter, read *generations) {
	id := c.limit.CounterID
	s := &x.shards[x.shardIndex(id)]
	s.mu.Lock()
	known := x.remove(s, id)
	s.mu.Unlock()
	if known && c.state.spec == c.limit.hash() && c.state.remaining(c.limit) == 0 {
		x.put(newCachedCounter(c.limit, &c.state), true, read)
	}
}

// lookup returns the entry for the limit's counter and definition; nil if there is none.
func (x *denialCache) lookup(l *Limit) *cachedCounter {
	if l.Ref != nil {
		if m := l.Ref.cached.Load(); m != nil && !m.stale.Load() {
			return m
		}
	}
	s := &x.shards[x.shardIndex(l.CounterID)]
	s.mu.RLock()
	m := s.entries[l.CounterID]
	for m != nil && !m.ownDenials.limit.sameDefinition(l) {
		m = m.otherDefinition
	}
	s.mu.RUnlock()
	if m == nil {
		return nil
	}
	if l.Ref != nil {
		l.Ref.cached.Store(m)
	}
	return m
}

// deny answers a request that at least one cached counter denies. All of its counters must be
// cached, none of its limits may be in shadow, and the last transaction, which read clock, must be
// recent.
func (x *denialCache) deny(r *Request, clock *clockReading, d *denialCounts) (Decision, bool) {
	if x.count.Load() == 0 || r.Received.Sub(clock.sent) > cacheFor {
		return Decision{}, false
	}
	var room [2]*cachedCounter
	// The denial must hold even at the latest time that the store's clock may show.
	cached := x.lookupDenied(r, clock.latest(r.Received), room[:0])
	if cached == nil {
		return Decision{}, false
	}
	// Describe the denial as of the earliest time that the store's clock may show, so that
	// retryAfter is not early.
	now := clock.earliest(r.Received)
	decision := Decision{Results: r.makeResults()}
	if len(cached) == 1 && cached[0].used == r.Limits[0].capacity() {
		cached[0].fillDenial(r, now, &decision.Results[0])
	} else if decision = decideCached(r, now, cached); decision.Allowed {
		return Decision{}, false // only the store may allow
	}
	for i, m := range cached {
		if !decision.Results[i].Allowed && m.eventDue(now) {
			return Decision{}, false // the store raises its event
		}
	}
	for i, m := range cached {
		if !decision.Results[i].Allowed {
			d.add(m, &r.Limits[i], r.Cost, max(now, m.exceededAt+exceededInterval))
		}
	}
	return decision, true
}

// lookupDenied appends the entries of all of the request's limits to cached, if one of them denies
// at the given time; it returns nil otherwise.
func (x *denialCache) lookupDenied(r *Request, at int64, cached []*cachedCounter) []*cachedCounter {
	denied := false
	for i := range r.Limits {
		m := x.lookup(&r.Limits[i])
		if m == nil || r.Limits[i].Shadow {
			return nil
		}
		cached = append(cached, m)
		// A counter with something left does not deny from memory: another worker may have charged
		// it since, and the answer would show too much as remaining.
		denied = denied || at < m.deniedUntil
	}
	if !denied {
		return nil
	}
	return cached
}

// eventDue reports whether a denial at now must raise an event at once: none was counted here, and
// the last event is long ago.
func (m *cachedCounter) eventDue(now int64) bool {
	return m.counted.Load() == nil && exceededDue(m.exceededAt, now)
}

// fillDenial describes the denial of a counter that is used up exactly to its capacity.
func (m *cachedCounter) fillDenial(r *Request, now int64, result *Result) {
	l := &r.Limits[0]
	*result = Result{
		Key: l.Key, Name: l.Label(), Policy: l.Policy, Window: l.Window.text, Algorithm: l.Algorithm, Limit: l.Limit,
		FirstUse: l.FirstUse, Burst: l.Burst, Used: m.used, ResetAt: min(m.freeAt, farFuture), Message: l.Message,
	}
	if result.RetryAfter = max(1, min(m.deniedUntil, farFuture)-now); r.Cost > 1 {
		result.RetryAfter = m.state.retryAfter(l, now, r.Cost)
	}
}

// decideCached describes any other denial: it decides over copies of the cached states.
func decideCached(r *Request, now int64, cached []*cachedCounter) Decision {
	var room [2]State
	states := room[:0]
	var pointers [2]*State
	refs := pointers[:0]
	for _, m := range cached {
		states = append(states, m.state)
	}
	for i := range states {
		refs = append(refs, &states[i])
	}
	asked := Request{Verb: Check, Limits: r.Limits, Cost: r.Cost}
	return asked.decide(refs, now)
}

// invalidate removes the counters that f names, and keeps what was read before from being cached.
func (x *denialCache) invalidate(f Forget) {
	for i := range x.shards {
		if f.Key != "" && i != x.shardIndex(CounterID{Key: f.Key}) {
			continue
		}
		s := &x.shards[i]
		s.generation.Add(1)
		s.mu.Lock()
		eachForgotten(f, s.entries, s.names, func(id CounterID) { x.remove(s, id) })
		s.mu.Unlock()
	}
}

// invalidateOthers removes the counters that others have changed. The store names them before it
// asks for a decision.
func (x *denialCache) invalidateOthers(o *Others) {
	if o.All {
		x.invalidate(Forget{All: true})
		return
	}
	for _, id := range o.IDs {
		s := &x.shards[x.shardIndex(id)]
		s.generation.Add(1)
		s.mu.Lock()
		x.remove(s, id)
		s.mu.Unlock()
	}
}

// remove removes a counter from a shard, which must be locked, and reports whether it was there.
func (x *denialCache) remove(s *denialShard, id CounterID) bool {
	m, was := s.entries[id]
	if !was {
		return false
	}
	for ; m != nil; m = m.otherDefinition {
		m.stale.Store(true)
		x.count.Add(-1)
	}
	delete(s.entries, id)
	s.names.remove(id.Name)
	return true
}
