package usage

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/seed503877ad/limits/internal/engine"
)

const (
	tallyShards = 16
	// shardIDs bounds the ids that one shard counts between two writes. Further ones are counted
	// together, without id.
	shardIDs = 4096
	// nearlyFull is at how many ids of one shard the tally is written at once.
	nearlyFull = shardIDs * 3 / 4
)

// tally counts decisions. To take the counts of a shard two pages are swapped, so nobody who counts
// waits for longer than that, and an id that was counted before needs no allocation. A limit with
// an [engine.Ref] is counted there, which needs neither lock nor map until the counts are taken.
type tally struct {
	seed   maphash.Seed
	shards [tallyShards]tallyShard
	// full gets a value when a shard is nearly full.
	full chan struct{}
}

type tallyShard struct {
	mu sync.Mutex
	page
	spare page
}

// page is what one shard counted since its counts were last taken.
type page struct {
	counts []Count
	// at is the index of each id's count. last is that of the id that was counted last, which often
	// is the next one too.
	at   map[ID]int
	last int
	// listed are the refs with counts.
	listed []listed
	// other counts what has no room.
	other Count
}

// listed is a ref, and the id that it counts for.
type listed struct {
	ID
	*engine.Ref
}

// add adds d to c.
func (c *Count) add(d *Count) {
	c.Allowed, c.Denied, c.Cost = c.Allowed+d.Allowed, c.Denied+d.Denied, c.Cost+d.Cost
}

// take returns the counts of the ref, and unlists it. addToRef counts before it looks whether the ref
// is listed, so what it counts after this is listed again.
func (l *listed) take(at int64) Count {
	l.Tally.Listed.Store(false)
	return Count{ID: l.ID, At: at, Allowed: l.Tally.Allowed.Swap(0), Denied: l.Tally.Denied.Swap(0), Cost: l.Tally.Cost.Swap(0)}
}

func newTally() *tally {
	t := &tally{seed: maphash.MakeSeed(), full: make(chan struct{}, 1)}
	for i := range t.shards {
		s := &t.shards[i]
		s.at, s.spare.at = make(map[ID]int), make(map[ID]int)
	}
	return t
}

// add counts a decision. A limit that denied the request, also one in shadow, counts a denial; a
// limit that fitted beside it counts nothing. A check charges nothing, so only its denials count; a
// record is charged even if it is denied, and counts nothing on what it spares, because the check
// before it counted the denial. Limits with one key and policy, such as those of a minute
// and a day, count once.
func (t *tally) add(r *engine.Request, d *engine.Decision) {
	for i := range d.Results {
		if countedBefore(d, i) {
			continue
		}
		res := &d.Results[i]
		denied := anyDenied(d, i)
		var c Count
		switch {
		case r.Verb == engine.Record && res.Spared:
			continue
		case r.Verb == engine.Record && denied:
			c.Denied, c.Cost = 1, r.Cost
		case r.Verb == engine.Record || r.Verb == engine.Consume && d.Allowed && !res.Spared:
			c.Allowed, c.Cost = 1, r.Cost
		case denied:
			c.Denied = 1
		default:
			continue
		}
		c.ID = ID{Key: res.Key, Policy: res.Policy}
		var ref *engine.Ref
		if i < len(r.Limits) {
			c.User, ref = r.Limits[i].User, r.Limits[i].Ref
		}
		t.addCount(&c, ref)
	}
}

// countedBefore reports whether a limit before the i-th has its key and policy.
func countedBefore(d *engine.Decision, i int) bool {
	for j := range i {
		if sameID(d, i, j) {
			return true
		}
	}
	return false
}

// anyDenied reports whether some limit with the key and policy of the i-th denied.
func anyDenied(d *engine.Decision, i int) bool {
	for j := range d.Results {
		if !d.Results[j].Allowed && sameID(d, i, j) {
			return true
		}
	}
	return false
}

func sameID(d *engine.Decision, i, j int) bool {
	return d.Results[i].Key == d.Results[j].Key && d.Results[i].Policy == d.Results[j].Policy
}

func (t *tally) addCount(c *Count, ref *engine.Ref) {
	if ref != nil && !addToRef(&ref.Tally, c) {
		return
	}
	s := &t.shards[maphash.String(t.seed, c.Key)%tallyShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	had := s.size()
	if ref != nil {
		s.list(listed{c.ID, ref})
	} else {
		s.find(&c.ID).add(c)
	}
	if had < nearlyFull && s.size() == nearlyFull {
		t.signalFull()
	}
}

// addToRef adds to the counts of a ref, and reports whether the caller has to list it.
func addToRef(t *engine.Tally, c *Count) bool {
	addNonZero(&t.Allowed, c.Allowed)
	addNonZero(&t.Denied, c.Denied)
	addNonZero(&t.Cost, c.Cost)
	return !t.Listed.Load() && t.Listed.CompareAndSwap(false, true)
}

func addNonZero(sum *atomic.Int64, n int64) {
	if n != 0 {
		sum.Add(n)
	}
}

func (t *tally) signalFull() {
	select {
	case t.full <- struct{}{}:
	default:
	}
}

// size is how many ids have counts.
func (t *tally) size() (n int) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		n += s.size()
		s.mu.Unlock()
	}
	return n
}

func (p *page) size() int { return len(p.counts) + len(p.listed) }

// list lists a ref that has counts, or moves its counts to other if there is no room.
func (p *page) list(l listed) {
	if p.size() < shardIDs {
		p.listed = append(p.listed, l)
		return
	}
	c := l.take(0)
	p.other.add(&c)
}

// find returns the count of an id, or other if there is no room; the pointer is valid until the next
// call.
func (p *page) find(id *ID) *Count {
	if p.last < len(p.counts) && p.counts[p.last].ID == *id {
		return &p.counts[p.last]
	}
	at, known := p.at[*id]
	if !known {
		if p.size() >= shardIDs {
			return &p.other
		}
		at = len(p.counts)
		p.counts, p.at[*id] = append(p.counts, Count{ID: *id}), at
	}
	p.last = at
	return &p.counts[at]
}

// take hands the counts to into, under the minute that begins at at.
func (t *tally) take(at int64, into func(Count)) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		full := s.page
		s.page = s.spare
		s.mu.Unlock()
		full.each(at, into)
		clear(full.counts)
		clear(full.at)
		clear(full.listed)
		s.spare = page{counts: full.counts[:0], at: full.at, listed: full.listed[:0]}
	}
}

// each hands the counts that are not zero to into.
func (p *page) each(at int64, into func(Count)) {
	give := func(c Count) {
		if c.At = at; c.Allowed+c.Denied+c.Cost > 0 {
			into(c)
		}
	}
	for _, c := range p.counts {
		give(c)
	}
	for i := range p.listed {
		give(p.listed[i].take(at))
	}
	give(p.other)
}
