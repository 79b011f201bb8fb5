package usage

import (
	"hash/maphash"
	"math"
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

// tally counts decisions. What was counted is taken from a shard by exchanging two maps, so that whoever counts waits
// for no more than that, and an id that was counted before takes no memory. A limit with a [engine.Ref] keeps the place
// where it is counted, and needs neither lock nor map until that place is taken.
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

// page is where each id is counted.
type page struct {
	places map[ID]*place
	// last is the place of the id that was counted last, which often is the next, too.
	last *place
	// other counts what finds no room.
	other *place
}

// place counts the decisions on an id, until they are taken: then its counts are below 0.
type place struct {
	ID
	allowed, denied, cost atomic.Int64
}

// taken is far below what any counting adds up to.
const taken = math.MinInt64 / 2

// add adds a count, or only some of it when the place is taken, and leaves the rest in it.
func (p *place) add(c *Count) (all bool) {
	return addTo(&p.denied, &c.Denied) && addTo(&p.allowed, &c.Allowed) && addTo(&p.cost, &c.Cost)
}

func addTo(sum *atomic.Int64, n *int64) bool {
	if *n > 0 {
		if sum.Add(*n) <= 0 {
			return false
		}
		*n = 0
	}
	return true
}

// take gives what was counted, and ends counting there.
func (p *place) take(at int64) Count {
	return Count{ID: p.ID, At: at, Allowed: p.allowed.Swap(taken), Denied: p.denied.Swap(taken), Cost: p.cost.Swap(taken)}
}

func newTally() *tally {
	t := &tally{seed: maphash.MakeSeed(), full: make(chan struct{}, 1)}
	for i := range t.shards {
		s := &t.shards[i]
		s.page = page{places: make(map[ID]*place), other: new(place)}
		s.spare = page{places: make(map[ID]*place), other: new(place)}
	}
	return t
}

// add counts a decision. A limit that refused a request counts a denial, and one that fitted beside it nothing. A check
// charges nothing, so only its denials count; a record charges whatever the decision. Limits of one key and policy,
// such as those of a minute and a day, count once.
func (t *tally) add(r *engine.Request, d *engine.Decision) {
	for i := range d.Results {
		res := &d.Results[i]
		var c Count
		switch {
		case r.Verb == engine.Record || r.Verb == engine.Consume && d.Allowed:
			c.Allowed, c.Cost = 1, r.Cost
		case d.Allowed || res.Allowed:
			continue
		default:
			c.Denied = 1
		}
		c.ID = ID{Key: res.Key, Policy: res.Policy}
		var ref *engine.Ref
		if i < len(r.Limits) {
			c.User, ref = r.Limits[i].User, r.Limits[i].Ref
		}
		if !counted(r, d, i, c.Denied > 0) {
			t.count(&c, ref)
		}
	}
}

// counted tells whether one of the limits before the i-th has counted the same.
func counted(r *engine.Request, d *engine.Decision, i int, denial bool) bool {
	res := &d.Results[i]
	for j := range i {
		before := &d.Results[j]
		if before.Key == res.Key && before.Policy == res.Policy && !(denial && before.Allowed) {
			return true
		}
	}
	return false
}

func (t *tally) count(c *Count, ref *engine.Ref) {
	if ref != nil {
		if p, ok := ref.Tallied.Load().(*place); ok && p.add(c) {
			return
		}
	}
	s := &t.shards[maphash.String(t.seed, c.Key)%tallyShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	p, full := s.find(&c.ID)
	if full {
		t.tellFull()
	}
	p.add(c)
	if ref != nil {
		ref.Tallied.Store(p)
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
		n += len(s.places)
		s.mu.Unlock()
	}
	return n
}

// find gives where an id is counted, and whether there is little room left with it.
func (s *tallyShard) find(id *ID) (p *place, full bool) {
	if s.last != nil && s.last.ID == *id {
		return s.last, false
	}
	p, known := s.places[*id]
	if !known {
		if len(s.places) >= shardIDs {
			return s.other, false
		}
		p = &place{ID: *id}
		s.places[*id] = p
	}
	s.last = p
	return p, !known && len(s.places) == nearlyFull
}

// take moves what was counted into counts, under the minute that begins at at. Places are not used again: a limit may
// know one.
func (t *tally) take(at int64, into func(Count)) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		full := s.page
		s.page = s.spare
		s.mu.Unlock()
		full.places[ID{}] = full.other
		for _, p := range full.places {
			if c := p.take(at); c.Allowed+c.Denied+c.Cost > 0 {
				into(c)
			}
		}
		clear(full.places)
		s.spare = page{places: full.places, other: new(place)}
	}
}
