package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/rivo/uniseg"

	"github.com/seed503877ad/limits"
)

// table writes columns, aligned as a terminal shows them. text/tabwriter counts one cell for each character, but many
// scripts have characters that take two cells, or none.
type table struct {
	out    io.Writer
	rows   [][]string
	widths []int
}

func newTable(out io.Writer, header ...any) *table {
	t := &table{out: out, widths: make([]int, len(header))}
	t.row(header...)
	return t
}

func (t *table) row(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = oneLine(fmt.Sprint(c))
		t.widths[i] = max(t.widths[i], uniseg.StringWidth(row[i]))
	}
	t.rows = append(t.rows, row)
}

// flush writes the rows so far. More rows may follow; columns only get wider. Errors are kept by the session's stdout.
func (t *table) flush() {
	var lines strings.Builder
	for _, row := range t.rows {
		for i, cell := range row[:len(row)-1] {
			lines.WriteString(cell + strings.Repeat(" ", t.widths[i]-uniseg.StringWidth(cell)+2))
		}
		lines.WriteString(row[len(row)-1] + "\n")
	}
	t.rows = nil
	_, _ = io.WriteString(t.out, lines.String())
}

// dash replaces an empty text by "-", for a column.
func dash(text string) string { return cmp.Or(text, "-") }

// counterHeader and counterRow make a table of counters, with a column for the key if withKey is set.
func counterHeader(withKey bool) []any {
	header := []any{"NAME", "LIMIT", "USED", "REMAINING", "RESET", "ALGORITHM", "POLICY"}
	if withKey {
		header = append([]any{"KEY"}, header...)
	}
	return header
}

func counterRow(now time.Time, c *limits.Counter, withKey bool) []any {
	row := []any{c.Name, rate(c.Limit, c.Window, c.Burst), c.Used, c.Remaining, when(now, c.Reset), c.Algorithm, dash(c.Policy)}
	if withKey {
		row = append([]any{c.Key}, row...)
	}
	return row
}

// rate formats a limit as "100/1m", with the burst of a token bucket as "100/1m +20", and without a known window as "100".
func rate(limit int64, window string, burst int64) string {
	return rateOf(strconv.FormatInt(limit, 10), window, burst)
}

// rateOf is rate for an amount that may be "unlimited".
func rateOf(amount, window string, burst int64) string {
	switch {
	case window == "" || amount == "unlimited":
		return amount
	case burst > 0:
		return fmt.Sprintf("%s/%s +%d", amount, window, burst)
	}
	return amount + "/" + window
}

// when formats a time in Unix milliseconds as a date in now's zone and the time until then.
func when(now time.Time, millis int64) string {
	wait := millis - now.UnixMilli()
	if wait <= 0 {
		return "now"
	}
	return time.UnixMilli(millis).In(now.Location()).Format(time.DateTime) + " in " + waitTime(wait)
}

// waitTime formats milliseconds in at most two units. It rounds up, so that waiting for the shown time is enough.
func waitTime(millis int64) string {
	if millis < 1000 {
		return fmt.Sprintf("%dms", millis)
	}
	const minute, hour, day = 60, 60 * 60, 24 * 60 * 60
	s := (millis + 999) / 1000
	if s > hour {
		s = (s + minute - 1) / minute * minute
	}
	if s > day {
		s = (s + hour - 1) / hour * hour
	}
	switch {
	case s < minute:
		return fmt.Sprintf("%ds", s)
	case s < hour:
		return units(s/minute, "m", s%minute, "s")
	case s < day:
		return units(s/hour, "h", s%hour/minute, "m")
	}
	return units(s/day, "d", s%day/hour, "h")
}

func units(n int64, unit string, rest int64, restUnit string) string {
	if rest == 0 {
		return fmt.Sprintf("%d%s", n, unit)
	}
	return fmt.Sprintf("%d%s %d%s", n, unit, rest, restUnit)
}

// count formats a number and a noun: "1 counter", "12 counters".
func count[N int | int64](n N, noun string) string { return plural(n, noun, noun+"s") }

func plural[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// shellWord quotes text for a shell. The next of a page may have line breaks and control characters, for which bash has
// $'…'.
func shellWord(text string) string {
	quoted := strconv.Quote(text)
	if quoted[1:len(quoted)-1] == text && !strings.ContainsAny(text, "$`!") {
		return quoted
	}
	return "$'" + strings.NewReplacer(`\"`, `"`, `'`, `\'`).Replace(quoted[1:len(quoted)-1]) + "'"
}
