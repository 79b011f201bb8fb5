package usage

import (
	"cmp"
	"hash/maphash"
	"slices"
	"time"
)

// cardinality bounds how many ids are counted by themselves in an hour, and so how many rows of
// usage an hour adds. Keys may be made up by anybody, so the busiest are preferred.
type cardinality struct {
	most int
	hour int64
	seed maphash.Seed
	// seen are the hashes of the ids that are counted by themselves in this hour. An id whose hash is
	// that of another one is counted by itself too.
	seen map[uint64]struct{}
}

func newCardinality(most int) *cardinality {
	return &cardinality{most: most, seed: maphash.MakeSeed(), seen: make(map[uint64]struct{})}
}

// limit sums up the counts of ids for which there is no room in one count without id, and returns
// it behind the others, in the slice that it was given. All counts are of the minute that begins at
// at; each id comes once.
func (c *cardinality) limit(counts []Count, at int64, now time.Time) []Count {
	if hour := at - at%time.Hour.Milliseconds(); hour != c.hour {
		c.hour = hour
		clear(c.seen)
	}
	c.admit(counts, c.room(now))
	other, kept := Count{At: at}, counts[:0]
	for _, n := range counts {
		if c.has(&n.ID) {
			kept = append(kept, n)
		} else {
			other.add(&n)
		}
	}
	if len(kept) < len(counts) {
		kept = append(kept, other)
	}
	clear(counts[len(kept):])
	return kept
}

// room is how many more ids may be admitted now. A quarter of the hour's is kept for ids that become
// busy later, evenly.
func (c *cardinality) room(now time.Time) int {
	late := c.most / 4
	const hour = int64(time.Hour / time.Millisecond)
	elapsed := min(max(now.UnixMilli()-c.hour, 0), hour)
	return max(c.most-late+int(int64(late)*elapsed/hour)-len(c.seen), 0)
}

// admit admits the ids that are new in this hour, or the busiest of them if there are more than room.
func (c *cardinality) admit(counts []Count, room int) {
	var fresh []*Count
	for i := range counts {
		if n := &counts[i]; n.ID != (ID{}) && !c.has(&n.ID) {
			fresh = append(fresh, n)
		}
	}
	if len(fresh) > room {
		slices.SortFunc(fresh, func(a, b *Count) int {
			return cmp.Or(cmp.Compare(b.Allowed+b.Denied, a.Allowed+a.Denied), cmp.Compare(b.Cost, a.Cost))
		})
		fresh = fresh[:room]
	}
	for _, n := range fresh {
		c.seen[maphash.Comparable(c.seed, n.ID)] = struct{}{}
	}
}

func (c *cardinality) has(id *ID) bool {
	_, ok := c.seen[maphash.Comparable(c.seed, *id)]
	return ok
}
