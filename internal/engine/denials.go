package engine

import (
	"sync"
	"sync/atomic"
	"time"
)

// denialsMost bounds the counters whose denials a worker counts in memory. Those of further counters are told as
// soon as their event is due, but not counted in between.
const denialsMost = 65536

// denials counts the denials that no event has told of yet, so that a denial needs no write. An event of a
// counter is due 10 seconds after the last one.
type denials struct {
	mu      sync.Mutex
	pending map[CounterID]*untold
}

type untold struct {
	// count is below 0 once it is no longer in pending.
	count atomic.Int64
	// due is when they may be told, by the store's clock.
	due   int64
	limit Limit
	// cost is that of the first.
	cost int64
}

// goneCount is far below what any number of denials adds up to.
const goneCount = -1 << 62

func (d *denials) init() { d.pending = make(map[CounterID]*untold) }

// add counts a denial of a cost by l that was answered from memory. An event is about the user and the cost of the first denial
// that it tells of.
func (d *denials) add(m *memo, l *Limit, cost, due int64) {
	if u := m.told.Load(); u != nil && u.count.Add(1) > 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending[l.CounterID] == nil {
		m.own.limit.User, m.own.cost = l.User, cost // which nobody reads without the lock
	}
	m.told.Store(d.addTo(&m.own, 1, due))
}

// addTo counts denials where those of the counter are counted: in own, if there are none yet.
func (d *denials) addTo(own *untold, n, due int64) *untold {
	id := own.limit.CounterID
	u := d.pending[id]
	if u == nil {
		if len(d.pending) >= denialsMost {
			return nil
		}
		u, own.due = own, due
		u.count.Store(0)
		d.pending[id] = u
	}
	u.count.Add(n)
	return u
}

// count is how many denials of the counter wait to be told.
func (d *denials) count(id CounterID) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if u := d.pending[id]; u != nil {
		return u.count.Load()
	}
	return 0
}

// settle takes over what a committed transaction told and counted.
func (d *denials) settle(c *counter, now int64) {
	if c.limit == nil || c.denials == 0 && c.recalled == 0 && c.exceeded < 0 && !c.early {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.pending[c.limit.CounterID]
	if c.early {
		// It stays, so that somebody tells of what is left in the state; as long as nobody has.
		due := min(c.state.exceededAt, now) + exceededEvery
		if u == nil && c.denials > 0 {
			u = d.addTo(&untold{limit: *c.limit, cost: c.cost}, 0, due)
		}
		if u == nil {
			return
		}
		u.due = due
		if u.count.Add(-c.recalled) <= 0 && c.state.denied == 0 && u.count.CompareAndSwap(0, goneCount) {
			delete(d.pending, c.limit.CounterID)
		}
		return
	}
	if c.exceeded < 0 && c.recalled == 0 {
		if c.denials > 0 {
			d.addTo(&untold{limit: *c.limit, cost: c.cost}, c.denials, c.state.exceededAt+exceededEvery)
		}
		return
	}
	if u == nil {
		return
	}
	u.due = now + exceededEvery
	// What is counted between the two is kept; what comes after it begins anew.
	if u.count.Add(-c.recalled) <= 0 && u.count.CompareAndSwap(0, goneCount) {
		delete(d.pending, c.limit.CounterID)
	}
}

// due gives requests that tell the denials whose event is due at now; all gives those of all denials.
func (d *denials) due(now int64) []*Request {
	return d.requests(func(u *untold) bool { return u.due <= now || u.due > now+exceededEvery }) // the clock was set back
}
func (d *denials) all() []*Request { return d.requests(func(*untold) bool { return true }) }

func (d *denials) requests(pick func(*untold) bool) (rs []*Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, u := range d.pending {
		if !pick(u) {
			continue
		}
		rs = appendLimit(rs, tell, &u.limit)
		last := rs[len(rs)-1]
		last.denied = append(last.denied, u.cost)
	}
	return rs
}

// tellLoop tells of denials that ended before their event was due, and tries a store that failed.
func (e *Engine) tellLoop() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-e.quit:
			return
		case <-tick.C:
		}
		e.probe()
		for _, r := range e.denials.due(e.now()) {
			if e.Submit(r) != nil {
				break // the queue is full: the next tick asks again
			}
		}
	}
}
