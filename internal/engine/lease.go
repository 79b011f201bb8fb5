package engine

import (
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxLeases bounds the counters whose demand is tracked. Further ones are decided by the store.
	maxLeases = 65536
	// spentPart is the part of a lease, besides the cost of a request like the last, below which it is renewed with the next
	// transaction. The more is left, the fewer requests come too early for that, and have a transaction of their own; but the
	// more often it is renewed.
	spentPart = 3
)

// leases are what this worker charged ahead and may serve from memory, and the demand for each counter.
type leases struct {
	sharding
	shards [shardCount]leaseShard
	// count is how many counters are tracked; when it is 0 requests need not look.
	count atomic.Int64
	// spent are leases of which little is left. taken is the result of takeSpent, reused.
	spentMu      sync.Mutex
	spent, taken []*lease
	began        time.Time
}

type leaseShard struct {
	mu      sync.Mutex
	entries map[CounterID]*lease
	names   nameCounts
	// tracked has all entries, and when to look at each, so that a sweep need not read the others' memory.
	tracked []tracked
}

// lease is this worker's lease of one counter, and the demand for it.
type lease struct {
	// limit ends with its Ref, by which a request finds the lease. The fields from there to demand
	// are those that serve reads; they share three cache lines.
	limit Limit
	// shard is the shard that guards it.
	shard *leaseShard
	// tokens are left of the grant. They may be served until the store's clock passes until.
	tokens int64
	grant
	// ended forbids serving; endCount counts how often it was set. queued says that a request to settle
	// it is queued, spent that the lease is in leases.spent, and gone that it is no longer tracked.
	ended, queued, spent, gone bool
	// line2 and line3 are never written. Prefetch reads them to load their cache lines.
	line2 atomic.Uint32
	// clock is the reading of the transaction that charged the grant.
	clock *clockReading
	// used and resetAt are the counter's when all of the lease is used. A token bucket refills
	// meanwhile, see bucket.
	used, resetAt int64
	demand        demand
	line3         atomic.Uint32
	endCount      uint64
	index         int // in tracked
	// spec and stateSince are spec and since of the state.
	spec       uint64
	stateSince int64
	bucket     tokenBucket
}

// grant is an amount that was charged ahead at a moment (at), and may be served until another.
// since is the beginning of its generation, see lent.
type grant struct{ amount, at, until, since int64 }

// batchLease is a counter's lease while a transaction has it. The worker serves nothing from it
// meanwhile.
type batchLease struct {
	// asked is the cost of the batch's requests that may be leased. wanted says that there are any,
	// or that the lease is to be renewed.
	asked  int64
	wanted bool
	// ref is that of some limit with this counter; nil if none has one.
	ref *Ref
	// lease is nil if the counter is not tracked. grant and unused are what it held.
	lease    *lease
	grant    grant
	unused   int64
	endCount uint64
	// demand bounds the amount of the next lease; 0 if lease is nil.
	demand int64
	// newGrant is what the transaction charged ahead.
	newGrant grant
}

func (x *leases) init() {
	x.sharding, x.began = sharding{maphash.MakeSeed()}, time.Now()
	for i := range x.shards {
		x.shards[i].entries, x.shards[i].names = make(map[CounterID]*lease), make(nameCounts)
	}
}

func (x *leases) shard(id CounterID) *leaseShard { return &x.shards[x.shardIndex(id)] }

// serve answers a request from leases if each of its limits has one with enough left at now. clock
// is the reading of the last transaction.
func (x *leases) serve(r *Request, now time.Time, clock *clockReading) (Decision, bool) {
	if x.count.Load() == 0 || r.Verb > Check || !r.leasable() {
		return Decision{}, false
	}
	results := r.makeResults()
	served := false
	if len(r.Limits) == 1 {
		s, e := x.lockAndFind(r.Limits[0].Ref, r.Limits[0].CounterID)
		served = x.serveOne(e, r, 0, now, clock, &results[0])
		s.mu.Unlock()
	} else {
		served = x.serveAll(r, now, clock, results)
	}
	return Decision{Allowed: true, Results: results}, served
}

// serveAll serves several limits or none. It holds the locks of all shards together: otherwise a
// transaction could take the first lease, and what was served from it would stay charged though the
// second lease fails. The locks are taken in one order, and no other code holds two.
func (x *leases) serveAll(r *Request, now time.Time, clock *clockReading, results []Result) bool {
	var shards uint // a bit for each
	for i := range r.Limits {
		shards |= 1 << x.shardIndex(r.Limits[i].CounterID)
	}
	for left := shards; left > 0; left &= left - 1 {
		x.shards[bits.TrailingZeros(left)].mu.Lock()
	}
	served := 0
	for served < len(r.Limits) && x.serveOne(x.lookup(&r.Limits[served]), r, served, now, clock, &results[served]) {
		served++
	}
	if served < len(r.Limits) && r.Verb == Consume {
		for i := range r.Limits[:served] {
			e := x.lookup(&r.Limits[i])
			e.tokens += r.Cost
			e.demand.subtract(r.Cost)
		}
	}
	for left := shards; left > 0; left &= left - 1 {
		x.shards[bits.TrailingZeros(left)].mu.Unlock()
	}
	return served == len(r.Limits)
}

// lookup returns the lease of the limit's counter, nil for none. Its shard must be locked.
func (x *leases) lookup(l *Limit) *lease { return x.shard(l.CounterID).entries[l.CounterID] }

// leasable reports whether leases can serve a consume or check with these limits.
func (r *Request) leasable() bool {
	if r.hasReceipt() {
		return false
	}
	for i := range r.Limits {
		if !r.Limits[i].Leased || r.Limits[i].Shadow {
			return false
		}
	}
	return true
}

// lockAndFind locks the counter's shard and returns it, and the lease, nil for none. ref is that of a
// limit with this counter, or nil.
func (x *leases) lockAndFind(ref *Ref, id CounterID) (*leaseShard, *lease) {
	if ref != nil {
		if e := ref.lease.Load(); e != nil {
			e.shard.mu.Lock()
			if !e.gone {
				return e.shard, e
			}
			e.shard.mu.Unlock()
			ref.lease.CompareAndSwap(e, nil)
		}
	}
	s := x.shard(id)
	s.mu.Lock()
	e := s.entries[id]
	if ref != nil && e != nil {
		ref.lease.Store(e)
	}
	return s, e
}

// covers reports whether the lease was granted under the definition of l, and serving it crosses no
// warning threshold of l.
func (e *lease) covers(l *Limit) bool {
	return l.Ref != nil && l.Ref == e.limit.Ref || e.limit.sameDefinition(l) && l.Threshold <= e.limit.Threshold
}

// expired reports whether the lease has ended. The store's clock may have been set forward since it
// began, which a later reading, clock, shows.
func (e *lease) expired(now time.Time, clock *clockReading) bool {
	return e.clock.latest(now) > e.until || clock.earliest(now) > e.until
}

// serveOne takes the cost of the i-th limit from its lease e, nil for none, whose shard must be locked.
func (x *leases) serveOne(e *lease, r *Request, i int, now time.Time, clock *clockReading, result *Result) bool {
	l := &r.Limits[i]
	if e == nil || e.ended || e.amount == 0 || e.tokens < r.Cost || e.expired(now, clock) || !e.covers(l) {
		return false
	}
	if r.Verb == Consume {
		e.tokens -= r.Cost
		e.demand.add(e.clock.earliest(now), r.Cost)
		if e.tokens < r.Cost+e.amount/spentPart && !e.spent {
			e.spent = true
			x.noteSpent(e)
		}
	}
	e.fill(l, now, result)
	return true
}

func (x *leases) noteSpent(e *lease) {
	x.spentMu.Lock()
	defer x.spentMu.Unlock()
	x.spent = append(x.spent, e)
}

// addRenewals has a batch, which is written anyway, renew up to most spent leases, so that the next
// request for such a counter need not wait for a transaction. Only the writer may call it.
func (x *leases) addRenewals(b *batch, most int) {
	if x.count.Load() == 0 {
		return
	}
	r := &b.renewal
	*r = Request{Verb: renewLeases, Limits: r.Limits[:0]}
	for _, e := range x.takeSpent(most) {
		if e.clearSpent() {
			r.Limits = append(r.Limits, e.limit)
		}
	}
	if len(r.Limits) > 0 {
		b.add(r)
	}
}

// takeSpent takes up to most of the spent leases; the result is valid until the next call.
func (x *leases) takeSpent(most int) []*lease {
	x.spentMu.Lock()
	defer x.spentMu.Unlock()
	left := max(0, len(x.spent)-most)
	clear(x.taken)
	x.taken = append(x.taken[:0], x.spent[left:]...)
	clear(x.spent[left:])
	x.spent = x.spent[:left]
	return x.taken
}

// clearSpent notes that the lease was taken from leases.spent, and reports whether it should be
// renewed.
func (e *lease) clearSpent() bool {
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	e.spent = false
	return e.amount > 0 && !e.ended && !e.queued
}

// fill describes the counter as if what is left of the lease were free.
func (e *lease) fill(l *Limit, now time.Time, r *Result) {
	*r = Result{
		Key: l.Key, Name: l.Label(), Policy: l.Policy, Window: l.Window.text, Algorithm: l.Algorithm, Limit: l.Limit,
		FirstUse: l.FirstUse, Burst: l.Burst, Allowed: true, ResetAt: e.resetAt, Used: e.used - e.tokens,
	}
	if l.Algorithm == TokenBucket {
		b, at := e.bucket, e.clock.earliest(now)
		b.refill(at)
		b.refund(e.tokens)
		r.Used, r.ResetAt = b.used(), min(max(at, b.freeAt()), farFuture)
	}
	r.Remaining = max(0, l.capacity()-r.Used)
}

// takeForBatch takes the leases of a batch's counters, which its transaction settles, and notes the
// demand.
func (x *leases) takeForBatch(b *batch, now int64) {
	idle := time.Since(x.began) + idleFor
	for slot := range b.leases {
		bl := &b.leases[slot]
		if !bl.wanted && x.count.Load() == 0 {
			continue
		}
		s, e := x.lockAndFind(bl.ref, b.ids[slot])
		if e == nil && bl.asked > 0 {
			e = x.add(s, b.ids[slot])
		}
		if e != nil {
			bl.lease, bl.grant, bl.unused, bl.endCount = e, e.grant, e.tokens, e.endCount
			// What is asked now counts too. But a counter that was asked for only once is not worth
			// a lease.
			if bl.demand = e.demand.recent(now); bl.demand > 0 {
				bl.demand += bl.asked
			}
			e.demand.add(now, bl.asked)
			e.grant, e.tokens, e.queued = grant{}, 0, false
			e.lookFrom(idle)
		}
		s.mu.Unlock()
	}
}

// add begins to track a counter, if there is room. Its shard must be locked.
func (x *leases) add(s *leaseShard, id CounterID) *lease {
	if len(s.entries) >= maxLeases/shardCount {
		return nil
	}
	e := &lease{shard: s, limit: Limit{CounterID: id}}
	x.track(e)
	return e
}

// restore gives a batch's leases back to the worker after its transaction failed.
func (x *leases) restore(b *batch) {
	for slot := range b.leases {
		if bl := &b.leases[slot]; bl.lease != nil {
			s := bl.lease.shard
			s.mu.Lock()
			bl.lease.demand.subtract(bl.asked) // takeForBatch will add it again
			if bl.grant.amount > 0 {
				bl.lease.grant, bl.lease.tokens = bl.grant, bl.unused
				x.watch(bl.lease)
			}
			s.mu.Unlock()
		}
	}
}

// install begins the leases that the transaction of a batch granted.
func (x *leases) install(b *batch) {
	for slot := range b.leases {
		if bl := &b.leases[slot]; bl.newGrant.amount > 0 {
			s := bl.lease.shard
			s.mu.Lock()
			bl.lease.start(&b.counters[slot], bl, b.clock)
			x.watch(bl.lease)
			s.mu.Unlock()
		}
	}
}

// start begins the lease that was granted. If it was ended during the transaction, its tokens can
// only be given back.
func (e *lease) start(c *counter, bl *batchLease, clock *clockReading) {
	e.spec, e.stateSince = c.state.spec, c.state.since
	e.limit, e.grant, e.tokens, e.clock = *c.limit, bl.newGrant, bl.newGrant.amount, clock
	e.used, e.resetAt, e.bucket = c.state.counting().used(), c.state.resetAt(clock.now), c.state.bucket
	e.bucket.notYet = 0
	e.ended = e.endCount != bl.endCount
}

// endFor ends the leases of counters; the next sweep gives back what is left of them.
func (x *leases) endFor(f Forget) {
	for i := range x.shards {
		s := &x.shards[i]
		if f.Key != "" && s != x.shard(CounterID{Key: f.Key}) {
			continue
		}
		s.mu.Lock()
		eachForgotten(f, s.entries, s.names, func(id CounterID) {
			if e := s.entries[id]; e != nil {
				e.end()
			}
		})
		s.mu.Unlock()
	}
}

// end ends the lease; its shard must be locked.
func (e *lease) end() {
	e.ended = true
	e.endCount++
	if e.amount > 0 {
		e.lookFrom(0)
	}
}

// Leased is the cost that this worker's leases may still serve.
func (e *Engine) Leased() (sum int64) {
	for i := range e.leases.shards {
		s := &e.leases.shards[i]
		s.mu.Lock()
		for _, l := range s.entries {
			sum += l.tokens
		}
		s.mu.Unlock()
	}
	return sum
}
