package policy

import (
	"fmt"
	"slices"

	"github.com/seed503877ad/limits/internal/week"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// slot is a compiled entry of a schedule: the times of the week at which it holds, and its text for people.
type slot struct {
	week.Spans
	text string
}

// compileSlot compiles the times of an entry of a schedule.
func (c *compiler) compileSlot(s *Slot, path string) slot {
	from, to, ok := c.TimesOfDay(s.From, s.To, path)
	days := c.days(s.Days, path+".days")
	if !ok {
		return slot{}
	}
	out := slot{text: s.From + "–" + s.To, Spans: week.New(days, from, to)}
	if len(s.Days) > 0 {
		out.text += fmt.Sprint(" ", s.Days)
	}
	return out
}

func (c *compiler) days(names []string, path string) (days []int) {
	if len(names) == 0 {
		return []int{0, 1, 2, 3, 4, 5, 6}
	}
	for i, name := range names {
		d := slices.Index(week.Days, name)
		switch {
		case d < 0:
			c.Add(yamlfile.Index(path, i), "unknown day %s; want mon, tue, wed, thu, fri, sat, sun", yamlfile.Quote(name))
		case slices.Contains(days, d):
			c.Add(yamlfile.Index(path, i), "%s is given twice; remove one", name)
		default:
			days = append(days, d)
		}
	}
	return days
}

// schedule compiles the times of a policy's schedule.
func (c *compiler) schedule(p *policy, path string) {
	for i := range p.spec.Schedule {
		s, at := &p.spec.Schedule[i], yamlfile.Index(path+".schedule", i)
		zone := c.Zone(s.Timezone, at+".timezone")
		if i == 0 {
			p.zone = zone
		} else if zone.String() != p.zone.String() {
			c.Add(at+".timezone", "%s differs from that of the first entry, %s; use one timezone in all entries of a schedule", zone, p.zone)
		}
		c.checkFactor(s, at)
		made := c.compileSlot(s, at)
		for j := range p.slots {
			if made.Overlaps(p.slots[j].Spans) {
				c.Add(at, "overlaps schedule[%d], %s; end one entry where the other begins", j, p.slots[j].text)
			}
		}
		p.slots = append(p.slots, made)
	}
}

func (c *compiler) checkFactor(s *Slot, path string) {
	switch {
	case c.Given(path+".factor") && !(s.Factor > 0 && s.Factor <= 1000):
		c.Add(path+".factor", "%v is out of range; want above 0, up to 1000", s.Factor)
	case s.Factor == 0 && len(s.Limits) == 0 && !c.Reported(path+".limits"):
		c.Add(path, "changes nothing; give it a factor or limits")
	}
}
