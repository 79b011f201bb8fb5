package engine

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// cacheFor bounds how long after the last transaction a denial is answered from memory.
	cacheFor = time.Second
	// refreshAfter is when a transaction is run that nobody asked for, so that no denial has to wait for one at the end.
	refreshAfter = 600 * time.Millisecond
	// maxCached bounds the remembered counters; beyond it all of a shard are forgotten, which costs a look at
	// the store and nothing else.
	maxCached  = 65536
	shardCount = 16
)

// denialCache remembers counters of which nothing remains, so that they deny again without the store. Such a counter
// only becomes freer by time, which the remembered state knows, or by a refund or reset, which is broadcast. A
// broadcast may get lost, so what is remembered holds for a second: but each transaction that succeeds proves all of it
// again, apart from what the store says that others changed. Of a request with several limits the others are remembered
// too, for the answer's sake: what they are said to have left may be a second old.
type denialCache struct {
	seed   maphash.Seed
	shards [shardCount]struct {
		mu      sync.RWMutex
		entries map[CounterID]*cachedCounter
		// generation counts what was forgotten of the shard. What was read before that must not be remembered after it.
		generation atomic.Uint64
	}
	// count is how many counters are remembered, so that a worker that denies nothing pays nothing for them.
	count atomic.Int64
}

// generations are those of all shards.
type generations [shardCount]uint64

func (x *denialCache) generations() (all generations) {
	for i := range x.shards {
		all[i] = x.shards[i].generation.Load()
	}
	return all
}

// cachedCounter is the state of a counter as a transaction left it. It is never changed, apart from told, gone and what own counts.
// What every denial needs comes first, close together.
type cachedCounter struct {
	// used is what was used; until is when anything fits again, 0 when something did; freeAt is when all of the limit is
	// free again.
	used, deniedUntil, freeAt int64
	// exceededAt is when the last exceeded event of the counter was raised, 0 for never.
	exceededAt int64
	// counted is where the denials of the counter were counted last; mostly in own.
	counted atomic.Pointer[unreported]
	// stale says that it was forgotten or replaced.
	stale      atomic.Bool
	ownDenials unreported
	state      State
	// otherDefinition is the same counter under another definition, nil for none; its shard guards it.
	otherDefinition *cachedCounter
}

// newCachedCounter copies a counter's state under a limit, to which it was advanced.
func newCachedCounter(l *Limit, s *State) *cachedCounter {
	m := &cachedCounter{ownDenials: unreported{limit: *l}, state: s.clone(), exceededAt: s.exceededAt, used: s.counting().used(), freeAt: s.counting().freeAt()}
	if m.state.remaining(l) == 0 {
		m.deniedUntil = m.state.counting().fitsAt(l.capacity(), 1)
	}
	return m
}

func (x *denialCache) init() {
	x.seed = maphash.MakeSeed()
	for i := range x.shards {
		x.shards[i].entries = make(map[CounterID]*cachedCounter)
	}
}

func (x *denialCache) shard(id CounterID) int {
	return int(maphash.String(x.seed, id.Key) % shardCount)
}

// afterCommit brings memory to what a batch left.
func (x *denialCache) afterCommit(b *batch) {
	for i := range b.counters {
		c := &b.counters[i]
		switch {
		case c.denied && !c.refunded && !c.freed:
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

// put keeps a counter as a transaction left it, unless something of its shard was forgotten since the generation in which it
// was read. What is known of it under another definition stays, but for a counter that was changed.
func (x *denialCache) put(m *cachedCounter, changed bool, read *generations) {
	id := m.ownDenials.limit.CounterID
	shard := x.shard(id)
	s := &x.shards[shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation.Load() != read[shard] {
		return
	}
	if len(s.entries) >= maxCached/shardCount {
		for id := range s.entries {
			x.remove(s.entries, id)
		}
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

// update replaces what is remembered of a counter that was changed, or forgets it where something remains.
func (x *denialCache) update(c *counter, read *generations) {
	id := c.limit.CounterID
	s := &x.shards[x.shard(id)]
	s.mu.Lock()
	known := x.remove(s.entries, id)
	s.mu.Unlock()
	if known && c.state.spec == c.limit.hash() && c.state.remaining(c.limit) == 0 {
		x.put(newCachedCounter(c.limit, &c.state), true, read)
	}
}

func (x *denialCache) lookup(l *Limit) *cachedCounter {
	if l.Ref != nil {
		if m := l.Ref.cached.Load(); m != nil && !m.stale.Load() {
			return m
		}
	}
	s := &x.shards[x.shard(l.CounterID)]
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

// deny answers a request that at least one remembered counter denies, if all of its counters are remembered, none of
// its limits is in shadow, and the last transaction, at clock, is not too long ago.
func (x *denialCache) deny(r *Request, clock *clockReading, d *denialCounts) (Decision, bool) {
	if x.count.Load() == 0 || r.Received.Sub(clock.sent) > cacheFor {
		return Decision{}, false
	}
	var room [2]*cachedCounter
	memos := room[:0]
	refused := false
	latest := clock.latest(r.Received)
	for i := range r.Limits {
		m := x.lookup(&r.Limits[i])
		if m == nil || r.Limits[i].Shadow {
			return Decision{}, false
		}
		memos = append(memos, m)
		// A denial must not outlast its time, so it has to hold at the latest the store's clock may say. Where
		// something remains, another worker may have charged it since, and the answer would tell too much.
		refused = refused || latest < m.deniedUntil
	}
	if !refused {
		return Decision{}, false
	}
	// Worded as of the earliest that the store's clock may say, so that retryAfter is not early.
	now := clock.earliest(r.Received)
	decision := Decision{Results: r.makeResults()}
	if len(memos) == 1 && memos[0].used == r.Limits[0].capacity() {
		memos[0].fillDenial(r, now, &decision.Results[0])
	} else if decision = decideCached(r, now, memos); decision.Allowed {
		return Decision{}, false // to allow is for the store
	}
	for i, m := range memos {
		if !decision.Results[i].Allowed && m.eventDue(now) {
			return Decision{}, false // its event is for the store
		}
	}
	for i, m := range memos {
		if !decision.Results[i].Allowed {
			d.add(m, &r.Limits[i], r.Cost, max(now, m.exceededAt+exceededInterval))
		}
	}
	return decision, true
}

// eventDue tells whether a denial at now is the first for so long that its event is due at once.
func (m *cachedCounter) eventDue(now int64) bool {
	return m.counted.Load() == nil && exceededDue(m.exceededAt, now)
}

// fillDenial words the denial of a counter of which all is used, and still is.
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

// decideCached words any other denial.
func decideCached(r *Request, now int64, memos []*cachedCounter) Decision {
	var room [2]State
	states := room[:0]
	var pointers [2]*State
	refs := pointers[:0]
	for _, m := range memos {
		states = append(states, m.state)
	}
	for i := range states {
		refs = append(refs, &states[i])
	}
	asked := Request{Verb: Check, Limits: r.Limits, Cost: r.Cost}
	return asked.decide(refs, now)
}

func (x *denialCache) invalidate(f Forget) {
	for i := range x.shards {
		if f.Key != "" && i != x.shard(CounterID{Key: f.Key}) {
			continue
		}
		s := &x.shards[i]
		s.generation.Add(1)
		s.mu.Lock()
		for id := range s.entries {
			if f.names(id) {
				x.remove(s.entries, id)
			}
		}
		s.mu.Unlock()
	}
}

// invalidateOthers forgets what others changed, as the store tells before it asks for a decision.
func (x *denialCache) invalidateOthers(o *Others) {
	switch {
	case o.All:
		x.invalidate(Forget{All: true})
	case len(o.IDs) > 0:
		for _, id := range o.IDs {
			s := &x.shards[x.shard(id)]
			s.generation.Add(1)
			s.mu.Lock()
			x.remove(s.entries, id)
			s.mu.Unlock()
		}
	}
}

// remove forgets a counter of a shard, which is locked.
func (x *denialCache) remove(entries map[CounterID]*cachedCounter, id CounterID) bool {
	m, was := entries[id]
	for ; m != nil; m = m.otherDefinition {
		m.stale.Store(true)
		x.count.Add(-1)
	}
	delete(entries, id)
	return was
}
