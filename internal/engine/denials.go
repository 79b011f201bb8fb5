package engine

import (
	"sync"
	"sync/atomic"
	"time"
)

// maxUnreported bounds the counters whose denials a worker counts in memory. Those of further counters are told as
// soon as their event is due, but not counted in between.
const maxUnreported = 65536

// denialCounts counts the denials that no event has told of yet, so that a denial needs no write. An event of a
// counter is due 10 seconds after the last one.
type denialCounts struct {
	mu      sync.Mutex
	pending map[CounterID]*unreported
}

// unreported are denials of a counter.
type unreported struct {
	// count is below 0 once no more are counted here.
	count atomic.Int64
	// due is when they may be told, by the store's clock.
	due int64
	// limit and cost are those of the first.
	limit Limit
	cost  int64
	// taken is how many they were when a transaction was to tell of them. It may fail: next counts those that came since.
	taken int64
	next  *unreported
	used  bool
}

// countClosed is far below what any number of denials adds up to.
const countClosed = -1 << 62

func (d *denialCounts) init() { d.pending = make(map[CounterID]*unreported) }

// add counts a denial of a cost by l that was answered from memory. An event is about the user and the cost of the first denial
// that it tells of, among those that its worker remembers.
func (d *denialCounts) add(m *cachedCounter, l *Limit, cost, due int64) {
	if u := m.counted.Load(); u != nil && u.count.Add(1) > 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	m.counted.Store(d.addTo(&m.ownDenials, l, cost, 1, due))
}

// addTo counts n denials where those of the counter are counted; the first was of a cost by l. If there are none yet, that is in
// own, whose limit is l's apart from the user, unless it was used before.
func (d *denialCounts) addTo(own *unreported, l *Limit, cost, n, due int64) *unreported {
	first := d.pending[l.CounterID]
	u := first
	if u != nil && u.count.Load() < 0 {
		u = u.next
	}
	if u == nil {
		if first == nil && len(d.pending) >= maxUnreported {
			return nil
		}
		if u = own; u.used {
			u = &unreported{limit: own.limit}
		}
		u.used, u.due, u.limit.User, u.cost = true, due, l.User, cost // which nobody reads without the lock
		if first != nil && first.taken > 0 {
			first.next = u
		} else {
			d.pending[l.CounterID] = u
		}
	}
	u.count.Add(n)
	return u
}

// take gives how many denials of the counter wait to be told. The next one is the first of others.
func (d *denialCounts) take(id CounterID) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.pending[id]
	if u == nil {
		return 0
	}
	u.taken += max(0, u.count.Swap(countClosed))
	if u.next != nil {
		u.taken += u.next.count.Swap(countClosed)
		u.next = nil
	}
	return u.taken
}

// afterCommit takes over what a committed transaction told and counted.
func (d *denialCounts) afterCommit(c *counter, now int64) {
	if c.limit == nil || c.denials == 0 && c.cachedDenials == 0 && c.exceededEvent < 0 && !c.notDue {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.exceededEvent < 0 && c.cachedDenials == 0 && !c.notDue {
		d.addTo(&unreported{limit: *c.firstDenied}, c.firstDenied, c.firstCost, c.denials, c.state.exceededAt+exceededInterval)
		return
	}
	due := now
	if c.notDue {
		due = min(c.state.exceededAt, now)
		if d.pending[c.limit.CounterID] == nil && c.denials > 0 {
			d.addTo(&unreported{limit: *c.firstDenied}, c.firstDenied, c.firstCost, countClosed, 0)
		}
	}
	u := d.pending[c.limit.CounterID]
	if u == nil {
		return
	}
	u.due = due + exceededInterval
	switch {
	case u.count.Load() > 0: // it has begun since
	case u.next != nil:
		u.next.due = u.due
		d.pending[c.limit.CounterID] = u.next
	case c.notDue && c.state.denied > 0:
		// It stays, so that somebody tells of what is left in the state; as long as nobody has.
		u.taken = 0
	default:
		delete(d.pending, c.limit.CounterID)
	}
}

// due gives requests that tell the denials whose event is due at now; all gives those of all denials.
func (d *denialCounts) due(now int64) []*Request {
	return d.requests(func(u *unreported) bool { return u.due <= now || u.due > now+exceededInterval }) // the clock was set back
}
func (d *denialCounts) all() []*Request { return d.requests(func(*unreported) bool { return true }) }

func (d *denialCounts) requests(pick func(*unreported) bool) (rs []*Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, u := range d.pending {
		if !pick(u) {
			continue
		}
		rs = appendLimit(rs, reportDenials, &u.limit)
		last := rs[len(rs)-1]
		last.deniedCosts = append(last.deniedCosts, u.cost)
	}
	return rs
}

// reportLoop tells of denials that ended before their event was due, and tries a store that failed. Those that are due at once are told over
// a second, a few counters at a time: requests wait behind them.
func (e *Engine) reportLoop() {
	const parts = 10
	tick := time.NewTicker(time.Second / parts)
	defer tick.Stop()
	var due []*Request
	part := 0
	for n := 1; ; n++ {
		select {
		case <-e.quit:
			return
		case <-tick.C:
		}
		if n%parts == 0 {
			e.probe()
			due = e.denials.due(e.now())
			part = (len(due) + parts - 1) / parts
		}
		for _, r := range due[:min(part, len(due))] {
			if e.Submit(r) != nil {
				due = nil // the queue is full: the next look finds them again
				break
			}
		}
		due = due[min(part, len(due)):]
	}
}
