package alerts

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// countParts is into how many parts the time of a threshold (Rule.Within) is divided. Denials are summed per part, so a
// count has a bounded size. A part counts as a whole, so a denial may count for up to one part's length too long, or two if
// events come out of the order of their times: an alert may come early, but is never missed while its parts are kept.
const countParts = 60

// lateKept is for how long after its last event was taken a part is kept at least, because others of its time may come late:
// events are given again 30 seconds after an alerter was killed, and relays publish an outbox together. Meanwhile any number
// of newer events may come, so this is by the store's clock. Without late ones, a time of ten minutes keeps parts no longer.
const lateKept = 5 * time.Minute

// maxParts bounds the parts of a count. Of those that are kept for late events only, the one that was added to the longest
// time ago is dropped first.
const maxParts = 4 * countParts

// maxClockAhead is how far, in milliseconds, the time of an event may be ahead of the store's clock.
const maxClockAhead = 60_000

// count is the state of a group without an open alert: its denials that are recent enough to count for the threshold.
// Events are counted at their own time, so a backlog counts as it would have counted live.
type count struct {
	Parts []part `json:"parts,omitempty"`
}

// part sums the events of one part. Times are Unix milliseconds.
type part struct {
	// First and Last are the times of its first and last event.
	First  int64 `json:"first"`
	Last   int64 `json:"last"`
	Denied int64 `json:"denied"`
	Events int64 `json:"events"`
	// KeptUntil is when the part may be dropped that is too old to count with the newest event; 0 is at once.
	KeptUntil int64 `json:"keptUntil,omitempty"`
}

func (p *part) add(q part) {
	p.First, p.Last = min(p.First, q.First), max(p.Last, q.Last)
	p.Denied += q.Denied
	p.Events += q.Events
	p.KeptUntil = max(p.KeptUntil, q.KeptUntil)
}

func readCount(state json.RawMessage) (c count, err error) {
	if len(state) == 0 {
		return c, nil
	}
	if err := json.Unmarshal(state, &c); err != nil {
		return c, fmt.Errorf("read the count of a group: %w", err)
	}
	return c, nil
}

// add counts an event, and returns the sum of those parts within the time of the threshold that have most denials, one of
// them the event's. It then drops the parts that are not needed any more; keep is how long others may come late.
//
// It also drops parts in the future, which were counted while a clock was ahead: compared with them, every event until then
// would be too old to keep.
func (c *count) add(e *Event, within time.Duration, now int64, keep time.Duration) part {
	c.Parts = slices.DeleteFunc(c.Parts, func(p part) bool { return p.Last > now+maxClockAhead })
	width := max(1, within.Milliseconds()/countParts)
	one := part{First: e.Time, Last: e.Time, Denied: e.Denied, Events: 1}
	if until := now + keep.Milliseconds(); until > e.Time+within.Milliseconds()-maxClockAhead {
		one.KeptUntil = until
	}
	i := slices.IndexFunc(c.Parts, func(p part) bool { return p.First/width >= e.Time/width })
	switch {
	case i < 0:
		i = len(c.Parts)
		c.Parts = append(c.Parts, one)
	case c.Parts[i].First/width == e.Time/width:
		c.Parts[i].add(one)
	default:
		c.Parts = slices.Insert(c.Parts, i, one)
	}
	most := c.most(i, e.Time, within.Milliseconds())
	c.drop(within.Milliseconds(), now, keep.Milliseconds())
	return most
}

// most returns the sum of those parts within a time that have most denials, part i with an event at a time among them. The
// last of them is part i or a newer one. If it is part i, the event counts as the last one, as it is unless it comes late.
func (c *count) most(i int, at, within int64) (most part) {
	for last, since := i, at-within; last < len(c.Parts); last++ {
		if last > i {
			if since = c.Parts[last].First - within; since >= at {
				break
			}
		}
		if sum := c.sum(since, last); sum.Denied > most.Denied {
			most = sum
		}
	}
	return most
}

// sum sums the parts up to a last one that have events after a time.
func (c *count) sum(since int64, last int) (all part) {
	for _, p := range c.Parts[:last+1] {
		switch {
		case p.Last <= since:
		case all.Events == 0:
			all = p
		default:
			all.add(p)
		}
	}
	return all
}

// drop drops parts that are too old to count with the newest event, unless they are kept for others that may come late.
func (c *count) drop(within, now, keep int64) {
	newest := c.Parts[len(c.Parts)-1].Last
	old := func(p *part) bool { return p.Last <= newest-within }
	c.Parts = slices.DeleteFunc(c.Parts, func(p part) bool {
		clockWasAhead := p.KeptUntil > now+keep+maxClockAhead
		return old(&p) && (p.KeptUntil <= now || clockWasAhead)
	})
	if len(c.Parts) <= maxParts {
		return
	}
	first := 0
	for i := range c.Parts {
		if p := &c.Parts[i]; old(p) && p.KeptUntil < c.Parts[first].KeptUntil {
			first = i
		}
	}
	c.Parts = slices.Delete(c.Parts, first, first+1)
}
