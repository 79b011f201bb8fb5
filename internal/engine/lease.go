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
	// leasesMost bounds the counters whose demand is known; further ones are decided by the store until some go.
	leasesMost = 65536
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
	shards [memoryShards]leaseShard
	// count is how many counters are known, so that a worker without leases pays nothing for them.
	count atomic.Int64
	// spent are leases that had too little left for one more request like the last; taken are those that were taken out
	// to be renewed.
	spentMu      sync.Mutex
	spent, taken []*lease
}

type leaseShard struct {
	mu    sync.Mutex
	known map[CounterID]*lease
}

// lease is what this worker holds of one counter.
type lease struct {
	// limit ends with its Ref, by which a request finds it. From there up to idle stands what serving one looks at, in three lines of
	// the processor's cache.
	limit Limit
	// home is the shard that guards it.
	home *leaseShard
	// tokens are left of the grant. They may be served while the store's clock does not pass until.
	tokens int64
	grant
	// ended forbids to serve, and ends counts how often that was said; returning says that the tokens are on their way back;
	// spent that it is among those of leases; gone that it is no longer known.
	ended, returning, spent, gone bool
	// second and third are never written: to load them loads their lines.
	second atomic.Uint32
	// clock is that of the transaction that charged the grant.
	clock *reading
	// used and resetAt are those of the counter when nothing of the lease is left; a token bucket refills meanwhile.
	used, resetAt int64
	demand        demand
	// idle counts the sweeps since the last request.
	idle  int32
	third atomic.Uint32
	ends  uint64
	// spec and begun are the state's spec and since.
	spec   uint64
	begun  int64
	bucket tokenBucket
}

// grant is what a transaction charged ahead: so much, at a moment, to be served until another; since is the counter's.
type grant struct{ amount, at, until, since int64 }

// hold is a counter's lease while a transaction has it: the worker serves nothing from it meanwhile.
type hold struct {
	// asked is the cost of the requests that may have a lease; wanted says that there are any, or that one is to be renewed.
	asked  int64
	wanted bool
	// ref is that of a limit that names the counter; nil where none has one.
	ref *Ref
	// lease is nil when the counter has none and wants none. What it held is in grant and unused.
	lease  *lease
	grant  grant
	unused int64
	ends   uint64
	// demand is how much the next lease may be.
	demand int64
	// next is what the transaction charged ahead.
	next grant
}

// demand counts the cost asked for in the present span and in the ones before it, the last first.
type demand struct {
	span, present int64
	before        [4]int64
}

func (d *demand) add(now, cost int64) {
	d.move(now)
	d.present = min(d.present+cost, MaxAmount)
}

// drop takes back what was added just now.
func (d *demand) drop(cost int64) { d.present = max(0, d.present-cost) }

func (d *demand) move(now int64) {
	span := floorDiv(now, demandSpan)
	// One span back is two readings of one clock; more, a clock that was set back, beside which the rest would add up.
	if span-d.span > int64(len(d.before)) || d.span-span > 1 {
		*d = demand{span: span}
	}
	for ; d.span < span; d.span++ {
		copy(d.before[1:], d.before[:])
		d.before[0], d.present = d.present, 0
	}
}

// recent is the cost asked for in the last demandSpan, or on average in the last four, if that is more: of what is asked
// for seldom, the last has none too often. The part of a span that begins before counts as if its requests had come evenly.
func (d *demand) recent(now int64) int64 {
	d.move(now)
	left := demandSpan - min(max(0, now-d.span*demandSpan), demandSpan)
	part := func(of int64) int64 { return (of*left + demandSpan/2) / demandSpan }
	last := d.present + part(d.before[0])
	four := d.present + d.before[0] + d.before[1] + d.before[2] + part(d.before[3])
	return max(last, (four+2)/4)
}

func (x *leases) init() {
	x.seed = maphash.MakeSeed()
	for i := range x.shards {
		x.shards[i].known = make(map[CounterID]*lease)
	}
}

func (x *leases) shardIndex(id CounterID) int {
	return int(maphash.String(x.seed, id.Key) % memoryShards)
}

func (x *leases) shard(id CounterID) *leaseShard { return &x.shards[x.shardIndex(id)] }

// serve answers a request from leases, if each of its limits has one with enough left at now; clock is what the last
// transaction read.
func (x *leases) serve(r *Request, now time.Time, clock *reading) (Decision, bool) {
	if x.count.Load() == 0 || r.Verb > Check || !r.leasable() {
		return Decision{}, false
	}
	results := r.results()
	served := false
	if len(r.Limits) == 1 {
		s, e := x.find(r.Limits[0].Ref, r.Limits[0].CounterID)
		served = x.serveOne(e, r, 0, now, clock, &results[0])
		s.mu.Unlock()
	} else {
		served = x.serveAll(r, now, clock, results)
	}
	return Decision{Allowed: true, Results: results}, served
}

// serveAll serves several limits or none. It holds the shards of all meanwhile: a transaction that took the first lease would leave
// charged what the second cannot serve. They are locked in one order, and who locks one alone waits for no other.
func (x *leases) serveAll(r *Request, now time.Time, clock *reading, results []Result) bool {
	var homes uint
	for i := range r.Limits {
		homes |= 1 << x.shardIndex(r.Limits[i].CounterID)
	}
	for left := homes; left > 0; left &= left - 1 {
		x.shards[bits.TrailingZeros(left)].mu.Lock()
	}
	served := 0
	for served < len(r.Limits) && x.serveOne(x.known(&r.Limits[served]), r, served, now, clock, &results[served]) {
		served++
	}
	if served < len(r.Limits) && r.Verb == Consume {
		for i := range r.Limits[:served] {
			e := x.known(&r.Limits[i])
			e.tokens += r.Cost
			e.demand.drop(r.Cost)
		}
	}
	for left := homes; left > 0; left &= left - 1 {
		x.shards[bits.TrailingZeros(left)].mu.Unlock()
	}
	return served == len(r.Limits)
}

// known gives the lease of a limit's counter, nil for none, whose shard is locked.
func (x *leases) known(l *Limit) *lease { return x.shard(l.CounterID).known[l.CounterID] }

// leasable tells whether leases can serve a consume or check like it.
func (r *Request) leasable() bool {
	if r.repeatable() {
		return false
	}
	for i := range r.Limits {
		if !r.Limits[i].Leased || r.Limits[i].Shadow {
			return false
		}
	}
	return true
}

// find gives the lease of a counter, nil for none, and its shard, locked. ref is of a limit of it, or nil.
func (x *leases) find(ref *Ref, id CounterID) (*leaseShard, *lease) {
	if ref != nil {
		if e := ref.lease.Load(); e != nil {
			e.home.mu.Lock()
			if !e.gone {
				return e.home, e
			}
			e.home.mu.Unlock()
			ref.lease.CompareAndSwap(e, nil)
		}
	}
	s := x.shard(id)
	s.mu.Lock()
	e := s.known[id]
	if ref != nil && e != nil {
		ref.lease.Store(e)
	}
	return s, e
}

// of tells whether it was lent under the definition of a limit of its counter, and crosses no threshold of that.
func (e *lease) of(l *Limit) bool {
	return l.Ref != nil && l.Ref == e.limit.Ref || e.limit.same(l) && l.Threshold <= e.limit.Threshold
}

// over tells whether the time of the lease is over. The store's clock may have been set forward since the lease began: then
// a later reading, clock, knows.
func (e *lease) over(now time.Time, clock *reading) bool {
	return e.clock.latest(now) > e.until || clock.earliest(now) > e.until
}

// serveOne takes the cost from the lease of the i-th limit, nil for none, whose shard is locked.
func (x *leases) serveOne(e *lease, r *Request, i int, now time.Time, clock *reading, result *Result) bool {
	l := &r.Limits[i]
	if e == nil || e.ended || e.amount == 0 || e.tokens < r.Cost || e.over(now, clock) || !e.of(l) {
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

// renew has a batch that is to be written anyway renew leases that are spent, at most so many: the next request for such a
// counter need not wait for a transaction then. Only who writes may call it.
func (x *leases) renew(b *batch, most int) {
	if x.count.Load() == 0 {
		return
	}
	r := &b.renewal
	*r = Request{Verb: renew, Limits: r.Limits[:0]}
	for _, e := range x.takeSpent(most) {
		if e.renewable() {
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

// renewable says that a lease is no longer among those that are spent, and tells whether it still is one to renew.
func (e *lease) renewable() bool {
	e.home.mu.Lock()
	defer e.home.mu.Unlock()
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

// take ends the leases of a batch's counters, which are settled in its transaction, and notes what is asked.
func (x *leases) take(b *batch, now int64) {
	for slot := range b.holds {
		h := &b.holds[slot]
		if !h.wanted && x.count.Load() == 0 {
			continue
		}
		s, e := x.find(h.ref, b.ids[slot])
		if e == nil && h.asked > 0 {
			e = x.know(s, b.ids[slot])
		}
		if e != nil {
			h.lease, h.grant, h.unused, h.ends = e, e.grant, e.tokens, e.ends
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

// know begins to know a counter of a shard that is locked, if there is room.
func (x *leases) know(s *leaseShard, id CounterID) *lease {
	if len(s.known) >= leasesMost/memoryShards {
		return nil
	}
	e := &lease{home: s}
	s.known[id] = e
	x.count.Add(1)
	return e
}

// restore gives the leases of a batch back that was not written.
func (x *leases) restore(b *batch) {
	for slot := range b.holds {
		if h := &b.holds[slot]; h.lease != nil {
			s := h.lease.home
			s.mu.Lock()
			h.lease.demand.drop(h.asked) // take counts it anew
			if h.grant.amount > 0 {
				h.lease.grant, h.lease.tokens = h.grant, h.unused
			}
			s.mu.Unlock()
		}
	}
}

// install begins the leases that a batch's transaction charged.
func (x *leases) install(b *batch) {
	for slot := range b.holds {
		if h := &b.holds[slot]; h.next.amount > 0 {
			s := h.lease.home
			s.mu.Lock()
			h.lease.begin(&b.counters[slot], h, b.clock)
			s.mu.Unlock()
		}
	}
}

// begin makes it the lease that was charged. One that was to end meanwhile only has its tokens to give back.
func (e *lease) begin(c *counter, h *hold, clock *reading) {
	e.spec, e.begun = c.state.spec, c.state.since
	e.limit, e.grant, e.tokens, e.clock = *c.limit, h.next, h.next.amount, clock
	e.used, e.resetAt, e.bucket = c.state.counting().used(), c.state.resetAt(clock.now), c.state.bucket
	e.ended = e.ends != h.ends
}

// end ends the leases of counters; what is left of them goes back with the next sweep.
func (x *leases) end(f Forget) {
	for i := range x.shards {
		s := &x.shards[i]
		if f.Key != "" && s != x.shard(CounterID{Key: f.Key}) {
			continue
		}
		s.mu.Lock()
		for id, e := range s.known {
			if f.names(id) {
				e.ended = true
				e.ends++
			}
		}
		s.mu.Unlock()
	}
}

// names tells whether the counter is one of those to forget.
func (f *Forget) names(id CounterID) bool {
	return f.All || f.Key != "" && id.Key == f.Key || f.Prefix != "" && strings.HasPrefix(id.Key, f.Prefix)
}

// over gives requests that settle the leases whose time is over at now, or all, served to the end or not, and forgets
// counters that nobody asks for. With all, nothing is on its way any more.
func (x *leases) over(now time.Time, clock *reading, all bool) (rs []*Request) {
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.Lock()
		for id, e := range s.known {
			e.idle++
			switch {
			case e.amount == 0 && e.idle > idleSweeps:
				e.gone = true
				delete(s.known, id)
				x.count.Add(-1)
			case e.amount > 0 && e.clock.latest(now) > e.until+leaseGrace:
				e.grant, e.tokens = grant{}, 0 // too late to give it back
			case e.amount > 0 && (all || !e.returning && (e.ended || e.over(now, clock))):
				e.returning = true
				rs = appendLimit(rs, handBack, &e.limit)
			}
		}
		s.mu.Unlock()
	}
	return rs
}

// kept says that the requests of over were not taken.
func (x *leases) kept(r *Request) {
	for i := range r.Limits {
		id := r.Limits[i].CounterID
		s := x.shard(id)
		s.mu.Lock()
		if e := s.known[id]; e != nil {
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
		for _, l := range s.known {
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
	defer e.pulse.end()
	for {
		select {
		case <-e.quit:
			return
		case <-tick.C:
		}
		e.pulse.beat()
		e.watch()
		if e.leases.count.Load() == 0 {
			continue
		}
		for _, r := range e.leases.over(time.Now(), e.clock.Load(), false) {
			if e.Submit(r) != nil {
				e.leases.kept(r) // the queue is full: the next sweep asks again
			}
		}
	}
}

// returnLeases gives all leases back, when the worker goes.
func (e *Engine) returnLeases() {
	for _, r := range e.leases.over(time.Now(), e.clock.Load(), true) {
		b := e.newBatch()
		b.began = time.Now()
		b.add(r)
		e.commit(b)
	}
}
