package engine

import (
	"encoding/binary"
	"slices"
)

// subBuckets is the number of sub-buckets in a sliding window.
const subBuckets = 60

// slidingWindow counts charges in sub-buckets of width milliseconds, aligned to the epoch. It is
// conservative: a bucket counts until its end has left the window, so a charge counts for the whole
// window and at most one width longer.
type slidingWindow struct {
	window, width int64
	// last is the latest time that the counter has seen.
	last int64
	// buckets holds the buckets with charges, oldest first; sum is their cost.
	buckets []subBucket
	sum     int64
}

type subBucket struct {
	// index is the bucket's start, in widths since the epoch.
	index, cost int64
}

func (s *slidingWindow) sameDefinition(l *Limit) bool { return s.window == l.Window.Millis }

func (s *slidingWindow) start(l *Limit, now int64) {
	s.window = l.Window.Millis
	s.width = subBucketWidth(s.window)
	s.last = now
	s.buckets = s.buckets[:0]
	s.sum = 0
}

func subBucketWidth(window int64) int64 { return (window + subBuckets - 1) / subBuckets }

// leavesAt is when a bucket no longer counts.
func (s *slidingWindow) leavesAt(b subBucket) int64 { return (b.index+1)*s.width + s.window }

// advance does not write into buckets, so a shallow copy of the state may be advanced.
func (s *slidingWindow) advance(_ *Limit, now int64) {
	s.last = max(s.last, now)
	gone := 0
	for gone < len(s.buckets) && s.leavesAt(s.buckets[gone]) <= s.last {
		s.sum -= s.buckets[gone].cost
		gone++
	}
	s.buckets = s.buckets[gone:]
}

func (s *slidingWindow) moment() int64 { return s.last }

func (s *slidingWindow) used() int64 { return s.sum }

func (s *slidingWindow) charge(cost int64) {
	cost = min(cost, maxUsed-s.sum)
	if cost <= 0 {
		return
	}
	s.sum += cost
	index := floorDiv(s.last, s.width)
	if n := len(s.buckets); n > 0 && s.buckets[n-1].index == index {
		s.buckets[n-1].cost += cost
		return
	}
	s.buckets = append(s.buckets, subBucket{index, cost})
}

// refund takes from the oldest charges. Whichever charge is meant, what is left then counts at
// least as long as it should.
func (s *slidingWindow) refund(cost int64) {
	cost = min(cost, s.sum)
	s.sum -= cost
	for cost > 0 {
		if s.buckets[0].cost > cost {
			s.buckets[0].cost -= cost
			return
		}
		cost -= s.buckets[0].cost
		s.buckets = s.buckets[1:]
	}
}

// uncharge takes from the bucket that was charged, not from the oldest. Otherwise leases that are
// granted and given back again and again would make old charges young.
func (s *slidingWindow) uncharge(cost, at int64) {
	index := floorDiv(at, s.width)
	for i := len(s.buckets) - 1; i >= 0 && s.buckets[i].index >= index; i-- {
		b := &s.buckets[i]
		if b.index != index {
			continue
		}
		cost = min(cost, b.cost)
		s.sum -= cost
		if b.cost -= cost; b.cost == 0 {
			s.buckets = slices.Delete(s.buckets, i, i+1)
		}
	}
}

// giveBackLike makes of the buckets that have not left by the moment of later those of later, of
// which given was given back.
func (s *slidingWindow) giveBackLike(later *slidingWindow, given int64) {
	gone := 0
	for gone < len(s.buckets) && s.leavesAt(s.buckets[gone]) <= later.last {
		gone++
	}
	s.buckets = append(s.buckets[:gone], later.buckets...)
	s.sum -= given
}

func (s *slidingWindow) freeAt() int64 {
	if len(s.buckets) == 0 {
		return 0
	}
	return s.leavesAt(s.buckets[len(s.buckets)-1])
}

func (s *slidingWindow) fitsAt(capacity, cost int64) int64 {
	excess := s.sum + cost - capacity
	for _, b := range s.buckets {
		if excess -= b.cost; excess <= 0 {
			return s.leavesAt(b)
		}
	}
	return s.freeAt()
}

func (s *slidingWindow) steadyUntil() int64 { return (floorDiv(s.last, s.width)+1)*s.width - 1 }

func (s *slidingWindow) append(b []byte) []byte {
	b = binary.AppendVarint(b, s.window)
	b = binary.AppendVarint(b, int64(len(s.buckets)))
	var index int64
	for _, bucket := range s.buckets {
		b = binary.AppendVarint(b, bucket.index-index)
		b = binary.AppendVarint(b, bucket.cost)
		index = bucket.index
	}
	return binary.AppendVarint(b, s.last-index*s.width)
}

func (s *slidingWindow) decode(d *decoder) {
	s.window = d.between(MinWindow.Milliseconds(), MaxWindow.Milliseconds())
	n := d.between(0, subBuckets+1)
	if d.bad {
		return
	}
	s.width = subBucketWidth(s.window)
	s.buckets = slices.Grow(s.buckets[:0], int(n)+1)
	var index int64
	far := farFuture / s.width
	least := -far
	for range n {
		index += d.between(least-index, far-index)
		least = index + 1
		cost := d.between(1, maxUsed-s.sum)
		s.buckets = append(s.buckets, subBucket{index, cost})
		s.sum += cost
	}
	start := index * s.width
	s.last = start + d.between(-farFuture-start, lastMoment-start)
	if n > 0 && (s.last < start || s.last >= s.leavesAt(s.buckets[0])) {
		d.bad = true
	}
}
