package policy

import (
	"fmt"
	"slices"
	"time"
)

// slot is an entry of a schedule as spans of the week, in minutes of local time from Sunday 00:00.
type slot struct {
	text  string
	spans [][2]int
}

const (
	dayMinutes  = 24 * 60
	weekMinutes = 7 * dayMinutes
)

var dayNames = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

func (s *slot) holds(minute int) bool {
	for _, span := range s.spans {
		if span[0] <= minute && minute < span[1] {
			return true
		}
	}
	return false
}

// overlaps tells whether there is a minute in both.
func (s *slot) overlaps(t *slot) bool {
	for _, a := range s.spans {
		for _, b := range t.spans {
			if a[0] < b[1] && b[0] < a[1] {
				return true
			}
		}
	}
	return false
}

// minuteOfWeek is what the local clock and calendar show. A clock change moves a slot with it.
func minuteOfWeek(t time.Time, zone *time.Location) int {
	t = t.In(zone)
	return int(t.Weekday())*dayMinutes + t.Hour()*60 + t.Minute()
}

// slot reads an entry of a schedule.
func (c *compiler) slot(s *Slot, path string) slot {
	from, okFrom := c.timeOfDay(s.From, path+".from", dayMinutes-1)
	to, okTo := c.timeOfDay(s.To, path+".to", dayMinutes)
	days := c.days(s.Days, path+".days")
	if !okFrom || !okTo {
		return slot{}
	}
	if from == to {
		c.add(path, "from and to are both %s; for the whole day want from 00:00 to 24:00", s.From)
		return slot{}
	}
	if to < from {
		to += dayMinutes
	}
	out := slot{text: s.From + "–" + s.To}
	if len(s.Days) > 0 {
		out.text += fmt.Sprint(" ", s.Days)
	}
	for _, d := range days {
		begin, end := d*dayMinutes+from, d*dayMinutes+to
		out.spans = append(out.spans, [2]int{begin, min(end, weekMinutes)})
		if end > weekMinutes {
			out.spans = append(out.spans, [2]int{0, end - weekMinutes})
		}
	}
	return out
}

// timeOfDay reads "HH:MM" as minutes.
func (c *compiler) timeOfDay(s, path string, most int) (int, bool) {
	if s == "" {
		c.add(path, `is missing; want a time of day such as "22:00"`)
		return 0, false
	}
	var h, m int
	ok := len(s) == 5 && s[2] == ':'
	for _, i := range [...]int{0, 1, 3, 4} {
		ok = ok && s[i] >= '0' && s[i] <= '9'
	}
	if ok {
		h, m = int(s[0]-'0')*10+int(s[1]-'0'), int(s[3]-'0')*10+int(s[4]-'0')
	}
	if at := h*60 + m; ok && m < 60 && at <= most {
		return at, true
	}
	c.add(path, `%s is no time of day; want "HH:MM", 00:00 to %02d:%02d`, quote(s), most/60, most%60)
	return 0, false
}

func (c *compiler) days(names []string, path string) (days []int) {
	if len(names) == 0 {
		return []int{0, 1, 2, 3, 4, 5, 6}
	}
	for i, name := range names {
		d := slices.Index(dayNames, name)
		switch {
		case d < 0:
			c.add(index(path, i), "unknown day %s; want mon, tue, wed, thu, fri, sat, sun", quote(name))
		case slices.Contains(days, d):
			c.add(index(path, i), "%s is given twice; remove one", name)
		default:
			days = append(days, d)
		}
	}
	return days
}

// schedule reads the times of a policy's schedule.
func (c *compiler) schedule(p *policy, spec *Policy, path string) {
	for i := range spec.Schedule {
		s, at := &spec.Schedule[i], index(path+".schedule", i)
		zone := c.zone(s.Timezone, at+".timezone")
		if i == 0 {
			p.zone = zone
		} else if zone.String() != p.zone.String() {
			c.add(at+".timezone", "%s is not the zone of the first entry, %s; give all entries of a schedule one timezone", zone, p.zone)
		}
		c.factor(s, at)
		made := c.slot(s, at)
		for j := range p.slots {
			if made.overlaps(&p.slots[j]) {
				c.add(at, "overlaps schedule[%d], %s; let one entry end where the other begins", j, p.slots[j].text)
			}
		}
		p.slots = append(p.slots, made)
	}
}

func (c *compiler) factor(s *Slot, path string) {
	switch {
	case c.given(path+".factor") && !(s.Factor > 0 && s.Factor <= 1000):
		c.add(path+".factor", "%v is out of range; want above 0, up to 1000", s.Factor)
	case s.Factor == 0 && len(s.Limits) == 0 && !c.told[path+".limits"]:
		c.add(path, "changes nothing; give it a factor or limits")
	}
}
