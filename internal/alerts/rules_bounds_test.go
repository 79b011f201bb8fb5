package alerts

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
)

// TestBoundsOfAlertsFilesAreInclusive: as much as docs/alerts.md says is accepted, and one more is a mistake.
func TestBoundsOfAlertsFilesAreInclusive(t *testing.T) {
	t.Parallel()
	o := fileOptions
	o.LookupEnv = func(name string) (string, bool) {
		n := 0
		_, err := fmt.Sscanf(name, "BYTES_%d", &n)
		return "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, n)), err == nil
	}
	many := func(n int, each string) string { // # is the number of an item, and #+1 that of the next
		var all []string
		for i := range n {
			all = append(all, strings.ReplaceAll(strings.ReplaceAll(each, "#+1", fmt.Sprintf("%02d", i+1)), "#", fmt.Sprintf("%02d", i)))
		}
		return strings.Join(all, ",\n ") // a line has a bound, too
	}
	rule := func(fields string) string { return "rules: [{name: a, " + fields + "}]" }
	channel := func(fields string) string { return "channels: [{name: c, " + fields + "}]\n" + rule("channels: c") }
	webhook := func(url, secrets string) string {
		return channel(fmt.Sprintf("webhook: {url: %q, secrets: [%s]}", url, secrets))
	}
	smtp := func(addr, to string) string {
		return channel(fmt.Sprintf("smtp: {addr: %q, from: a@b.example, to: [%s]}", addr, to))
	}
	for want, c := range map[string]struct {
		bound int
		file  func(n int) string
	}{
		"more than 200 rules": {200, func(n int) string { return "rules: [" + many(n, "{name: a#, match: {key: k#}}") + "]" }},
		"more than 50 channels": {50, func(n int) string {
			return "channels: [" + many(n, "{name: c#, slack: {url: 'https://a.example'}}") + "]\n" + rule("channels: ["+many(n, "c#")+"]")
		}},
		"has 101 patterns":                {100, func(n int) string { return rule("match: {key: [" + many(n, "k#") + "]}") }},
		"has 257 bytes; want at most 256": {256, func(n int) string { return rule("match: {key: " + strings.Repeat("x", n) + "}") }},
		"1000000001 is out of range":      {1_000_000_000, func(n int) string { return rule(fmt.Sprintf("threshold: {denials: %d}", n)) }},
		`"8d" is out of range`:            {7, func(n int) string { return rule(fmt.Sprintf("threshold: {within: %dd}", n)) }},
		`"32d" is out of range`: {31, func(n int) string {
			return rule(fmt.Sprintf("dedup: %dd, resolveAfter: %dd, throttle: {limit: 5, window: %dd}", n, n, n))
		}},
		"has 33 entries": {32, func(n int) string { return rule("quietHours: [" + many(n, `{from: "00:#", to: "00:#+1"}`) + "]") }},
		"has 4097 bytes; want at most 4096": {4096, func(n int) string {
			return "rules:\n- name: a\n  title: |\n" + strings.Repeat("    "+strings.Repeat("x", 1023)+"\n", 3) + "    " + strings.Repeat("x", n-3*1024) + "\n"
		}},
		"has 9 secrets":                   {8, func(n int) string { return webhook("https://a.example", many(n, `"env:BYTES_24_#"`)) }},
		"has more than 2048 bytes":        {2048, func(n int) string { return webhook("https://a.example/"+strings.Repeat("x", n-18), "'env:BYTES_24'") }},
		"the base64 of 24 to 64 bytes":    {64, func(n int) string { return webhook("https://a.example", fmt.Sprintf("'env:BYTES_%d'", n)) }},
		"has 21 addresses":                {20, func(n int) string { return smtp("a.example:25", many(n, "a#@b.example")) }},
		"is not a mail address":           {254, func(n int) string { return smtp("a.example:25", "a@"+strings.Repeat("x", n-2)) }},
		"the host is missing or invalid":  {253, func(n int) string { return smtp(strings.Repeat("x", n)+":25", "a@b.example") }},
		"the port is not a number from 1": {65535, func(n int) string { return smtp(fmt.Sprintf("a.example:%d", n), "a@b.example") }},
	} {
		for _, n := range []int{c.bound, c.bound + 1} {
			_, err := ParseRules("f", []byte(c.file(n)), o)
			if n == c.bound && err != nil || n > c.bound && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%d: %.300v; want %q after %d", n, err, want, c.bound)
			}
		}
	}
}
