package httplimit_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"pgregory.net/rapid"

	"github.com/seed503877ad/limits/httplimit"
)

// TestMalformedRateLimitIsIgnored as a whole, even if parts of it are valid:
// draft-ietf-httpapi-ratelimit-headers says that it must be ignored.
func TestMalformedRateLimitIsIgnored(t *testing.T) {
	t.Parallel()
	for name, field := range map[string]string{
		"comma at the end":      `"a";r=0;t=60,`,
		"empty item":            `"a";r=0;t=60,,"b";r=0;t=9`,
		"no value":              `"a";r=0;t=60, "b";r=0;t=`,
		"open quote":            `"a";r=0;t=60, "b;r=0;t=9`,
		"no comma":              `"a";r=0;t=60 "b";r=0;t=9`,
		"name in capitals":      `"a";r=0;t=60;T=9`,
		"not ASCII":             `"ä";r=0;t=60`,
		"escape that is none":   `"a\n";r=0;t=60`,
		"inner list":            `("a" "b");r=0;t=60`,
		"draft 7, a dictionary": `limit=100, remaining=0, reset=60`,
		"t of 16 digits":        `"a";r=0;t=1000000000000000`,
		"t in quotes":           `"a";r=0;t="60"`,
		"t is a fraction":       `"a";r=0;t=60.5`,
		"t without a value":     `"a";r=0;t=60, "b";r=0;t`,
		"t is negative":         `"a";r=0;t=60, "b";r=0;t=-1`,
		"r is negative":         `"a";r=0;t=60, "b";r=-1;t=9`,
		"r is a word":           `"a";r=0;t=60, "b";r=none;t=9`,
		"no r":                  `"a";r=0;t=60, "b";t=9`,
	} {
		if at, ok := httplimit.RetryAt(&http.Response{Header: http.Header{"Ratelimit": {field}}}); ok {
			t.Errorf("%s: %s is read as %v from now", name, field, time.Until(at))
		}
	}
}

// TestOverlongRateLimitIsIgnored, on one line or many: parsing takes a third of a second per MB,
// and it may have 10 MB. What 16 limits with long names need is parsed.
func TestOverlongRateLimitIsIgnored(t *testing.T) {
	t.Parallel()
	long := `"` + strings.Repeat("p", 64) + "/" + strings.Repeat("n", 64) + `";r=1000000000;t=31622400`
	for n, want := range map[int]bool{1: true, 16: true, 100: false} {
		lines := slices.Repeat([]string{long}, n)
		for _, field := range [][]string{lines, {strings.Join(lines, ", ")}} {
			if _, ok := httplimit.RetryAt(&http.Response{Header: http.Header{"Ratelimit": field}}); ok != want {
				t.Errorf("%d items in %d lines: read %v, want %v", n, len(field), ok, want)
			}
		}
	}
}

// TestRateLimitIsParsedPerRFC9651: a field is parsed exactly if an independent parser accepts it.
func TestRateLimitIsParsedPerRFC9651(t *testing.T) {
	t.Parallel()
	parts := rapid.SliceOf(rapid.SampledFrom([]string{`"a"`, `"a`, `"`, `\"`, `\\`, "tok/1:b", "*", "7", "-7", "1.5", "1.", "123456789012345",
		"1234567890123456", ":YQ==:", "?1", "?2", "@9", `%"%c3%bc"`, `%"%C3"`, ";", "; ", ";a", ";A=1", ";r=0", ";t=60", ";t=6", ";r=3", "=", "=0",
		",", ", ", "\t,", " ", "(", ")", `"b";r=0;t=9, `}))
	rapid.Check(t, func(t *rapid.T) {
		lines := []string{`"x";r=0;t=60` + strings.Join(parts.Draw(t, "parts"), "")}
		_, ok := httplimit.RetryAt(&http.Response{Header: http.Header{"Ratelimit": lines}})
		if want := readable(lines); ok != want {
			t.Fatalf("%q is read: %v, want %v", lines, ok, want)
		}
	})
}

// readable reports whether each member is an item whose r, and t if it has one, are non-negative Integers, and at least
// one has t.
func readable(lines []string) (told bool) {
	members, err := httpsfv.UnmarshalList(lines)
	if err != nil {
		return false
	}
	for _, member := range members {
		item, ok := member.(httpsfv.Item)
		if !ok {
			return false
		}
		r, _ := item.Params.Get("r")
		if n, ok := r.(int64); !ok || n < 0 {
			return false
		}
		if value, has := item.Params.Get("t"); has {
			if n, ok := value.(int64); !ok || n < 0 {
				return false
			}
			told = true
		}
	}
	return told
}
