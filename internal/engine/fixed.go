package engine

import "encoding/binary"

// fixedWindow counts the charges of one window [begin, end).
type fixedWindow struct {
	begin, end, count int64
}

func (f *fixedWindow) same(l *Limit) bool {
	if l.FirstUse {
		_, end := l.span(f.begin)
		return end == f.end
	}
	begin, end := l.span(f.begin)
	return begin == f.begin && end == f.end
}

func (f *fixedWindow) start(l *Limit, now int64) {
	f.begin, f.end = l.span(now)
	f.count = 0
}

func (f *fixedWindow) advance(l *Limit, now int64) {
	// A window anchored at its first use has not begun while nothing is charged to it.
	if now >= f.end || l.FirstUse && f.count == 0 {
		f.start(l, max(now, f.begin))
	}
}

func (f *fixedWindow) used() int64 { return f.count }

func (f *fixedWindow) charge(_ *Limit, _, cost int64) { f.count = min(f.count+cost, maxUsed) }

func (f *fixedWindow) refund(cost int64) { f.count = max(0, f.count-cost) }

func (f *fixedWindow) freeAt() int64 {
	if f.count == 0 {
		return 0
	}
	return f.end
}

func (f *fixedWindow) fitsAt(_, _ int64) int64 { return f.end }

func (f *fixedWindow) append(b []byte) []byte {
	b = binary.AppendVarint(b, f.begin)
	b = binary.AppendVarint(b, f.end)
	return binary.AppendVarint(b, f.count)
}

func (f *fixedWindow) decode(d *decoder) { f.begin, f.end, f.count = d.int(), d.int(), d.int() }
