package engine

// demandSpan is the length of one span of demand, in milliseconds.
const demandSpan = 250

// demand counts the cost asked for in the current span and in the ones before it, the latest first.
type demand struct {
	span, current int64
	previous      [4]int64
}

func (d *demand) add(now, cost int64) {
	d.advance(now)
	d.current = min(d.current+cost, MaxAmount)
}

// subtract undoes an add of just before.
func (d *demand) subtract(cost int64) { d.current = max(0, d.current-cost) }

func (d *demand) advance(now int64) {
	span := floorDiv(now, demandSpan)
	// A step of one span back comes from two readings of one clock. A larger one means that the
	// clock was set back: start again, or old demand would add up with the new.
	if span-d.span > int64(len(d.previous)) || d.span-span > 1 {
		*d = demand{span: span}
	}
	for ; d.span < span; d.span++ {
		copy(d.previous[1:], d.previous[:])
		d.previous[0], d.current = d.current, 0
	}
}

// recent is the cost asked for in the last demandSpan, or the average of the last four if that is
// more, since for a key that is rarely asked for the last span often has none. Of the oldest span
// only a part counts, as if its requests had come evenly.
func (d *demand) recent(now int64) int64 {
	d.advance(now)
	left := demandSpan - min(max(0, now-d.span*demandSpan), demandSpan)
	part := func(of int64) int64 { return (of*left + demandSpan/2) / demandSpan }
	last := d.current + part(d.previous[0])
	four := d.current + d.previous[0] + d.previous[1] + d.previous[2] + part(d.previous[3])
	return max(last, (four+2)/4)
}
