package alerts

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// countParts is into how many parts the time of a threshold (Rule.Within) is divided. Denials are summed per part, so a
// count has a bounded size. A part is dropped when its last event is too old; until then its older events count for up to
// one part's length too long, so an alert may come early, but is never missed, unless an event comes after one that is newer
// by more than all of that time.
const countParts = 60

// maxClockAhead is how far, in milliseconds, the time of an event may be ahead of the store's clock.
const maxClockAhead = 60_000

// count is the state of a group without an open alert: its denials that are recent enough to count for the threshold.
// Events are counted at their own time, so a backlog counts as it would have counted live.
type count struct {
	Parts []part `json:"parts,omitempty"`
}

// part sums the events of one part. First and Last are the times of its first and last event, in Unix milliseconds.
type part struct {
	First  int64 `json:"first"`
	Last   int64 `json:"last"`
	Denied int64 `json:"denied"`
	Events int64 `json:"events"`
}

func (p *part) add(q part) {
	p.First, p.Last = min(p.First, q.First), max(p.Last, q.Last)
	p.Denied += q.Denied
	p.Events += q.Events
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

// add counts an event, drops parts that are older than within before the newest event, and returns the sum of the others.
// It also drops parts in the future, which were counted while a clock was ahead: compared with them, every event until then
// would be too old to count.
func (c *count) add(e *Event, within time.Duration, now int64) part {
	c.Parts = slices.DeleteFunc(c.Parts, func(p part) bool { return p.Last > now+maxClockAhead })
	width := max(1, within.Milliseconds()/countParts)
	one := part{First: e.Time, Last: e.Time, Denied: e.Denied, Events: 1}
	i := slices.IndexFunc(c.Parts, func(p part) bool { return p.First/width >= e.Time/width })
	switch {
	case i < 0:
		c.Parts = append(c.Parts, one)
	case c.Parts[i].First/width == e.Time/width:
		c.Parts[i].add(one)
	default:
		c.Parts = slices.Insert(c.Parts, i, one)
	}
	newest := c.Parts[len(c.Parts)-1].Last
	c.Parts = slices.DeleteFunc(c.Parts, func(p part) bool { return p.Last <= newest-within.Milliseconds() })
	return c.sum()
}

func (c *count) sum() (all part) {
	for i, p := range c.Parts {
		if i == 0 {
			all = p
			continue
		}
		all.add(p)
	}
	return all
}
