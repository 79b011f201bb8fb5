package engine

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// rememberFor bounds how long a denial is answered from memory.
	rememberFor = time.Second
	// lookAfter is when a counter that is still asked for is read again, so that nobody has to wait for that at the end.
	lookAfter = 600 * time.Millisecond
	// lookEvery is how often the counters to be read again are gathered: they share transactions.
	lookEvery = 100 * time.Millisecond
	// rememberMost bounds the remembered counters; beyond it all of a shard are forgotten, which costs a look at
	// the store and nothing else.
	rememberMost = 65536
	memoryShards = 16
)

// exhausted remembers counters of which nothing remains, so that they deny again without the store. Such a counter
// only becomes freer by time, which the remembered state knows, or by a refund or reset, which is broadcast; so what
// it denies is right. Of a request with several limits the others are remembered too, for the answer's sake: what
// they are said to have left may be a second old.
type exhausted struct {
	seed   maphash.Seed
	shards [memoryShards]struct {
		mu    sync.RWMutex
		known map[CounterID]*memo
	}
	// generation counts the calls of forget. What was read before one must not be remembered after it.
	generation atomic.Uint64

	// ageing are limits whose counters are to be read again.
	ageingMu sync.Mutex
	ageing   []*Limit
}

// memo is the state of a counter at a reading of the store's clock. It is never changed, apart from told and looked.
type memo struct {
	limit Limit
	state State
	clock reading
	// used is what was used; until is when anything fits again, 0 when something did.
	used, until int64
	// told is where the denials of the counter were counted last.
	told atomic.Pointer[untold]
	// looked says that the counter is to be read again.
	looked atomic.Bool
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

// remember keeps the counter's state as the transaction left it, unless something was forgotten since the
// generation in which it was read.
func (x *exhausted) remember(c *counter, clock reading, generation uint64) {
	m := &memo{limit: *c.limit, state: c.state, clock: clock, used: c.state.counting().used()}
	m.state.sliding.buckets = slices.Clone(c.state.sliding.buckets)
	if m.state.remaining(c.limit) == 0 {
		m.until = m.state.counting().fitsAt(c.limit.capacity(), 1)
	}
	s := &x.shards[x.shard(c.limit.CounterID)]
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.generation.Load() != generation {
		return
	}
	if len(s.known) >= rememberMost/memoryShards {
		clear(s.known)
	}
	s.known[c.limit.CounterID] = m
}

func (x *exhausted) recall(l *Limit, now time.Time) *memo {
	s := &x.shards[x.shard(l.CounterID)]
	s.mu.RLock()
	m := s.known[l.CounterID]
	s.mu.RUnlock()
	if m == nil || now.Sub(m.clock.sent) > rememberFor || !m.limit.same(l) {
		return nil
	}
	return m
}

// deny answers a request that at least one remembered counter denies, if all of its counters are remembered and none of
// its limits is in shadow.
func (x *exhausted) deny(r *Request, d *denials) (Decision, bool) {
	var room [2]*memo
	memos := room[:0]
	refused := false
	for i := range r.Limits {
		m := x.recall(&r.Limits[i], r.received)
		if m == nil || r.Limits[i].Shadow {
			return Decision{}, false
		}
		memos = append(memos, m)
		// A denial must not outlast its time, so it has to hold at the latest the store's clock may say. Where
		// something remains, another worker may have charged it since, and the answer would tell too much.
		refused = refused || m.clock.latest(r.received) < m.until
	}
	if !refused {
		return Decision{}, false
	}
	decision := Decision{Results: r.results()}
	if len(memos) == 1 && memos[0].used == r.Limits[0].capacity() {
		memos[0].describe(r, &decision.Results[0])
	} else if decision = x.describe(r, memos); decision.Allowed {
		// Where the store's clock was set between the readings there may be no moment that they agree on.
		return Decision{}, false
	}
	now := memos[0].clock.earliest(r.received)
	for i, m := range memos {
		if !decision.Results[i].Allowed {
			d.add(m, &r.Limits[i], now+exceededEvery)
			x.age(m, r.received)
		}
	}
	return decision, true
}

// age has a counter read again before it is forgotten.
func (x *exhausted) age(m *memo, now time.Time) {
	if now.Sub(m.clock.sent) < lookAfter || m.looked.Swap(true) {
		return
	}
	x.ageingMu.Lock()
	defer x.ageingMu.Unlock()
	x.ageing = append(x.ageing, &m.limit) // no more than are remembered
}

// looks gives requests that read again what ages.
func (x *exhausted) looks() (rs []*Request) {
	x.ageingMu.Lock()
	defer x.ageingMu.Unlock()
	for _, l := range x.ageing {
		rs = appendLimit(rs, look, l)
	}
	clear(x.ageing)
	x.ageing = x.ageing[:0]
	return rs
}

// lookLoop reads counters again that go on denying: then their requests need not wait for the store each second.
func (e *Engine) lookLoop() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.stopTell:
			return
		case <-tick.C:
		}
		for _, r := range e.exhausted.looks() {
			if e.Submit(r) != nil {
				break // the queue is full: who asks next waits for the store
			}
		}
	}
}

// describe words the denial of a counter of which all is used, and still is.
func (m *memo) describe(r *Request, result *Result) {
	l, now := &r.Limits[0], m.clock.earliest(r.received)
	*result = Result{
		Key: l.Key, Name: l.Label(), Policy: l.Policy, Window: l.Window.text, Algorithm: l.Algorithm, Limit: l.Limit,
		Burst: l.Burst, Used: m.used, ResetAt: m.state.resetAt(now), RetryAfter: m.state.retryAfter(l, now, r.Cost),
		Message: l.Message,
	}
}

// describe words the denial as of the earliest that the store's clock may say, so that retryAfter is not early.
func (x *exhausted) describe(r *Request, memos []*memo) Decision {
	var room [2]State
	states := room[:0]
	var pointers [2]*State
	refs := pointers[:0]
	for _, m := range memos {
		states = append(states, m.state)
	}
	now := memos[0].clock.earliest(r.received)
	for i := range states {
		refs = append(refs, &states[i])
		now = max(now, memos[i].clock.earliest(r.received))
	}
	asked := Request{Verb: Check, Limits: r.Limits, Cost: r.Cost}
	return asked.decide(refs, now)
}

func (x *exhausted) forget(f Forget) {
	x.generation.Add(1)
	for i := range x.shards {
		if f.Key != "" && i != x.shard(CounterID{Key: f.Key}) {
			continue
		}
		s := &x.shards[i]
		s.mu.Lock()
		for id := range s.known {
			if f.names(id) {
				delete(s.known, id)
			}
		}
		s.mu.Unlock()
	}
}
