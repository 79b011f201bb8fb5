package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

const noon = 1_704_110_400_000 // 2024-01-01T12:00:00Z

func TestTheZeroStateIsStoredAsNothing(t *testing.T) {
	t.Parallel()
	var s State
	if b := s.Append(nil); len(b) != 0 {
		t.Errorf("stored as % x", b)
	}
	l := limitOf(t, TokenBucket, 10, "1m")
	h := history{limit: l, now: noon}
	h.ask(Consume, 3)
	if err := h.state.Decode(nil); err != nil || h.ask(Check, 1).Remaining != 10 {
		t.Errorf("nothing stored: %+v, %v", h.ask(Check, 1), err)
	}
}

func TestDecodeRejectsImpossibleStates(t *testing.T) {
	t.Parallel()
	header := func(a Algorithm, numbers ...int64) []byte {
		b := append([]byte{stateVersion, byte(a)}, 1, 2, 3, 4, 5, 6, 7, 8)
		for _, v := range append([]int64{0, 0, 0, noon}, numbers...) {
			b = binary.AppendVarint(b, v)
		}
		return b
	}
	const minute = 60_000
	good := header(FixedWindow, noon, minute, 3, 0)
	begin := header(FixedWindow)
	before := begin[:len(begin)-len(binary.AppendVarint(nil, noon))] // what says since when it counts
	for name, b := range map[string][]byte{
		"fixed":                   header(FixedWindow, noon, minute, 3, 0),
		"fixed, past the limit":   header(FixedWindow, noon, minute, maxUsed, minute-1),
		"sliding, empty":          header(SlidingWindow, minute, 0, noon),
		"sliding":                 header(SlidingWindow, minute, 2, noon/1000, 1, 59, 5, 1_999),
		"two generations":         header(FixedWindow, noon, minute, 3, 0, 1, noon, 0, 1, noon, 0),
		"bucket":                  header(TokenBucket, 10, 5, minute, 14, 59_999, noon),
		"bucket, past the limit":  header(TokenBucket, 10, 5, minute, -maxUsed, 0, noon),
		"bucket, of everything":   header(TokenBucket, MaxAmount, MaxAmount, MaxWindow.Milliseconds(), 2*MaxAmount, 0, noon),
		"bucket, over":            header(TokenBucket, -10, 5, minute, -8, 0, noon, 8, 11),
		"sliding, before 1970 ok": header(SlidingWindow, minute, 1, -5, 1, 0),
		"version 1":               slices.Concat([]byte{1}, before[1:], good[len(begin):]),
	} {
		var s State
		if err := s.Decode(b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if again := s.Append(nil); !bytes.Equal(b, again) {
			t.Errorf("%s: % x was read, and written as % x", name, b, again)
		}
	}
	for name, b := range map[string][]byte{
		"one byte":                  {stateVersion},
		"another version":           append([]byte{stateVersion + 1}, good[1:]...),
		"version 0":                 slices.Concat([]byte{0}, before[1:], good[len(begin):]),
		"warned before 1970":        slices.Concat(good[:10], binary.AppendVarint(nil, -1), good[11:]),
		"exceeded before 1970":      slices.Concat(good[:11], binary.AppendVarint(nil, -1), good[12:]),
		"fewer denials than none":   slices.Concat(good[:12], binary.AppendVarint(nil, -1), good[13:]),
		"more than two generations": header(FixedWindow, noon, minute, 3, 0, 1, noon, 0, 1, noon, 0, 1, noon, 0),
		"since before 1970":         slices.Concat(binary.AppendVarint(before[:len(before):len(before)], -1), good[len(begin):]),
		"another algorithm":         header(TokenBucket+1, minute, 0, noon),
		"no spec":                   append(append([]byte{stateVersion, byte(FixedWindow)}, make([]byte, 8)...), good[10:]...),
		"cut short":                 good[:len(good)-1],
		"too long":                  append(bytes.Clone(good), 0),
		"a number without end":      append(bytes.Clone(good[:len(good)-1]), bytes.Repeat([]byte{0xff}, 11)...),
		"fixed, no length":          header(FixedWindow, noon, 0, 3, 0),
		"fixed, too long":           header(FixedWindow, noon, MaxWindow.Milliseconds()+1, 3, 0),
		"fixed, below nothing":      header(FixedWindow, noon, minute, -1, 0),
		"fixed, too much":           header(FixedWindow, noon, minute, maxUsed+1, 0),
		"fixed, seen before":        header(FixedWindow, noon, minute, 3, -1),
		"fixed, seen behind":        header(FixedWindow, noon, minute, 3, minute),
		"fixed, too far":            header(FixedWindow, farFuture+1, minute, 3, 0),
		"fixed, seen too late":      header(FixedWindow, lastMoment, minute, 3, 1),
		"sliding, seen too late":    header(SlidingWindow, minute, 0, lastMoment+1),
		"bucket, seen too late":     header(TokenBucket, 10, 5, minute, 5, 0, lastMoment+1),
		"sliding, no window":        header(SlidingWindow, 0, 0, noon),
		"sliding, short window":     header(SlidingWindow, 99, 0, noon),
		"sliding, too many":         header(SlidingWindow, minute, subBuckets+2, noon),
		"sliding, fewer than said":  header(SlidingWindow, minute, 2, noon/1000, 1, 0),
		"sliding, same bucket":      header(SlidingWindow, minute, 2, noon/1000, 1, 0, 5, 0),
		"sliding, out of order":     header(SlidingWindow, minute, 2, noon/1000, 1, -1, 5, 1000),
		"sliding, empty bucket":     header(SlidingWindow, minute, 1, noon/1000, 0, 0),
		"sliding, too much":         header(SlidingWindow, minute, 2, noon/1000, maxUsed, 1, 1, 0),
		"sliding, already gone":     header(SlidingWindow, minute, 2, noon/1000, 1, 59, 5, 2_000),
		"sliding, seen before":      header(SlidingWindow, minute, 1, noon/1000, 1, -1),
		"bucket, no limit":          header(TokenBucket, 0, 5, minute, 5, 0, noon),
		"bucket, too high":          header(TokenBucket, MaxAmount+1, 0, minute, 5, 0, noon),
		"bucket, negative burst":    header(TokenBucket, 10, -1, minute, 5, 0, noon),
		"bucket, over its capacity": header(TokenBucket, 10, 5, minute, 16, 0, noon),
		"bucket, too low":           header(TokenBucket, 10, 5, minute, -maxUsed-1, 0, noon),
		"bucket, a whole fraction":  header(TokenBucket, 10, 5, minute, 5, minute, noon),
		"bucket, more than full":    header(TokenBucket, 10, 5, minute, 15, 1, noon),
		"bucket, no window":         header(TokenBucket, 10, 5, 0, 5, 0, noon),
		"bucket, over nothing":      header(TokenBucket, -10, 5, minute, -8, 0, noon, 0, 11),
		"bucket, over what is left": header(TokenBucket, -10, 5, minute, -8, 0, noon, 9, 11),
		"bucket, over and free":     header(TokenBucket, -10, 5, minute, 1, 0, noon, 1, 11),
		"bucket, over no more":      header(TokenBucket, -10, 5, minute, -8, 0, noon, 8, 10),
		"bucket, over too much":     header(TokenBucket, -10, 5, minute, -8, 0, noon, 8, MaxAmount+1),
	} {
		var s State
		if err := s.Decode(b); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v; want ErrCorrupt", name, err)
		}
	}
}

// What Decode accepts can be worked with: any request leaves it within its bounds, and it can be stored again.
func FuzzDecodeState(f *testing.F) {
	f.Add([]byte{}, int64(noon), int64(1), uint8(0))
	for i, a := range algorithms {
		h := history{limit: limitOf(f, a, 20, "1m"), now: noon}
		for range 5 {
			h.play(op{7_000, Consume, 3})
		}
		f.Add(h.state.Append(nil), int64(noon+50_000), int64(10), uint8(i))
		h.ask(Record, MaxAmount)
		f.Add(h.state.Append(nil), int64(noon), int64(MaxAmount), uint8(i+4))
	}
	f.Fuzz(func(t *testing.T, b []byte, now, cost int64, which uint8) {
		survives(t, b, now, cost, which)
	})
}

// The same on states that were stored and then damaged a little.
func TestADamagedStateIsRefusedOrHarmless(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, cases, func(t *rapid.T) {
			h := begin(t, a)
			for _, o := range genOps(h.limit, 6, Consume, Record, Refund).Draw(t, "ops") {
				h.play(o)
			}
			b := h.state.Append(nil)
			for range rapid.IntRange(1, 3).Draw(t, "damages") {
				at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
				b[at] = rapid.Byte().Draw(t, "byte")
			}
			survives(t, b, h.now+rapid.Int64Range(-9e11, 1e12).Draw(t, "after"), rapid.Int64().Draw(t, "cost"),
				rapid.Uint8().Draw(t, "which"))
		})
	})
}

// survives decodes b and, if that is accepted, asks everything of it at a moment within the bounds, under the
// limit it may have been stored for and others.
func survives(t failer, b []byte, now, cost int64, which uint8) {
	var s State
	if s.Decode(b) != nil {
		return
	}
	now &= farFuture/2 - 1
	cost = 1 + (cost&(1<<62-1))%MaxAmount
	l := Limit{Algorithm: algorithms[which%3], Limit: 1 + cost%7, Threshold: 3}
	if len(b) > 0 {
		s.spec = max(1, uint64(which&1)*l.hash())
	}
	for _, window := range []string{"1m", "366d", "100ms"} {
		l.Window, _ = ParseWindow(window)
		for _, v := range []Verb{Check, Consume, Record, Refund, Check} {
			r := decide(v, []Limit{l}, []*State{&s}, now, cost).Results[0]
			if r.Used < 0 || r.Used > maxUsed+2*MaxAmount || r.Remaining < 0 || r.Remaining > l.capacity() ||
				r.RetryAfter < 0 || r.ResetAt < now {
				t.Fatalf("% x at %d: %s %d: %+v", b, now, v, cost, r)
			}
			s.warn(&l, now, r.Remaining)
			exceededDue(s.exceededAt, now)
			if at := s.expiresAt(&l, now); at < now {
				t.Fatalf("% x at %d: expires at %d", b, now, at)
			}
			stored(t, &s)
			now += l.Window.Millis / 7
		}
	}
}

// A bucket in a debt that no time pays off says so: its wait is the longest there is, and not one that has overflowed.
func TestAnEndlessDebtIsNotOverSoon(t *testing.T) {
	t.Parallel()
	for _, debt := range []int64{10_000, 100_000_000, 300_000_000, 500_000_000, 600_000_000, MaxAmount} {
		h := history{limit: limitOf(t, TokenBucket, 1, "366d"), now: noon}
		h.ask(Record, debt)
		if r := h.ask(Consume, 1); r.Allowed || r.RetryAfter != farFuture-noon || r.ResetAt != farFuture {
			t.Errorf("a debt of %d at 1 in 366 days: %+v", debt, r)
		}
	}
}

// The deepest debt stays one that can be read when the limit is lowered.
func TestADebtUnderALowerLimitStaysReadable(t *testing.T) {
	t.Parallel()
	h := history{limit: limitOf(t, TokenBucket, MaxAmount, "366d"), now: noon}
	h.ask(Consume, 1)
	h.state.bucket.level = -maxUsed
	h.limit.Limit = 1
	if r := h.ask(Consume, 1); r.Allowed {
		t.Errorf("allowed: %+v", r)
	}
	h.state = *stored(t, &h.state)
}

// Records past the limit add up to a bound, beyond which nothing overflows.
func TestRecordedUsageIsCapped(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		h := history{limit: limitOf(t, a, MaxAmount, "366d"), now: noon}
		h.ask(Consume, 1)
		switch a {
		case FixedWindow:
			h.state.fixed.count = maxUsed - 1
		case SlidingWindow:
			h.state.sliding.buckets[0].cost, h.state.sliding.sum = maxUsed-1, maxUsed-1
		case TokenBucket:
			h.state.bucket.level = -maxUsed + 1
		}
		for range 3 {
			r := h.ask(Record, MaxAmount)
			if r.Used < maxUsed || r.Used > maxUsed+MaxAmount || r.Remaining != 0 || r.RetryAfter < 1 {
				t.Errorf("%+v", r)
			}
			h.state = *stored(t, &h.state)
			if a == SlidingWindow {
				h.now += h.limit.Window.Millis / 30 // to another sub-bucket
			}
		}
		want := int64(maxUsed - MaxAmount)
		if a == TokenBucket {
			want += MaxAmount // its ceiling is on the debt
		}
		if r := h.ask(Refund, MaxAmount); r.Used != want {
			t.Errorf("refund: used %d; want %d", r.Used, want)
		}
	})
}

// Time never runs backwards for a counter, even where nothing is left of what it saw.
func TestCounterTimeNeverRunsBackwards(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		h := history{limit: limitOf(t, a, 10, "1m"), now: noon}
		h.ask(Consume, 10)
		if r := h.play(op{-30_000, Consume, 1}); r.Allowed || r.RetryAfter < 30_000 {
			t.Errorf("30 s back: %+v", r)
		}
		// Everything is free again; then the clock steps back to where nothing was.
		h.play(op{30_000 + 121_000, Check, 1})
		h.state = *stored(t, &h.state)
		if r := h.play(op{-121_000, Consume, 10}); !r.Allowed || r.ResetAt < noon+121_000+59_000 {
			t.Errorf("121 s back: %+v", r)
		}
	})
}

// The clock steps back in the moment the definition changes.
func TestNewDefinitionKeepsCounterTime(t *testing.T) {
	t.Parallel()
	for _, from := range algorithms {
		for _, to := range algorithms {
			h := history{limit: limitOf(t, from, 10, "1m"), now: noon}
			h.ask(Consume, 10)
			h.limit = limitOf(t, to, 10, "1s")
			if r := h.play(op{-5_000, Consume, 1}); r.Allowed || h.now+r.RetryAfter <= noon {
				t.Errorf("%s to %s: %+v", from, to, r)
			}
		}
	}
}

// A bucket under two limits in turn, as while a policy is rolled out, refills as one under either.
func TestABucketKeepsItsFractionUnderAnotherLimit(t *testing.T) {
	t.Parallel()
	h := history{limit: limitOf(t, TokenBucket, 10, "1m"), now: noon}
	h.ask(Consume, 10)
	for i := range 12 {
		h.limit.Policy = string(rune('a' + i%2))
		h.limit.Limit, h.limit.Burst = int64(10-i%2*5), int64(i%2*5) // 10 tokens always, at 10 or 5 a minute
		h.play(op{1_000, Check, 1})
	}
	if r := h.ask(Check, 1); r.Remaining != 1 || h.state.bucket.fraction != 30_000 {
		t.Errorf("after 12 s at 10 and 5 a minute in turn: %+v, %d/60000", r, h.state.bucket.fraction)
	}
}

// A bucket that is full is free now, whatever the clock did.
func TestAFullBucketIsFreeNow(t *testing.T) {
	t.Parallel()
	h := history{limit: limitOf(t, TokenBucket, 10, "1m"), now: noon}
	h.ask(Consume, 1)
	h.play(op{60_000, Check, 1})
	if r := h.play(op{-30_000, Check, 1}); r.Used != 0 || r.ResetAt != h.now {
		t.Errorf("%+v; want free at %d", r, h.now)
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	for _, a := range algorithms {
		l := limitOf(t, a, 10, "1m")
		l.Threshold = 2
		h := history{limit: l, now: noon}
		for i, want := range []bool{false, true, false, false} {
			remaining := int64(3 - i)
			h.play(op{1_000, Check, 1})
			if got := h.state.warn(&l, h.now, remaining); got != want {
				t.Errorf("%s: %d remaining: warned %t", a, remaining, got)
			}
		}
		h.play(op{60_000, Check, 1})
		h.state = *stored(t, &h.state)
		if !h.state.warn(&l, h.now, 2) {
			t.Errorf("%s: not warned in the next window", a)
		}
		l.Threshold = -1
		if h.play(op{600_000, Check, 1}); h.state.warn(&l, h.now, 0) {
			t.Errorf("%s: warned without a threshold", a)
		}
	}
}

// A counter is warned of once in a window, to the millisecond, also if the clock is set back within it.
func TestAWarningIsRaisedOncePerWindow(t *testing.T) {
	t.Parallel()
	type warning struct {
		at   int64
		want bool
	}
	const minute = 60_000
	full := []warning{{0, true}, {0, false}, {1, false}, {minute - 1, false}, {minute, true}, {minute + 1, false}}
	firstUse := limitOf(t, FixedWindow, 10, "1m")
	firstUse.FirstUse = true
	for name, c := range map[string]struct {
		limit    Limit
		warnings []warning
	}{
		"fixed window":      {limitOf(t, FixedWindow, 10, "1m"), full},
		"from first use":    {firstUse, full},
		"sliding window":    {limitOf(t, SlidingWindow, 10, "1m"), full},
		"bucket":            {limitOf(t, TokenBucket, 10, "1m"), full},
		"fixed, set back":   {limitOf(t, FixedWindow, 10, "1m"), []warning{{-20_000, true}, {0, false}, {minute - 1, false}, {minute, true}}},
		"sliding, set back": {limitOf(t, SlidingWindow, 10, "1m"), []warning{{0, true}, {1 - minute, false}, {-minute, true}, {-1, false}, {0, true}}},
	} {
		h := history{limit: c.limit, now: noon}
		h.limit.Threshold = 10
		h.ask(Record, 1)
		for _, w := range c.warnings {
			h.now = noon + w.at
			h.ask(Record, 1)
			if got := h.state.warn(&h.limit, h.now, 0); got != w.want {
				t.Errorf("%s: warned at %d ms: %t", name, w.at, got)
			}
			h.state = *stored(t, &h.state)
		}
	}
}

// TestRestartedFirstUseWindowIsNotWarnedAgain, as where each try is charged and given back.
func TestRestartedFirstUseWindowIsNotWarnedAgain(t *testing.T) {
	t.Parallel()
	l := limitOf(t, FixedWindow, 1, "1d")
	l.FirstUse, l.Threshold = true, 0
	h := history{limit: l, now: noon}
	warned := 0
	for range 24 * 2 {
		h.play(op{0, Consume, 1})
		if h.state.warn(&l, h.now, 0) {
			warned++
		}
		h.play(op{3_600_000, Refund, 1})
		h.state = *stored(t, &h.state)
	}
	if warned != 2 {
		t.Errorf("warned %d times in two days", warned)
	}
}

// TestNextFirstUseWindowIsWarned, though it began before the one that was warned of would have
// ended.
func TestNextFirstUseWindowIsWarned(t *testing.T) {
	t.Parallel()
	const hour = 3_600_000
	firstUse := func(limit int64, window string, threshold int64) Limit {
		l := limitOf(t, FixedWindow, limit, window)
		l.FirstUse, l.Threshold = true, threshold
		return l
	}
	for name, tt := range map[string]struct {
		first, next Limit
		before      []op
		after       op
	}{
		"all was given back": {firstUse(10, "1d", 2), firstUse(10, "1d", 2),
			[]op{{23 * hour, Refund, 8}, {0, Consume, 1}}, op{10 * hour, Consume, 8}},
		"it is another definition": {firstUse(10, "1h", 2), firstUse(1000, "1d", 200),
			[]op{{1000, Consume, 1}}, op{10 * hour, Consume, 900}},
		"it is a shorter one": {firstUse(10, "1d", 2), firstUse(1000, "1h", 200),
			[]op{{1000, Consume, 1}}, op{2 * hour, Consume, 900}},
	} {
		h := history{limit: tt.first, now: noon}
		warn := func() bool { return h.state.warn(&h.limit, h.now, h.state.remaining(&h.limit)) }
		if h.play(op{0, Consume, 8}); !warn() {
			t.Errorf("%s: no warning for the first window", name)
		}
		for _, o := range tt.before {
			h.play(o)
		}
		h.limit = tt.next
		if h.play(op{1000, Consume, 1}); warn() {
			t.Errorf("%s: a warning for the next window at once", name)
		}
		if h.play(tt.after); !warn() {
			t.Errorf("%s: no warning for the next window", name)
		}
	}
}

// A counter is stored until one window after nothing is used, on a grid.
func TestExpiry(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		window string
		grid   int64
	}{{"1s", 60_000}, {"1h", 3_600_000}, {"1w", 86_400_000}} {
		each(t, func(t *testing.T, a Algorithm) {
			h := history{limit: limitOf(t, a, 10, c.window), now: noon + 1}
			r := h.ask(Consume, 1)
			at := h.state.expiresAt(&h.limit, h.now)
			if least := r.ResetAt + h.limit.Window.Millis; at < least || at >= least+c.grid || at%c.grid != 0 {
				t.Errorf("%s: expires %d ms after its reset", c.window, at-r.ResetAt)
			}
		})
	}
}

// Denials that no event has reported keep a counter for an hour at least, and never shorten its life.
func TestUnreportedDenialsOnlyProlongACounter(t *testing.T) {
	t.Parallel()
	for _, window := range []string{"1s", "1h", "1w"} {
		each(t, func(t *testing.T, a Algorithm) {
			h := history{limit: limitOf(t, a, 10, window), now: noon + 1}
			h.ask(Consume, 10)
			least := max(h.state.expiresAt(&h.limit, h.now), h.now+3_600_000)
			h.state.denied = 1
			if at := h.state.expiresAt(&h.limit, h.now); at < least || at >= least+h.limit.Window.Millis+60_000 {
				t.Errorf("%s: expires in %d ms, want at least %d", window, at-h.now, least-h.now)
			}
		})
	}
}

// A longer window that begins at the same moment holds what was used to its own end.
func TestLongerFixedWindowKeepsUsage(t *testing.T) {
	t.Parallel()
	for _, firstUse := range []bool{false, true} {
		h := history{limit: limitOf(t, FixedWindow, 10, "1m"), now: noon}
		h.ask(Consume, 10)
		h.limit = limitOf(t, FixedWindow, 10, "5m")
		h.limit.FirstUse = firstUse
		h.ask(Check, 1)
		if r := h.play(op{60_000, Consume, 1}); r.Allowed || r.RetryAfter != 240_000 {
			t.Errorf("first use %t: %+v", firstUse, r)
		}
	}
}
