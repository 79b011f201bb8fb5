package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed503877ad/limits/internal/engine"
)

// fill stores a counter for each id.
func fill(t *testing.T, s Store, ids ...engine.CounterID) {
	t.Helper()
	ids = slices.SortedFunc(slices.Values(ids), engine.CounterID.Compare)
	update(t, s, batch(ids...), write("1"))
}

func keys(counters []engine.StoredCounter) []string {
	out := []string{}
	for _, c := range counters {
		out = append(out, c.Key+" "+c.Name)
	}
	return out
}

func counters(t *testing.T, s Store) {
	fill(t, s, id("a", "1m"), id("a", "1h"), id("a", "per day"), id("a", engine.PolicyName("p", "1m")), id("a ", "1m"), id("ab", "1m"), id("A", "1m"))
	found, now, err := s.Counters(within(t), "a")
	if err != nil {
		t.Fatalf("counters: %v", err)
	}
	checkClock(t, now)
	equal(t, "counters", found, []engine.StoredCounter{
		{CounterID: id("a", "1h"), Spec: []byte(`{"limit":1}`), State: []byte("1")},
		{CounterID: id("a", "1m"), Spec: []byte(`{"limit":1}`), State: []byte("1")},
		{CounterID: id("a", engine.PolicyName("p", "1m")), Spec: []byte(`{"limit":1}`), State: []byte("1")},
		{CounterID: id("a", "per day"), Spec: []byte(`{"limit":1}`), State: []byte("1")},
	})
}

// manyOfOneKey: callers name counters, so a key may have any number.
func manyOfOneKey(t *testing.T, s Store) {
	var ids []engine.CounterID
	for i := range engine.MaxKeyCounters + 5 {
		ids = append(ids, id("a", fmt.Sprintf("%04d", i)))
	}
	fill(t, s, ids...)
	CheckManyOfOneKey(t, s)
}

// CheckManyOfOneKey checks that of the counters of key a, numbered from 0000 on, one more is read than a status describes.
func CheckManyOfOneKey(t *testing.T, s engine.Store) {
	t.Helper()
	found, _, err := s.Counters(within(t), "a")
	if n := len(found); err != nil || n != engine.MaxKeyCounters+1 || found[n-1].Name != "1000" {
		t.Errorf("%d counters, %v", n, err)
	}
}

// awkwardKeys returns keys that could break a pattern, an escape, a collation or a byte count.
func awkwardKeys() []string {
	return []string{
		"a", "a%", "a%b", "a_b", "a_", `a\`, `a\%`, "a*", "a?", "a'", "ab", "ac", "b", "B", "ä", "ä1", "á",
		"日本", "日本語", "\ud7ff", "\ud7ffx", "\ue000", "😀", "😀1", "\U0010ffff", "\U0010ffffz", "\U0010ffff\U0010ffff",
		strings.Repeat("x", 256), strings.Repeat("\U0010ffff", 64),
	}
}

// prefixes returns prefixes of every length, and some that select nothing.
func prefixes() []string {
	return append(awkwardKeys(), "", "a%%", "%", "_", "zz", "日", "\U0010ffff\U0010ffff\U0010ffff", strings.Repeat("x", 255))
}

// keysWithPrefix returns the awkward keys with the prefix, in order.
func keysWithPrefix(prefix string) []string {
	out := []string{}
	for _, k := range slices.Sorted(slices.Values(awkwardKeys())) {
		if strings.HasPrefix(k, prefix) {
			out = append(out, k+" 1m")
		}
	}
	return out
}

func fillAwkward(t *testing.T, s Store) {
	t.Helper()
	var ids []engine.CounterID
	for _, k := range awkwardKeys() {
		ids = append(ids, id(k, "1m"))
	}
	fill(t, s, ids...)
}

func listPrefix(t *testing.T, s Store) {
	fillAwkward(t, s)
	for _, p := range prefixes() {
		page, now, err := s.List(within(t), p, engine.CounterID{}, 1000)
		if err != nil {
			t.Fatalf("list %q: %v", p, err)
		}
		checkClock(t, now)
		equal(t, "list "+p, keys(page), keysWithPrefix(p))
	}
}

func list(t *testing.T, s Store, prefix string, after engine.CounterID, max int) []engine.StoredCounter {
	t.Helper()
	page, _, err := s.List(within(t), prefix, after, max)
	if err != nil {
		t.Fatalf("list %q: %v", prefix, err)
	}
	return page
}

func listPages(t *testing.T, s Store) {
	fillAwkward(t, s)
	fill(t, s, id("a", "1h"), id("a", "1d"), id("b", "1d"), id("b", "2m"))
	for _, prefix := range []string{"", "a", "日"} {
		whole := list(t, s, prefix, engine.CounterID{}, 1000)
		var got []engine.StoredCounter
		var after engine.CounterID
		for {
			page := list(t, s, prefix, after, 3)
			if len(page) == 0 {
				break
			}
			if len(page) > 3 {
				t.Fatalf("a page of %d", len(page))
			}
			got = append(got, page...)
			after = page[len(page)-1].CounterID
		}
		equal(t, "pages of "+prefix, keys(got), keys(whole))
	}
	// From an id that is not stored, before and after the prefix.
	equal(t, "from before the prefix", keys(list(t, s, "b", id("a", "1m"), 1)), []string{"b 1d"})
	equal(t, "from between", keys(list(t, s, "b", id("b", "1e"), 1)), []string{"b 1m"})
	equal(t, "from behind the prefix", keys(list(t, s, "b", id("c", ""), 1)), []string{})
}

// reset runs Reset as a dry run and then for real, and returns the remaining keys.
func reset(t *testing.T, s Store, sel engine.Selection, want int64) []string {
	t.Helper()
	for _, dry := range []bool{true, false} {
		n, err := s.Reset(within(t), sel, dry)
		if err != nil {
			t.Fatalf("reset %+v: %v", sel, err)
		}
		if n != want {
			t.Errorf("reset %+v, dry %t: %d, want %d", sel, dry, n, want)
		}
	}
	return keys(list(t, s, "", engine.CounterID{}, 10_000))
}

func resetKey(t *testing.T, s Store) {
	fill(t, s, id("a", "1m"), id("a", "1h"), id("a%", "1m"), id("a\x01", "1m"), id("ab", "1m"))
	equal(t, "left", reset(t, s, engine.Selection{Key: "a"}, 2), []string{"a\x01 1m", "a% 1m", "ab 1m"})
	equal(t, "left", reset(t, s, engine.Selection{Key: "%"}, 0), []string{"a\x01 1m", "a% 1m", "ab 1m"})
	var saw []string
	update(t, s, batch(id("a", "1m")), func(snap engine.Snapshot) engine.Changes {
		saw = texts(snap)
		return write("again")(snap)
	})
	equal(t, "state after a reset", saw, []string{"-"})
	equal(t, "state", states(t, s, id("a", "1m")), []string{"again"})
}

func resetPrefix(t *testing.T, s Store) {
	for _, p := range []string{"a%", `a\`, "a", "日", "\ud7ff", "\U0010ffff\U0010ffff"} {
		fillAwkward(t, s)
		gone := keysWithPrefix(p)
		var want []string
		for _, k := range keysWithPrefix("") {
			if !slices.Contains(gone, k) {
				want = append(want, k)
			}
		}
		equal(t, "left of "+p, reset(t, s, engine.Selection{Prefix: p}, int64(len(gone))), want)
	}
}

func resetAll(t *testing.T, s Store) {
	ids := numbered(2500) // three transactions
	fill(t, s, ids...)
	equal(t, "left", reset(t, s, engine.Selection{}, 2500), []string{})
	equal(t, "left", reset(t, s, engine.Selection{}, 0), []string{})
}

// resetTakesTime: a counter tells what belongs to it from what belonged to one that was reset by the millisecond in which it
// began.
func resetTakesTime(t *testing.T, s Store) {
	begin := func() (at int64) {
		t.Helper()
		update(t, s, batch(id("a", "n")), func(snap engine.Snapshot) engine.Changes {
			at = snap.Now
			return write("1")(snap)
		})
		return at
	}
	for range 50 {
		before := begin()
		if n, err := s.Reset(within(t), engine.Selection{Key: "a"}, false); err != nil || n != 1 {
			t.Fatalf("reset %d, %v", n, err)
		}
		if after := begin(); after <= before {
			t.Fatalf("a counter began at %d, and the one that was reset at %d", after, before)
		}
	}
}
