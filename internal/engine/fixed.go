package engine

import "encoding/binary"

// fixedWindow counts the charges of one window [begin, end).
type fixedWindow struct {
	begin, end, count int64
	// last is the latest time that the counter has seen.
	last int64
}

func (f *fixedWindow) sameDefinition(l *Limit) bool {
	begin, end := l.span(f.begin)
	return begin == f.begin && end == f.end
}

func (f *fixedWindow) start(l *Limit, now int64) {
	f.begin, f.end = l.span(now)
	f.count, f.last = 0, now
}

func (f *fixedWindow) advance(l *Limit, now int64) {
	f.last = max(f.last, now)
	if f.ended(l, now) {
		f.start(l, f.last)
	}
}

// ended reports whether a charge at now begins another window; last is never past the end of its
// own. A window from its first use has not begun until something is charged to it.
func (f *fixedWindow) ended(l *Limit, now int64) bool {
	return now >= f.end || l.FirstUse && f.count == 0
}

func (f *fixedWindow) moment() int64 { return f.last }

func (f *fixedWindow) used() int64 { return f.count }

func (f *fixedWindow) charge(cost int64) { f.count = min(f.count+cost, maxUsed) }

func (f *fixedWindow) refund(cost int64) { f.count = max(0, f.count-cost) }

func (f *fixedWindow) uncharge(cost, at int64) {
	if at >= f.begin && at < f.end {
		f.refund(cost)
	}
}

func (f *fixedWindow) freeAt() int64 {
	if f.count == 0 {
		return 0
	}
	return f.end
}

func (f *fixedWindow) fitsAt(_, _ int64) int64 { return f.end }

func (f *fixedWindow) steadyUntil() int64 { return f.end - 1 }

func (f *fixedWindow) append(b []byte) []byte {
	b = binary.AppendVarint(b, f.begin)
	b = binary.AppendVarint(b, f.end-f.begin)
	b = binary.AppendVarint(b, f.count)
	return binary.AppendVarint(b, f.last-f.begin)
}

func (f *fixedWindow) decode(d *decoder) {
	f.begin = d.between(-farFuture, lastMoment)
	f.end = f.begin + d.between(1, MaxWindow.Milliseconds())
	f.count = d.between(0, maxUsed)
	f.last = f.begin + d.between(0, min(f.end-1, lastMoment)-f.begin)
}
