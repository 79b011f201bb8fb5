package bench

import (
	"fmt"
	"html"
	"slices"
	"strings"
)

// chart draws answers per second with Request of nats.go as bars: a panel for each load, with the minimum and the maximum as a line over the bar.
func (r *results) chart() string {
	const (
		width, label, right = 920, 200, 90
		thick, gap, head    = 16, 6, 30
		top, bottom         = 44, 46
	)
	scale := 1.0
	var panels []int
	for l := range loads {
		if loads[l].latency {
			continue
		}
		panels = append(panels, l)
		for _, row := range r.bars(l) {
			scale = max(scale, slices.Max(append(row.values, 0)))
		}
	}
	x := func(v float64) float64 { return label + v/scale*(width-label-right) }
	panel := head + (1+len(contenders))*(thick+gap) + 8
	height := top + len(panels)*panel + bottom

	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&s, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	quick := ""
	if r.rounds < 3 {
		quick = " (a quick run)"
	}
	fmt.Fprintf(&s, `<text x="16" y="26" font-size="17" font-weight="bold">Answers a second, everything on one machine%s</text>`+"\n", quick)
	step := 10_000.0
	for scale/step > 9 {
		step *= 2
	}
	for v := 0.0; v <= scale; v += step {
		fmt.Fprintf(&s, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#ddd"/>`, x(v), x(v), top, height-bottom)
		fmt.Fprintf(&s, `<text x="%.1f" y="%d" text-anchor="middle" fill="#555">%.0fk</text>`+"\n", x(v), height-bottom+16, v/1000)
	}
	fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="middle" fill="#555">answers per second (median of %d; thin line: least to most)</text>`+"\n",
		(label+width-right)/2, height-8, r.rounds)
	for i, l := range panels {
		y := top + i*panel
		fmt.Fprintf(&s, `<text x="16" y="%d" font-weight="bold">%s</text>`+"\n", y+20, html.EscapeString(loads[l].name))
		for n, row := range r.bars(l) {
			if len(row.values) == 0 {
				continue
			}
			at, m := y+head+n*(thick+gap), median(row.values)
			least, most := slices.Min(row.values), slices.Max(row.values)
			fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="end">%s</text>`, label-8, at+thick-4, html.EscapeString(row.name))
			fmt.Fprintf(&s, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, label, at, x(m)-label, thick, color(n, row.name))
			fmt.Fprintf(&s, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#000"/>`, x(least), x(most), at+thick/2, at+thick/2)
			fmt.Fprintf(&s, `<text x="%.1f" y="%d">%s · × %s</text>`+"\n", x(most)+6, at+thick-4, thousands(m), times(row.ratio))
		}
	}
	s.WriteString("</svg>\n")
	return s.String()
}

// color is that of the nth bar of a panel.
func color(n int, name string) string {
	switch {
	case n == 0:
		return "#718096"
	case strings.HasPrefix(name, "system "):
		return "#dd6b20"
	}
	return "#2b6cb0" // the limiter
}

// bar is a bar of the chart.
type bar struct {
	name   string
	values []float64
	ratio  float64
}

func (r *results) bars(load int) []bar {
	q := asked{r, byRequest}
	all := []bar{{"ceiling", q.ceilings(load, perSecond), 1}}
	for c := range contenders {
		all = append(all, bar{contenders[c].name, q.values(load, c, perSecond), median(q.ratios(load, c, perSecond))})
	}
	return all
}
