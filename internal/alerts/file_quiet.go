package alerts

import (
	"slices"
	"strings"
	"time"

	"github.com/seed503877ad/limits/internal/week"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

const maxQuiet = 32

// quiet compiles the quiet hours of a rule.
func (c *fileCompiler) quiet(r *Rule, list []FileQuiet, path string) {
	if len(list) > maxQuiet {
		c.Add(path, "has %d entries; want at most %d", len(list), maxQuiet)
		return
	}
	for i := range list {
		at := yamlfile.Index(path, i)
		q := c.quietHours(&list[i], at)
		for j := range r.Quiet {
			switch o := &r.Quiet[j]; {
			case o.zone.String() != q.zone.String():
			case o.spans.Covers(q.spans):
				c.Add(at, "is already covered by quietHours[%d]; remove it", j)
			case q.spans.Covers(o.spans):
				c.Add(yamlfile.Index(path, j), "is already covered by quietHours[%d]; remove it", i)
			}
		}
		r.Quiet = append(r.Quiet, q)
	}
	if c.Has(path) {
		return
	}
	// Check in winter and in summer, because the zone's offset may differ.
	for _, month := range []time.Month{time.January, time.July} {
		from := time.Date(2026, month, 15, 12, 0, 0, 0, time.UTC)
		if until, _ := r.quietUntil(from); until.Sub(from) >= maxQuietSearch {
			c.Add(path, "cover the whole week, so no alert of the rule would ever be sent; leave some hours free, or remove the rule")
			return
		}
	}
}

func (c *fileCompiler) quietHours(f *FileQuiet, path string) QuietHours {
	q := QuietHours{zone: c.Zone(f.Timezone, path+".timezone")}
	days := c.days(f.Days, path+".days")
	if from, to, ok := c.TimesOfDay(f.From, f.To, path); ok {
		q.spans = week.New(days, from, to)
	}
	return q
}

// days reads names of days, and ranges such as mon-fri, as days since Sunday.
func (c *fileCompiler) days(names []string, path string) (days []int) {
	if len(names) == 0 {
		return []int{0, 1, 2, 3, 4, 5, 6}
	}
	for i, name := range names {
		at := yamlfile.Index(path, i)
		begin, end, isRange := strings.Cut(name, "-")
		if !isRange {
			end = begin
		}
		from, to := slices.Index(week.Days, begin), slices.Index(week.Days, end)
		if from < 0 || to < 0 || isRange && from == to {
			c.Add(at, "unknown day %s; want mon, tue, wed, thu, fri, sat, sun, or a range such as mon-fri", yamlfile.Quote(name))
			continue
		}
		for d := from; ; d = (d + 1) % 7 {
			if slices.Contains(days, d) {
				c.Add(at, "%s is given twice; remove one", week.Days[d])
				break
			}
			if days = append(days, d); d == to {
				break
			}
		}
	}
	return days
}
