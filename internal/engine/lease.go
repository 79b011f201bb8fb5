package engine

import (
	"hash/maphash"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxLeases bounds the counters whose demand is known; further ones are decided by the store until some go.
	maxLeases = 65536
	// demandSpan is the time that recent demand is counted over, in milliseconds.
	demandSpan = 250
	// sweepEvery is how often leases are looked at that ended.
	sweepEvery = 100 * time.Millisecond
	// idleSweeps is how many looks without demand make a counter's demand forgotten.
	idleSweeps = 20
)

// leases are what this worker charged ahead and may serve from memory, and the demand that it saw.
type leases struct {
	seed   maphash.Seed
	shards [shardCount]leaseShard
	// count is how many counters are known, so that a worker without leases pays nothing for them.
	count atomic.Int64
	// spent are leases that had too little left for one more request like the last; taken are those that were taken out
	// to be renewed.
	spentMu      sync.Mutex
	spent, taken []*lease
}

type leaseShard struct {
	mu      sync.Mutex
	entries map[CounterID]*lease
}

// lease is what this worker holds of one counter.
type lease struct {
	// limit ends with its Ref, by which a request finds it. From there up to idle stands what serving one looks at, in three lines of
	// the processor's cache.
	limit Limit
	// shard is the shard that guards it.
	shard *leaseShard
	// tokens are left of the grant. They may be served while the store's clock does not pass until.
	tokens int64
	grant
	// ended forbids to serve, and ends counts how often that was said; returning says that the tokens are on their way back;
	// spent that it is among those of leases; gone that it is no longer known.
	ended, returning, spent, gone bool
	// line2 and third are never written: to load them loads their lines.
	line2 atomic.Uint32
	// clock is that of the transaction that charged the grant.
	clock *clockReading
	// used and resetAt are those of the counter when nothing of the lease is left; a token bucket refills meanwhile.
	used, resetAt int64
	demand        demand
	// idle counts the sweeps since the last request.
	idle     int32
	line3    atomic.Uint32
	endCount uint64
	// spec and begun are the state's spec and since.
	spec       uint64
	stateSince int64
	bucket     tokenBucket
}

// grant is what a transaction charged ahead: so much, at a moment, to be served until another; since is the counter's.
type grant struct{ amount, at, until, since int64 }

// batchLease is a counter's lease while a transaction has it: the worker serves nothing from it meanwhile.
type batchLease struct {
	// asked is the cost of the requests that may have a lease; wanted says that there are any, or that one is to be renewed.
	asked  int64
	wanted bool
	// ref is that of a limit that names the counter; nil where none has one.
	ref *Ref
	// lease is nil when the counter has none and wants none. What it held is in grant and unused.
	lease    *lease
	grant    grant
	unused   int64
	endCount uint64
	// demand is how much the next lease may be.
	demand int64
	// newGrant is what the transaction charged ahead.
	newGrant grant
}

// demand counts the cost asked for in the present span and in the ones before it, the last first.
type demand struct {
	span, current int64
	previous      [4]int64
}

func (d *demand) add(now, cost int64) {
	d.advance(now)
	d.current = min(d.current+cost, MaxAmount)
}

// subtract takes back what was added just now.
func (d *demand) subtract(cost int64) { d.current = max(0, d.current-cost) }

func (d *demand) advance(now int64) {
	span := floorDiv(now, demandSpan)
	// One span back is two readings of one clock; more, a clock that was set back, beside which the rest would add up.
	if span-d.span > int64(len(d.previous)) || d.span-span > 1 {
		*d = demand{span: span}
	}
	for ; d.span < span; d.span++ {
		copy(d.previous[1:], d.previous[:])
		d.previous[0], d.current = d.current, 0
	}
}

// recent is the cost asked for in the last demandSpan, or on average in the last four, if that is more: of what is asked
// for seldom, the last has none too often. The part of a span that begins before counts as if its requests had come evenly.
func (d *demand) recent(now int64) int64 {
	d.advance(now)
	left := demandSpan - min(max(0, now-d.span*demandSpan), demandSpan)
	part := func(of int64) int64 { return (of*left + demandSpan/2) / demandSpan }
	last := d.current + part(d.previous[0])
	four := d.current + d.previous[0] + d.previous[1] + d.previous[2] + part(d.previous[3])
	return max(last, (four+2)/4)
}

func (x *leases) init() {
	x.seed = maphash.MakeSeed()
	for i := range x.shards {
		x.shards[i].entries = make(map[CounterID]*lease)
	}
}

func (x *leases) shardIndex(id CounterID) int {
	return int(maphash.String(x.seed, id.Key) % shardCount)
}

func (x *leases) shard(id CounterID) *leaseShard { return &x.shards[x.shardIndex(id)] }

// serve answers a request from leases, if each of its limits has one with enough left at now; clock is what the last
// transaction read.
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

// serveAll serves several limits or none. It holds the shards of all meanwhile: a transaction that took the first lease would leave
// charged what the second cannot serve. They are locked in one order, and who locks one alone waits for no other.
func (x *leases) serveAll(r *Request, now time.Time, clock *clockReading, results []Result) bool {
	var homes uint
	for i := range r.Limits {
		homes |= 1 << x.shardIndex(r.Limits[i].CounterID)
	}
	for left := homes; left > 0; left &= left - 1 {
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
	for left := homes; left > 0; left &= left - 1 {
		x.shards[bits.TrailingZeros(left)].mu.Unlock()
	}
	return served == len(r.Limits)
}

// lookup gives the lease of a limit's counter, nil for none, whose shard is locked.
func (x *leases) lookup(l *Limit) *lease { return x.shard(l.CounterID).entries[l.CounterID] }

// leasable tells whether leases can serve a consume or check like it.
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

// lockAndFind gives the lease of a counter, nil for none, and its shard, locked. ref is of a limit of it, or nil.
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

// covers tells whether it was lent under the definition of a limit of its counter, and crosses no threshold of that.
func (e *lease) covers(l *Limit) bool {
	return l.Ref != nil && l.Ref == e.limit.Ref || e.limit.sameDefinition(l) && l.Threshold <= e.limit.Threshold
}

// expired tells whether the time of the lease is over. The store's clock may have been set forward since the lease began: then
// a later reading, clock, knows.
func (e *lease) expired(now time.Time, clock *clockReading) bool {
	return e.clock.latest(now) > e.until || clock.earliest(now) > e.until
}

// serveOne takes the cost from the lease of the i-th limit, nil for none, whose shard is locked.
func (x *leases) serveOne(e *lease, r *Request, i int, now time.Time, clock *clockReading, result *Result) bool {
	l := &r.Limits[i]
	if e == nil || e.ended || e.amount == 0 || e.tokens < r.Cost || e.expired(now, clock) || !e.covers(l) {
		return false
	}
	if r.Verb == Consume {
		e.tokens -= r.Cost
		e.demand.add(e.clock.earliest(now), r.Cost)
		if e.tokens < r.Cost && !e.spent {
			e.spent = true
			x.noteSpent(e)
		}
	}
	e.idle = 0
	e.fill(l, now, result)
	return true
}

func (x *leases) noteSpent(e *lease) {
	x.spentMu.Lock()
	defer x.spentMu.Unlock()
	x.spent = append(x.spent, e)
}

// addRenewals has a batch that is to be written anyway renew leases that are spent, at most so many: the next request for such a
// counter need not wait for a transaction then. Only who writes may call it.
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

// takeSpent gives some of the leases that are spent; they are valid until the next call.
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

// clearSpent says that a lease is no longer among those that are spent, and tells whether it still is one to renew.
func (e *lease) clearSpent() bool {
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	e.spent = false
	return e.amount > 0 && !e.ended && !e.returning
}

// fill describes the counter, with what is left of the lease as free.
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

// takeForBatch ends the leases of a batch's counters, which are settled in its transaction, and notes what is asked.
func (x *leases) takeForBatch(b *batch, now int64) {
	for slot := range b.leases {
		h := &b.leases[slot]
		if !h.wanted && x.count.Load() == 0 {
			continue
		}
		s, e := x.lockAndFind(h.ref, b.ids[slot])
		if e == nil && h.asked > 0 {
			e = x.add(s, b.ids[slot])
		}
		if e != nil {
			h.lease, h.grant, h.unused, h.endCount = e, e.grant, e.tokens, e.endCount
			// What is asked now is of the recent demand, too. But a counter that was asked for once is not worth a lease.
			if h.demand = e.demand.recent(now); h.demand > 0 {
				h.demand += h.asked
			}
			e.demand.add(now, h.asked)
			e.grant, e.tokens, e.returning, e.idle = grant{}, 0, false, 0
		}
		s.mu.Unlock()
	}
}

// add begins to know a counter of a shard that is locked, if there is room.
func (x *leases) add(s *leaseShard, id CounterID) *lease {
	if len(s.entries) >= maxLeases/shardCount {
		return nil
	}
	e := &lease{shard: s}
	s.entries[id] = e
	x.count.Add(1)
	return e
}

// restore gives the leases of a batch back that was not written.
func (x *leases) restore(b *batch) {
	for slot := range b.leases {
		if h := &b.leases[slot]; h.lease != nil {
			s := h.lease.shard
			s.mu.Lock()
			h.lease.demand.subtract(h.asked) // take counts it anew
			if h.grant.amount > 0 {
				h.lease.grant, h.lease.tokens = h.grant, h.unused
			}
			s.mu.Unlock()
		}
	}
}

// install begins the leases that a batch's transaction charged.
func (x *leases) install(b *batch) {
	for slot := range b.leases {
		if h := &b.leases[slot]; h.newGrant.amount > 0 {
			s := h.lease.shard
			s.mu.Lock()
			h.lease.start(&b.counters[slot], h, b.clock)
			s.mu.Unlock()
		}
	}
}

// start makes it the lease that was charged. One that was to end meanwhile only has its tokens to give back.
func (e *lease) start(c *counter, h *batchLease, clock *clockReading) {
	e.spec, e.stateSince = c.state.spec, c.state.since
	e.limit, e.grant, e.tokens, e.clock = *c.limit, h.newGrant, h.newGrant.amount, clock
	e.used, e.resetAt, e.bucket = c.state.counting().used(), c.state.resetAt(clock.now), c.state.bucket
	e.ended = e.endCount != h.endCount
}

// endFor ends the leases of counters; what is left of them goes back with the next sweep.
func (x *leases) endFor(f Forget) {
	for i := range x.shards {
		s := &x.shards[i]
		if f.Key != "" && s != x.shard(CounterID{Key: f.Key}) {
			continue
		}
		s.mu.Lock()
		for id, e := range s.entries {
			if f.names(id) {
				e.ended = true
				e.endCount++
			}
		}
		s.mu.Unlock()
	}
}

// names tells whether the counter is one of those to forget.
func (f *Forget) names(id CounterID) bool {
	return f.All || f.Key != "" && id.Key == f.Key || f.Prefix != "" && strings.HasPrefix(id.Key, f.Prefix)
}

// takeExpired gives requests that settle the leases whose time is over at now, or all, served to the end or not, and forgets
// counters that nobody asks for. With all, nothing is on its way any more.
func (x *leases) takeExpired(now time.Time, clock *clockReading, all bool) (rs []*Request) {
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.Lock()
		for id, e := range s.entries {
			e.idle++
			switch {
			case e.amount == 0 && e.idle > idleSweeps:
				e.gone = true
				delete(s.entries, id)
				x.count.Add(-1)
			case e.amount > 0 && e.clock.latest(now) > e.until+leaseGrace:
				e.grant, e.tokens = grant{}, 0 // too late to give it back
			case e.amount > 0 && (all || !e.returning && (e.ended || e.expired(now, clock))):
				e.returning = true
				rs = appendLimit(rs, returnLeases, &e.limit)
			}
		}
		s.mu.Unlock()
	}
	return rs
}

// returnFailed says that the requests of over were not taken.
func (x *leases) returnFailed(r *Request) {
	for i := range r.Limits {
		id := r.Limits[i].CounterID
		s := x.shard(id)
		s.mu.Lock()
		if e := s.entries[id]; e != nil {
			e.returning = false
		}
		s.mu.Unlock()
	}
}

// Leased is the cost that leases of this worker may still serve.
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

// appendLimit adds a limit to the last of the engine's own requests, or to one more.
func appendLimit(rs []*Request, v Verb, l *Limit) []*Request {
	if n := len(rs); n == 0 || len(rs[n-1].Limits) >= 64 {
		rs = append(rs, &Request{Verb: v})
	}
	last := rs[len(rs)-1]
	last.Limits = append(last.Limits, *l)
	return rs
}

// leaseLoop gives back what is left of leases that ended. It is the pulse, too, and watches the transaction that runs.
func (e *Engine) leaseLoop() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	defer e.heartbeat.stop()
	for {
		select {
		case <-e.quit:
			return
		case <-tick.C:
		}
		e.heartbeat.beat()
		e.checkHung()
		if e.leases.count.Load() == 0 {
			continue
		}
		for _, r := range e.leases.takeExpired(time.Now(), e.clock.Load(), false) {
			if e.Submit(r) != nil {
				e.leases.returnFailed(r) // the queue is full: the next sweep asks again
			}
		}
	}
}

// returnLeases gives all leases back, when the worker goes.
func (e *Engine) returnLeases() {
	for _, r := range e.leases.takeExpired(time.Now(), e.clock.Load(), true) {
		b := e.newBatch()
		b.began = time.Now()
		b.add(r)
		e.commit(b)
	}
}
