package engine

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// rememberFor bounds how long after the last transaction a denial is answered from memory.
	rememberFor = time.Second
	// lookAfter is when a transaction is run that nobody asked for, so that no denial has to wait for one at the end.
	lookAfter = 600 * time.Millisecond
	// rememberMost bounds the remembered counters; beyond it all of a shard are forgotten, which costs a look at
	// the store and nothing else.
	rememberMost = 65536
	memoryShards = 16
)

// exhausted remembers counters of which nothing remains, so that they deny again without the store. Such a counter
// only becomes freer by time, which the remembered state knows, or by a refund or reset, which is broadcast. A
// broadcast may get lost, so what is remembered holds for a second: but each transaction that succeeds proves all of it
// again, apart from what the store says that others changed. Of a request with several limits the others are remembered
// too, for the answer's sake: what they are said to have left may be a second old.
type exhausted struct {
	seed   maphash.Seed
	shards [memoryShards]struct {
		mu    sync.RWMutex
		known map[CounterID]*memo
		// generation counts what was forgotten of the shard. What was read before that must not be remembered after it.
		generation atomic.Uint64
	}
	// count is how many counters are remembered, so that a worker that denies nothing pays nothing for them.
	count atomic.Int64
}

// generations are those of all shards.
type generations [memoryShards]uint64

func (x *exhausted) generations() (all generations) {
	for i := range x.shards {
		all[i] = x.shards[i].generation.Load()
	}
	return all
}

// memo is the state of a counter as a transaction left it. It is never changed, apart from told, gone and what own counts.
// What every denial needs comes first, close together.
type memo struct {
	// used is what was used; until is when anything fits again, 0 when something did; freeAt is when all of the limit is
	// free again.
	used, until, freeAt int64
	// exceededAt is when the last exceeded event of the counter was raised, 0 for never.
	exceededAt int64
	// told is where the denials of the counter were counted last; mostly in own.
	told atomic.Pointer[untold]
	// gone says that it was forgotten or replaced.
	gone  atomic.Bool
	own   untold
	state State
	// other is the same counter under another definition, nil for none; its shard guards it.
	other *memo
}

// newMemo copies a counter's state under a limit, to which it was advanced.
func newMemo(l *Limit, s *State) *memo {
	m := &memo{own: untold{limit: *l}, state: s.clone(), exceededAt: s.exceededAt, used: s.counting().used(), freeAt: s.counting().freeAt()}
	if m.state.remaining(l) == 0 {
		m.until = m.state.counting().fitsAt(l.capacity(), 1)
	}
	return m
}

func (x *exhausted) init() {
	x.seed = maphash.MakeSeed()
	for i := range x.shards {
		x.shards[i].known = make(map[CounterID]*memo)
	}
}

func (x *exhausted) shard(id CounterID) int {
	return int(maphash.String(x.seed, id.Key) % memoryShards)
}

// committed brings memory to what a batch left.
func (x *exhausted) committed(b *batch) {
	for i := range b.counters {
		c := &b.counters[i]
		switch {
		case c.denied && !c.refunded && !c.freed:
			x.remember(newMemo(c.limit, &c.state), c.dirty, &b.generations)
		case c.dirty && x.count.Load() > 0:
			x.renew(c, &b.generations)
		}
		if c.other != nil && !c.dirty && !c.void {
			c.other.exceededAt = c.state.exceededAt
			x.remember(c.other, false, &b.generations)
		}
	}
}

// remember keeps a counter as a transaction left it, unless something of its shard was forgotten since the generation in which it
// was read. What is known of it under another definition stays, but for a counter that was changed.
func (x *exhausted) remember(m *memo, changed bool, read *generations) {
	id := m.own.limit.CounterID
	shard := x.shard(id)
	s := &x.shards[shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation.Load() != read[shard] {
		return
	}
	if len(s.known) >= rememberMost/memoryShards {
		for id := range s.known {
			x.drop(s.known, id)
		}
	}
	for old := s.known[id]; old != nil; old = old.other {
		if !changed && m.other == nil && !old.own.limit.same(&m.own.limit) {
			m.other = old
			continue
		}
		old.gone.Store(true)
		x.count.Add(-1)
	}
	if m.other != nil {
		m.other.other = nil
	}
	x.count.Add(1)
	s.known[id] = m
}

// renew replaces what is remembered of a counter that was changed, or forgets it where something remains.
func (x *exhausted) renew(c *counter, read *generations) {
	id := c.limit.CounterID
	s := &x.shards[x.shard(id)]
	s.mu.Lock()
	known := x.drop(s.known, id)
	s.mu.Unlock()
	if known && c.state.spec == c.limit.hash() && c.state.remaining(c.limit) == 0 {
		x.remember(newMemo(c.limit, &c.state), true, read)
	}
}

func (x *exhausted) recall(l *Limit) *memo {
	if l.Ref != nil {
		if m := l.Ref.memo.Load(); m != nil && !m.gone.Load() {
			return m
		}
	}
	s := &x.shards[x.shard(l.CounterID)]
	s.mu.RLock()
	m := s.known[l.CounterID]
	for m != nil && !m.own.limit.same(l) {
		m = m.other
	}
	s.mu.RUnlock()
	if m == nil {
		return nil
	}
	if l.Ref != nil {
		l.Ref.memo.Store(m)
	}
	return m
}

// deny answers a request that at least one remembered counter denies, if all of its counters are remembered, none of
// its limits is in shadow, and the last transaction, at clock, is not too long ago.
func (x *exhausted) deny(r *Request, clock *reading, d *denials) (Decision, bool) {
	if x.count.Load() == 0 || r.Received.Sub(clock.sent) > rememberFor {
		return Decision{}, false
	}
	var room [2]*memo
	memos := room[:0]
	refused := false
	latest := clock.latest(r.Received)
	for i := range r.Limits {
		m := x.recall(&r.Limits[i])
		if m == nil || r.Limits[i].Shadow {
			return Decision{}, false
		}
		memos = append(memos, m)
		// A denial must not outlast its time, so it has to hold at the latest the store's clock may say. Where
		// something remains, another worker may have charged it since, and the answer would tell too much.
		refused = refused || latest < m.until
	}
	if !refused {
		return Decision{}, false
	}
	// Worded as of the earliest that the store's clock may say, so that retryAfter is not early.
	now := clock.earliest(r.Received)
	decision := Decision{Results: r.results()}
	if len(memos) == 1 && memos[0].used == r.Limits[0].capacity() {
		memos[0].describe(r, now, &decision.Results[0])
	} else if decision = describeAll(r, now, memos); decision.Allowed {
		return Decision{}, false // to allow is for the store
	}
	for i, m := range memos {
		if !decision.Results[i].Allowed && m.first(now) {
			return Decision{}, false // its event is for the store
		}
	}
	for i, m := range memos {
		if !decision.Results[i].Allowed {
			d.add(m, &r.Limits[i], r.Cost, max(now, m.exceededAt+exceededEvery))
		}
	}
	return decision, true
}

// first tells whether a denial at now is the first for so long that its event is due at once.
func (m *memo) first(now int64) bool {
	return m.told.Load() == nil && exceededDue(m.exceededAt, now)
}

// describe words the denial of a counter of which all is used, and still is.
func (m *memo) describe(r *Request, now int64, result *Result) {
	l := &r.Limits[0]
	*result = Result{
		Key: l.Key, Name: l.Label(), Policy: l.Policy, Window: l.Window.text, Algorithm: l.Algorithm, Limit: l.Limit,
		FirstUse: l.FirstUse, Burst: l.Burst, Used: m.used, ResetAt: min(m.freeAt, farFuture), Message: l.Message,
	}
	if result.RetryAfter = max(1, min(m.until, farFuture)-now); r.Cost > 1 {
		result.RetryAfter = m.state.retryAfter(l, now, r.Cost)
	}
}

// describeAll words any other denial.
func describeAll(r *Request, now int64, memos []*memo) Decision {
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

func (x *exhausted) forget(f Forget) {
	for i := range x.shards {
		if f.Key != "" && i != x.shard(CounterID{Key: f.Key}) {
			continue
		}
		s := &x.shards[i]
		s.generation.Add(1)
		s.mu.Lock()
		for id := range s.known {
			if f.names(id) {
				x.drop(s.known, id)
			}
		}
		s.mu.Unlock()
	}
}

// forgetOthers forgets what others changed, as the store tells before it asks for a decision.
func (x *exhausted) forgetOthers(o *Others) {
	switch {
	case o.All:
		x.forget(Forget{All: true})
	case len(o.IDs) > 0:
		for _, id := range o.IDs {
			s := &x.shards[x.shard(id)]
			s.generation.Add(1)
			s.mu.Lock()
			x.drop(s.known, id)
			s.mu.Unlock()
		}
	}
}

// drop forgets a counter of a shard, which is locked.
func (x *exhausted) drop(known map[CounterID]*memo, id CounterID) bool {
	m, was := known[id]
	for ; m != nil; m = m.other {
		m.gone.Store(true)
		x.count.Add(-1)
	}
	delete(known, id)
	return was
}
