package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxUnreported bounds the counters whose denials a worker counts in memory. For further counters
// an event is raised when it is due, but denials in between are not counted.
const maxUnreported = 65536

// denialCounts counts the denials that no event has reported yet, so that a denial needs no write.
// A counter's next event is due 10 seconds after the last one, or when the worker stops.
type denialCounts struct {
	mu      sync.Mutex
	pending map[CounterID]*unreported
}

// unreported are the unreported denials of one counter.
type unreported struct {
	// count is negative once it was taken for an event: then no more are counted here.
	count atomic.Int64
	// due is when an event may report them, by the store's clock.
	due int64
	// limit and cost are those of the first denial.
	limit Limit
	cost  int64
	// taken is how many were taken for an event. Its transaction may fail, so next counts the
	// denials that come after.
	taken int64
	next  *unreported
	used  bool
}

// countClosed is so far below 0 that no number of denials makes the count positive.
const countClosed = -1 << 62

func (d *denialCounts) init() { d.pending = make(map[CounterID]*unreported) }

// add counts a denial from memory of a request of that cost by l. An event names the user and the
// cost of the first unreported denial that its worker counted.
func (d *denialCounts) add(m *cachedCounter, l *Limit, cost, due int64) {
	if u := m.counted.Load(); u != nil && u.count.Add(1) > 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	m.counted.Store(d.addTo(&m.ownDenials, l, cost, 1, due))
}

// addTo adds n denials to the counter's count; the first was of that cost by l. If the counter has
// no count yet it begins one, in own if that is unused. The limit of own is l apart from the user.
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
		u.used, u.due, u.limit.User, u.cost = true, due, l.User, cost // only read under the lock
		if first != nil && first.taken > 0 {
			first.next = u
		} else {
			d.pending[l.CounterID] = u
		}
	}
	u.count.Add(n)
	return u
}

// take takes the counter's denials for an event and returns their number. The next denial is counted
// anew.
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

// afterCommit takes note of what a committed transaction reported and counted.
func (d *denialCounts) afterCommit(c *counter, now int64) {
	if c.limit == nil || c.denials == 0 && c.cachedDenials == 0 && c.exceededEvent < 0 && !c.notDue {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.exceededEvent < 0 && c.cachedDenials == 0 && !c.notDue {
		// Nothing was reported: the batch's denials wait for the next event.
		d.addTo(&unreported{limit: *c.firstDenied}, c.firstDenied, c.firstCost, c.denials, c.state.exceededAt+exceededInterval)
		return
	}
	lastEvent := now
	if c.notDue {
		lastEvent = min(c.state.exceededAt, now)
		if d.pending[c.limit.CounterID] == nil && c.denials > 0 {
			// The state has these denials. A closed count has them reported when their event is due.
			d.addTo(&unreported{limit: *c.firstDenied}, c.firstDenied, c.firstCost, countClosed, 0)
		}
	}
	u := d.pending[c.limit.CounterID]
	if u == nil {
		return
	}
	u.due = lastEvent + exceededInterval
	switch {
	case u.count.Load() > 0: // it was begun after take
	case u.next != nil:
		u.next.due = u.due
		d.pending[c.limit.CounterID] = u.next
	case c.notDue && c.state.denied > 0:
		// Keep it, so that somebody reports what was left in the state, unless another worker does
		// so first.
		u.taken = 0
	default:
		delete(d.pending, c.limit.CounterID)
	}
}

// due returns requests that report the denials whose event is due at now; all returns those for all
// denials.
func (d *denialCounts) due(now int64) []*Request {
	return d.requests(func(u *unreported) bool { return u.due <= now || u.due > now+exceededInterval }) // or the clock was set back
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

// reportLoop reports denials that have stopped before their event was due, and probes a store that
// failed. Reports that are due together are spread over a second, a few counters at a time, because
// requests queue behind them.
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
				due = nil // the queue is full: the next round finds them again
				break
			}
		}
		due = due[min(part, len(due)):]
	}
}

// reportAll reports the denials that only this worker counted, before it stops. They may be of
// maxUnreported counters, and the stop must not take long, so a batch has many. The error says how
// many are lost.
func (e *Engine) reportAll() error {
	const atOnce = 8 // requests, each of up to 64 counters
	var failed error
	for some := range slices.Chunk(e.denials.all(), atOnce) {
		b := e.newBatch()
		b.closing, b.began = true, time.Now()
		for _, r := range some {
			b.add(r)
		}
		e.commit(b)
		for _, r := range some {
			failed = cmp.Or(failed, r.err)
		}
	}
	if isCircuitOpen(failed) || errors.Is(failed, context.DeadlineExceeded) {
		failed = e.cause() // it says more
	}
	if failed == nil {
		return nil
	}
	return e.denials.lost(failed)
}

// lost returns the error for denials that no event has reported, because of why; nil if there are
// none.
func (d *denialCounts) lost(why error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	denials, counters := int64(0), 0
	for _, u := range d.pending {
		n := u.taken + max(0, u.count.Load())
		if u.next != nil {
			n += max(0, u.next.count.Load())
		}
		if n > 0 {
			denials += n
			counters++
		}
	}
	if denials == 0 {
		return nil
	}
	return fmt.Errorf("report denials: %d denials of %d counters are lost: %w", denials, counters, why)
}
