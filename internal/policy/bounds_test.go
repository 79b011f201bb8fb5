package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestBoundsAreInclusive: a file may have as much as docs/policies.md says, and one more is a mistake.
func TestBoundsAreInclusive(t *testing.T) {
	t.Parallel()
	many := func(n int, each string) string { // # is the number of an item, and #+1 that of the next
		var all []string
		for i := range n {
			all = append(all, strings.ReplaceAll(strings.ReplaceAll(each, "#+1", fmt.Sprintf("%02d", i+1)), "#", fmt.Sprintf("%02d", i)))
		}
		return strings.Join(all, ", ")
	}
	const limits = "limits: [{name: l, key: k, limit: 1, window: 1m}]"
	for name, c := range map[string]struct {
		bound  int
		policy func(n int) string
		want   string
	}{
		"limits": {16, func(n int) string { return "limits: [" + many(n, "{name: l#, key: k, limit: 1, window: 1m}") + "]" }, "more than 16 limits"},
		"tiers":  {64, func(n int) string { return limits + ", tiers: {" + many(n, "t#: {l: {limit: 2}}") + "}" }, "has 65 tiers; want at most 64"},
		"entries": {32, func(n int) string {
			return limits + ", schedule: [" + many(n, `{from: "00:#", to: "00:#+1", factor: 2}`) + "]"
		}, "has 33 entries; want at most 32"},
		"message":  {512, func(n int) string { return limits + ", message: " + strings.Repeat("x", n) }, "has 513 bytes; want at most 512"},
		"unit":     {32, func(n int) string { return limits + ", unit: " + strings.Repeat("x", n) }, "has 33 bytes; want at most 32"},
		"patterns": {100, func(n int) string { return limits + ", match: {user: [" + many(n, "u#") + "]}" }, "has 101 patterns; want at most 100"},
		"bytes of a key": {256, func(n int) string {
			return "limits: [{name: l, key: " + strings.Repeat("x", n) + ", limit: 1, window: 1m}]"
		}, "the key has 257 bytes of fixed text; want at most 256"},
		"factor": {1000, func(n int) string {
			return limits + fmt.Sprintf(`, schedule: [{from: "00:00", to: "01:00", factor: %d}]`, n)
		}, "1001 is out of range"},
		"warning": {1, func(n int) string { return limits + ", warning: " + fmt.Sprint(n) }, "2 is out of range; want 0 to 1"},
	} {
		for n, want := range map[int]string{c.bound: "", c.bound + 1: c.want} {
			_, err := Parse("f", []byte("policies: [{name: p, "+c.policy(n)+"}]"), options)
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%d for %s: %.200v; want %q", n, name, err, want)
			}
		}
	}
	if _, err := Parse("f", []byte("policies: [{name: p, "+limits+", warning: 0}]"), options); err != nil {
		t.Errorf("a warning when nothing remains: %v", err)
	}
}

// TestTextIsPrintable in any script; what is not is named, with its place.
func TestTextIsPrintable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a ~": "", "Zoë": "", "日本𝄞": "", "ë a": "",
		"a\x1f": "U+001F at byte 1", "\x7f": "U+007F at byte 0", "ë\u200b": "U+200B at byte 2", "ab\xff": "U+FFFD at byte 2",
		"ab\xf0\x9d\x84": "U+FFFD at byte 2", "\ufffd": "", "é\x00é": "U+0000 at byte 2",
	} {
		err := CheckAttributeValue("a", text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
		if err := CheckText("f", text, 1, 64); (err == nil) != (want == "") {
			t.Errorf("%q as a text: %v; want %q", text, err, want)
		}
	}
}

// TestAttributesAreTakenUpToTheirBounds: 32 of a name of 64 bytes and a value of 256.
func TestAttributesAreTakenUpToTheirBounds(t *testing.T) {
	t.Parallel()
	s := parse(t, "policies: [{name: p, limits: [{name: l, key: k, limit: 1, window: 1m}]}]")
	for _, c := range []struct {
		n, name, value, policy int
		want                   string
	}{
		{32, 64, 256, 1, ""}, {33, 64, 256, 1, "more than 32 attributes"}, {32, 65, 256, 1, "1 to 64 bytes"}, {32, 64, 257, 1, "has 257 bytes"},
		{0, 0, 0, 64, "unknown policy"}, {0, 0, 0, 65, "policy has 65 bytes"},
	} {
		q := Question{Policy: strings.Repeat("p", c.policy), Attributes: map[string]string{}, Now: noon}
		for i := range c.n {
			q.Attributes[fmt.Sprintf("%0*d", c.name, i)] = strings.Repeat("v", c.value)
		}
		if got := s.Explain(q).Error; c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// TestBoundsOfRequests: all policies that match may have 16 limits together, and a key 256 bytes with its attributes.
func TestBoundsOfRequests(t *testing.T) {
	t.Parallel()
	text := "policies:\n"
	for i := range 9 {
		text += fmt.Sprintf("- {name: p%d, match: {n: %q}, limits: [{name: a, key: k, limit: 1, window: 1m}, {name: b, key: k, limit: 1, window: 1m}]}\n", i,
			[]string{"*", "9"}[i/8])
	}
	s := parse(t, text+"- {name: one, match: {n: 8+1}, limits: [{name: a, key: k, limit: 1, window: 1m}]}\n")
	for n, want := range map[string]error{"8": nil, "8+1": ErrTooManyLimits, "9": ErrTooManyLimits} {
		if r, err := s.Resolve(Question{Attributes: map[string]string{"n": n}, Now: noon}); !errors.Is(err, want) || err == nil && len(r.Limits) != 16 {
			t.Errorf("n=%s: %d limits, %v; want %v", n, len(r.Limits), err, want)
		}
	}
	key, err := parseTemplate("{a}:{long}")
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]string{254: "", 255: "attribute long makes the key 257 bytes long"} {
		got, _, err := key.render(map[string]string{"a": "x", "long": strings.Repeat("y", n)}, nil)
		if want == "" && (err != nil || len(got) != 256) || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("an attribute of %d bytes: a key of %d, %v; want %q", n, len(got), err, want)
		}
	}
}
