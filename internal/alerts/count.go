package alerts

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// spans is into how many parts the time of a threshold is cut: denials are counted by the part they fall in, so a count
// takes bounded room, and what leaves it leaves with the last of its part. It may so count a part too long, and is not missed.
const spans = 60

// maxAhead is by how much, in milliseconds, the clock by which events are dated may be ahead of the store's.
const maxAhead = 60_000

// count is the state of a group that has no open alert: what of its denials is not too old to reach the threshold. Events
// are put where their own time says, so a backlog counts as it would have counted live.
type count struct {
	Parts []part `json:"parts,omitempty"`
}

// part is what fell into one span. Times are those of its first and last event, in Unix milliseconds.
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

// add counts an event and gives the sum of the parts that reach into that time before the newest. What is dated after now was
// counted while a clock was ahead; it is dropped, or until then every event would be too old to count beside it.
func (c *count) add(e *Event, within time.Duration, now int64) part {
	c.Parts = slices.DeleteFunc(c.Parts, func(p part) bool { return p.Last > now+maxAhead })
	width := max(1, within.Milliseconds()/spans)
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
