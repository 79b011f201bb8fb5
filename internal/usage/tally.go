package usage

import (
	"hash/maphash"
	"sync"

	"github.com/seed503877ad/limits/internal/engine"
)

const (
	tallyShards = 16
	// shardIDs bounds the ids that one shard counts between two writes. Further ones are counted together.
	shardIDs = 4096
	// nearlyFull is how many ids of one shard are a reason to write at once.
	nearlyFull = shardIDs * 3 / 4
)

// tally counts decisions. What was counted is taken from a shard by exchanging two slices, so that whoever counts waits
// for no more than that, and an id that was counted before takes no memory.
type tally struct {
	seed   maphash.Seed
	shards [tallyShards]tallyShard
	// full is told when a shard is nearly full.
	full chan struct{}
}

type tallyShard struct {
	mu sync.Mutex
	page
	// other counts what finds no room.
	other Count
	spare page
}

// page is counts, and where each id has its own.
type page struct {
	places map[ID]int32
	counts []Count
	// last is the place of the id that was counted last, which often is the next, too.
	last int
}

func newTally() *tally {
	t := &tally{seed: maphash.MakeSeed(), full: make(chan struct{}, 1)}
	for i := range t.shards {
		s := &t.shards[i]
		s.places, s.spare.places = make(map[ID]int32), make(map[ID]int32)
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
		if i < len(r.Limits) {
			c.User = r.Limits[i].User
		}
		if !counted(r, d, i, c.Denied > 0) {
			t.count(&c)
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

func (t *tally) count(c *Count) {
	s := &t.shards[maphash.String(t.seed, c.Key)%tallyShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	to, full := s.find(&c.ID)
	if full {
		t.tellFull()
	}
	to.Allowed += c.Allowed
	to.Denied += c.Denied
	to.Cost += c.Cost
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
		n += len(s.counts)
		s.mu.Unlock()
	}
	return n
}

// find gives where an id is counted, and whether there is little room left with it.
func (s *tallyShard) find(id *ID) (to *Count, full bool) {
	if s.last < len(s.counts) && s.counts[s.last].ID == *id {
		return &s.counts[s.last], false
	}
	place, known := s.places[*id]
	if !known {
		if len(s.counts) >= shardIDs {
			return &s.other, false
		}
		place = int32(len(s.counts))
		s.places[*id] = place
		s.counts = append(s.counts, Count{ID: *id})
	}
	s.last = int(place)
	return &s.counts[place], !known && len(s.counts) == nearlyFull
}

// take moves what was counted into counts, under the minute that begins at at.
func (t *tally) take(at int64, into func(Count)) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		full, other := s.page, s.other
		s.page, s.other = s.spare, Count{}
		s.mu.Unlock()
		for _, c := range append(full.counts, other) {
			if c.Allowed+c.Denied > 0 {
				c.At = at
				into(c)
			}
		}
		clear(full.places)
		clear(full.counts)
		s.spare = page{full.places, full.counts[:0], 0}
	}
}
