package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

const (
	// maxUsed caps what records past a limit may add up to, so that no sum overflows and JSON
	// numbers stay exact.
	maxUsed = 1 << 52
	// farFuture caps computed times (about the year 4200): a refill may take longer than any wait.
	farFuture = 1 << 46

	// stateVersion is the latest version of the encoding. Version 1 has no since.
	stateVersion = 2
)

// lastMoment bounds the moment of a stored state, so that a window that begins then ends by
// farFuture under any definition.
var lastMoment = farFuture - MaxWindow.Milliseconds()

// ErrCorrupt says that a stored state cannot be read.
var ErrCorrupt = errors.New("stored state is corrupt")

// State is the state of one counter. The zero State is a counter that was never charged.
//
// advance must be called before anything else: it brings the state to the time and the limit of the
// request. Time never runs backwards for a counter: an earlier time counts as the latest that it
// has seen.
type State struct {
	algorithm Algorithm
	// spec is the hash of the limit that the state was last advanced to; 0 for a new state.
	spec uint64
	// warnedAt and exceededAt are when the last events of the counter were raised, 0 for never.
	// denied counts denials that no event has reported and no worker counts.
	warnedAt, exceededAt, denied int64
	lent                         lent
	// since is when the counter was begun, or its use was last carried over to another definition.
	// A charge from before cannot be given back. 0 if that is not known.
	since int64
	// until is not stored. A decision at an estimated time is made somewhere between now and until; 0
	// if it is made at now.
	until int64

	fixed   fixedWindow
	sliding slidingWindow
	bucket  tokenBucket
}

// counting is the state and the arithmetic of one algorithm. Times are Unix milliseconds.
type counting interface {
	// sameDefinition reports whether the state can be kept for l: it was counted under the same
	// definition, or one that differs only in amounts that need no conversion.
	sameDefinition(l *Limit) bool
	// start makes it a counter of l with nothing used.
	start(l *Limit, now int64)
	// advance brings it to now.
	advance(l *Limit, now int64)
	// moment is the latest time that it was brought to.
	moment() int64
	// used is the cost that counts against the limit now; it may pass the limit after a record.
	used() int64
	// charge adds cost, whether it fits or not; refund takes cost back, at most all that is used.
	charge(cost int64)
	refund(cost int64)
	// uncharge takes back a charge that was made at a moment, as far as it still counts.
	uncharge(cost, at int64)
	// freeAt is when nothing will be used; now or earlier if nothing is.
	freeAt() int64
	// fitsAt is when cost will fit into capacity. cost must be at most capacity, and not fit now.
	fitsAt(capacity, cost int64) int64
	// steadyUntil is the last moment at which a charge counts the same as now.
	steadyUntil() int64
	// append and decode write and read the algorithm's part of an encoded state.
	append(b []byte) []byte
	decode(d *decoder)
}

// clone returns a copy that shares no memory with the state.
func (s *State) clone() State {
	c := *s
	c.sliding.buckets = slices.Clone(s.sliding.buckets)
	return c
}

func (s *State) counting() counting {
	switch s.algorithm {
	case FixedWindow:
		return &s.fixed
	case TokenBucket:
		return &s.bucket
	default:
		return &s.sliding
	}
}

// advance brings the state to now under l. If the definition has changed, what was used is carried
// over as charged at the state's moment. No charge is later than that, so all of it counts for long
// enough. And the moment stays the same until a request charges, so what a denial says of a retry
// holds.
func (s *State) advance(l *Limit, now int64) {
	s.redefine(l, now)
	var missing int64
	if s.algorithm == TokenBucket && now < s.until {
		missing = s.bucket.holdFull(s.until)
	}
	s.trimLent()
	s.bucket.notYet += missing
}

func (s *State) trimLent() {
	if s.lent.newer.amount > 0 {
		s.lent.trim(s.counting().moment(), s.counting().used())
	}
}

// sameWindow reports whether l counts in the window of the state, whatever its amount: then nothing has to be carried over.
func (s *State) sameWindow(l *Limit) bool {
	return s.algorithm == l.Algorithm && l.Algorithm != TokenBucket && s.counting().sameDefinition(l)
}

// redefine brings the state to now, and to the definition of l if it has another one.
func (s *State) redefine(l *Limit, now int64) {
	spec := l.hash()
	if s.spec == spec {
		s.counting().advance(l, now)
		return
	}
	fresh := s.spec == 0
	s.spec = spec
	same := !fresh && s.algorithm == l.Algorithm && s.counting().sameDefinition(l)
	switch {
	case fresh:
		s.since = max(0, now)
	case !same || s.algorithm == TokenBucket:
		// A second redefinition in one millisecond must still come after all charges.
		s.since = max(now, s.counting().moment(), s.since+1)
	}
	if same {
		s.counting().advance(l, now)
		return
	}
	at := now
	var used int64
	if !fresh {
		used, at = s.counting().used(), s.counting().moment()
	}
	s.algorithm = l.Algorithm
	// For a window from its first use, warnedAt is its last millisecond, which may be in the future.
	s.warnedAt = min(s.warnedAt, max(0, at-1))
	c := s.counting()
	c.start(l, at)
	if s.algorithm == TokenBucket {
		s.bucket.carry(used)
	} else {
		c.charge(used)
	}
	c.advance(l, now)
}

// remaining is the cost that fits now.
func (s *State) remaining(l *Limit) int64 {
	return max(0, l.capacity()-s.counting().used())
}

// resetAt is when the whole limit is free again if nothing more is charged.
func (s *State) resetAt(now int64) int64 {
	return min(max(now, s.counting().freeAt()), farFuture)
}

// retryAfter is the milliseconds until cost fits; 0 if it never does.
func (s *State) retryAfter(l *Limit, now, cost int64) int64 {
	if cost > l.capacity() {
		return 0
	}
	return max(1, min(s.counting().fitsAt(l.capacity(), cost), farFuture)-now)
}

// warn reports whether a charge that left remaining needs a warning, and notes it. A fixed window
// warns once; the other algorithms once in any window's length.
func (s *State) warn(l *Limit, now, remaining int64) bool {
	if remaining > l.Threshold {
		return false
	}
	switch {
	case l.FirstUse && s.fixed.last <= s.warnedAt:
		return false
	case l.FirstUse:
		// When all of it is refunded the window begins again, perhaps several times before this one
		// would have ended.
		s.warnedAt = s.fixed.end - 1
	case s.algorithm == FixedWindow && s.warnedAt >= s.fixed.begin:
		return false
	case s.algorithm == FixedWindow:
		s.warnedAt = max(now, s.fixed.begin)
	case s.warnedAt > 0 && max(now-s.warnedAt, s.warnedAt-now) < l.Window.Millis:
		return false
	default:
		s.warnedAt = now
	}
	return true
}

// exceededInterval is the shortest time between two exceeded events of a counter, in milliseconds,
// unless a worker stops.
const exceededInterval = 10_000

// keepUnreported is for how long a counter is kept because of unreported denials, in milliseconds.
// A worker leaves them for the next event if another one has raised the last, and may be killed
// before it reports them.
const keepUnreported = 3_600_000

// exceededDue reports whether a denial at now raises an event at once instead of being counted;
// last is when the last event was raised, 0 for never. A last that is long after now was raised
// before the store's clock was set back.
func exceededDue(last, now int64) bool {
	return last == 0 || max(now-last, last-now) >= exceededInterval
}

// expiresAt is when a store may remove the counter: one window after nothing is used and no event
// or denial has to be remembered. It is rounded up to a grid as coarse as the window (1 minute to 1
// day), because it is in an index and should rarely change.
func (s *State) expiresAt(l *Limit, now int64) int64 {
	grid := min(max(l.Window.Millis, 60_000), 86_400_000)
	at := max(s.resetAt(now)+l.Window.Millis, s.exceededAt+exceededInterval)
	if s.denied > 0 {
		at = max(at, now+keepUnreported)
	}
	return (at + grid - 1) / grid * grid
}

// Append appends the encoded state to b. The zero State is empty.
func (s *State) Append(b []byte) []byte {
	if s.spec == 0 {
		return b
	}
	// Version 1 if that is enough, so that workers of an older release can read it.
	version := byte(1)
	if s.since > 0 {
		version = stateVersion
	}
	b = append(b, version, byte(s.algorithm))
	b = binary.LittleEndian.AppendUint64(b, s.spec)
	b = binary.AppendVarint(b, s.warnedAt)
	b = binary.AppendVarint(b, s.exceededAt)
	b = binary.AppendVarint(b, s.denied)
	if version > 1 {
		b = binary.AppendVarint(b, s.since)
	}
	b = s.counting().append(b)
	return s.lent.append(b)
}

// Decode replaces s with what Append encoded. Empty bytes are a counter that was never charged.
func (s *State) Decode(b []byte) error {
	buckets := s.sliding.buckets[:0]
	*s = State{}
	s.sliding.buckets = buckets
	if len(b) == 0 {
		return nil
	}
	if len(b) < 10 || b[0] < 1 || b[0] > stateVersion || b[1] > byte(TokenBucket) {
		return fmt.Errorf("%w: %d bytes, header % x", ErrCorrupt, len(b), b[:min(len(b), 2)])
	}
	s.algorithm = Algorithm(b[1])
	s.spec = binary.LittleEndian.Uint64(b[2:])
	d := decoder{b: b[10:]}
	s.warnedAt, s.exceededAt = d.between(0, farFuture), d.between(0, farFuture)
	s.denied = d.between(0, maxUsed)
	if b[0] > 1 {
		s.since = d.between(0, farFuture)
	}
	s.counting().decode(&d)
	if len(d.b) > 0 {
		s.lent.decode(&d)
	}
	if d.bad || len(d.b) != 0 || s.spec == 0 {
		return fmt.Errorf("%w: %d bytes of %s", ErrCorrupt, len(b), s.algorithm)
	}
	return nil
}

// decoder reads what was encoded. bad says that something was missing, malformed or out of bounds.
type decoder struct {
	b   []byte
	bad bool
}

// between reads a number from low to high. For anything else it sets bad and returns low.
func (d *decoder) between(low, high int64) int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 || v < low || v > high {
		d.bad = true
		return low
	}
	d.b = d.b[n:]
	return v
}

// byte reads a byte.
func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.bad = true
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

// number reads any number.
func (d *decoder) number() int64 { return d.between(math.MinInt64, math.MaxInt64) }

// text reads a string after its length.
func (d *decoder) text() string {
	n := d.between(0, int64(len(d.b)))
	if n > int64(len(d.b)) { // the length itself takes some
		d.bad = true
		return ""
	}
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

// hash identifies the definition of the limit: 64 bits of FNV-1a over everything in its Spec, never 0.
func (l *Limit) hash() uint64 {
	h := uint64(14695981039346656037)
	str := func(s string) {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
		h = (h ^ 0xff) * 1099511628211
	}
	num := func(v uint64) {
		for range 8 {
			h = (h ^ v&0xff) * 1099511628211
			v >>= 8
		}
	}
	str(l.Policy)
	str(l.Window.text)
	if l.Zone != nil {
		str(l.Zone.String())
	}
	flags := uint64(l.Algorithm)
	if l.FirstUse {
		flags |= 0x80
	}
	num(flags<<32 | uint64(l.Limit))
	num(uint64(l.Burst))
	if h == 0 {
		return math.MaxUint64
	}
	return h
}
