package usage

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/seed503877ad/limits/internal/engine"
)

const (
	tallyShards = 16
	// shardIDs bounds the ids that one shard counts between two writes. Further ones are counted together.
	shardIDs = 4096
	// nearlyFull is how many ids of one shard are a reason to write at once.
	nearlyFull = shardIDs * 3 / 4
)

// tally counts decisions. What was counted is taken from a shard by exchanging two pages, so that whoever counts waits
// for no more than that, and an id that was counted before takes no memory. A limit with a [engine.Ref] is counted there,
// and needs neither lock nor map until its counts are taken.
type tally struct {
	seed   maphash.Seed
	shards [tallyShards]tallyShard
	// full is told when a shard is nearly full.
	full chan struct{}
}

type tallyShard struct {
	mu sync.Mutex
	page
	spare page
}

// page is what was counted since the last was taken.
type page struct {
	counts []Count
	// at says where each id has its count, and last is that of the id that was counted last, which often is the next, too.
	at   map[ID]int
	last int
	// listed are the refs that have counts.
	listed []listed
	// other counts what finds no room.
	other Count
}

// listed is a ref and what it counts.
type listed struct {
	ID
	*engine.Ref
}

// add adds one count to another.
func (c *Count) add(d *Count) {
	c.Allowed, c.Denied, c.Cost = c.Allowed+d.Allowed, c.Denied+d.Denied, c.Cost+d.Cost
}

// take gives what was counted, and ends the listing. A count is made before its maker looks whether it is listed, so what
// comes after the counts were taken is listed again.
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

// add counts a decision. A limit that refused a request counts a denial, and one that fitted beside it nothing; so does a
// limit in shadow, though the request was allowed. A check charges nothing, so only its denials count; a record charges
// also where it is denied. Limits of one key and policy, such as those of a minute and a day, count once.
func (t *tally) add(r *engine.Request, d *engine.Decision) {
	for i := range d.Results {
		if counted(d, i) {
			continue
		}
		res := &d.Results[i]
		denied := refused(d, i)
		var c Count
		switch {
		case r.Verb == engine.Record && denied:
			c.Denied, c.Cost = 1, r.Cost
		case r.Verb == engine.Record || r.Verb == engine.Consume && d.Allowed && !(d.Shadow && refusedInShadow(d, i)):
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
		t.count(&c, ref)
	}
}

// refusedInShadow tells whether the i-th limit of a request that is allowed is of a policy that refused, which is one in shadow. Then it
// was not charged.
func refusedInShadow(d *engine.Decision, i int) bool {
	return slices.ContainsFunc(d.Results, func(r engine.Result) bool { return r.Policy == d.Results[i].Policy && !r.Allowed })
}

// counted tells whether one of the limits before the i-th was of its key and policy.
func counted(d *engine.Decision, i int) bool {
	for j := range i {
		if sameID(d, i, j) {
			return true
		}
	}
	return false
}

// refused tells whether a limit of the key and policy of the i-th refused.
func refused(d *engine.Decision, i int) bool {
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

func (t *tally) count(c *Count, ref *engine.Ref) {
	if ref != nil && !countAt(&ref.Tally, c) {
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
		t.tellFull()
	}
}

// countAt counts in a ref, and tells whether that is now to be listed.
func countAt(t *engine.Tally, c *Count) bool {
	addTo(&t.Allowed, c.Allowed)
	addTo(&t.Denied, c.Denied)
	addTo(&t.Cost, c.Cost)
	return !t.Listed.Load() && t.Listed.CompareAndSwap(false, true)
}

func addTo(sum *atomic.Int64, n int64) {
	if n != 0 {
		sum.Add(n)
	}
}

func (t *tally) tellFull() {
	select {
	case t.full <- struct{}{}:
	default:
	}
}

// size is how many ids were counted.
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

// list notes that a ref has counts, or moves them where there is no room to note it.
func (p *page) list(l listed) {
	if p.size() < shardIDs {
		p.listed = append(p.listed, l)
		return
	}
	c := l.take(0)
	p.other.add(&c)
}

// find gives the count of an id, for now.
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

// take moves what was counted into counts, under the minute that begins at at.
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

// each takes each count of the page that is not zero.
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
