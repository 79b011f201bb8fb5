package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

// results holds every measurement; cells that were not measured are nil.
type results struct {
	machine string
	rounds  int
	seconds float64
	cells   [][][]*measured // by round, load, contender
}

func newResults(machine string, rounds int, seconds float64) *results {
	r := &results{machine: machine, rounds: rounds, seconds: seconds, cells: make([][][]*measured, rounds)}
	for i := range r.cells {
		r.cells[i] = make([][]*measured, len(loads))
		for j := range r.cells[i] {
			r.cells[i][j] = make([]*measured, len(contenders))
		}
	}
	return r
}

func (r *results) add(round, load, contender int, m measured) { r.cells[round][load][contender] = &m }

func perSecond(m *measured) float64 { return m.perSecond }
func p50(m *measured) float64       { return m.p50 }
func p99(m *measured) float64       { return m.p99 }

// values are a contender's figures in the rounds that have them.
func (r *results) values(load, contender int, of func(*measured) float64) (values []float64) {
	for _, round := range r.cells {
		if m := round[load][contender]; m != nil {
			values = append(values, of(m))
		}
	}
	return values
}

// ratios compare a contender to another in the same round.
func (r *results) ratios(load, contender, to int, of func(*measured) float64) (ratios []float64) {
	for _, round := range r.cells {
		if m, other := round[load][contender], round[load][to]; m != nil && other != nil && of(other) > 0 {
			ratios = append(ratios, of(m)/of(other))
		}
	}
	return ratios
}

// median is the middle, or the mean of the two in the middle; of none it is 0.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// spread writes the median and, of several, the least and the most.
func spread(values []float64, format func(float64) string) string {
	switch len(values) {
	case 0:
		return "–"
	case 1:
		return format(values[0])
	}
	return fmt.Sprintf("%s (%s–%s)", format(median(values)), format(slices.Min(values)), format(slices.Max(values)))
}

// thousands writes a count to three digits or so, with commas.
func thousands(v float64) string {
	step := 1.0
	for v/step >= 1000 {
		step *= 10
	}
	text := strconv.FormatFloat(float64(int64(v/step+0.5))*step, 'f', 0, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// ratio writes the median of ratios.
func ratio(values []float64) string {
	if len(values) == 0 {
		return "–"
	}
	return times(median(values))
}

func times(v float64) string  { return fmt.Sprintf("%.2f", v) }
func micros(v float64) string { return thousands(v) + " µs" }
func millis(v float64) string { return fmt.Sprintf("%.1f ms", v/1000) }

// markdown is what stands between the markers.
func (r *results) markdown() string {
	var t strings.Builder
	if r.rounds < 3 {
		fmt.Fprintf(&t, "**A quick run: %d × %g s for each figure. It shows that the bench works and no more: two such runs have differed by a third and more on the same figure.**\n\n", r.rounds, r.seconds)
	}
	fmt.Fprintf(&t, "%s\n\n%d × %g s for each figure: median (least–most). ×: the ratio to the ceiling of the same round, median.\n\n", r.machine, r.rounds, r.seconds)

	t.WriteString("| |")
	for _, l := range loads {
		t.WriteString(" " + l.name)
		if l.latency {
			t.WriteString(": p50 |")
		} else {
			t.WriteString(": answers/s |")
		}
	}
	t.WriteString(" p99 at the first |\n|" + strings.Repeat(" --- |", len(loads)+2) + "\n")
	for c := range contenders {
		t.WriteString("| " + contenders[c].name + " |")
		for l := range loads {
			if loads[l].latency {
				fmt.Fprintf(&t, " %s, × %s |", spread(r.values(l, c, p50), micros), ratio(r.ratios(l, c, 0, p50)))
			} else {
				fmt.Fprintf(&t, " %s, × %s |", spread(r.values(l, c, perSecond), thousands), ratio(r.ratios(l, c, 0, perSecond)))
			}
		}
		fmt.Fprintf(&t, " %s, × %s |\n", spread(r.values(0, c, p99), millis), ratio(r.ratios(0, c, 0, p99)))
	}
	t.WriteString("\n")
	r.goals(&t)
	r.failures(&t)
	t.WriteString("\n![The same as a chart](performance.svg)\n")
	return t.String()
}

// goals compares with what is wanted of each mode.
func (r *results) goals(t *strings.Builder) {
	t.WriteString("| against the goals | load | measured | goal | |\n| --- | --- | --- | --- | --- |\n")
	row := func(c contender, load, measured, goal string, reached bool) {
		mark := "not yet"
		switch {
		case strings.Contains(measured, "–") && !strings.ContainsAny(measured, "0123456789"):
			mark = "not measured"
		case reached:
			mark = "reached"
		}
		fmt.Fprintf(t, "| %s | %s | %s | %s | %s |\n", c.name, load, measured, goal, mark)
	}
	for ci, c := range contenders {
		for li, l := range loads {
			if !l.latency {
				if goal := c.goals[li]; goal > 0 {
					got := r.ratios(li, ci, 0, perSecond)
					row(c, l.name, "× "+spread(got, times), "≥ × "+times(goal), median(got) >= goal)
				}
				continue
			}
			own, floor := median(r.values(li, ci, p50)), median(r.values(li, 0, p50))
			if c.goalMicros > 0 {
				row(c, l.name, fmt.Sprintf("ceiling %+.0f µs", own-floor), "≤ ceiling + "+micros(c.goalMicros), own-floor <= c.goalMicros)
			}
			if c.goalTimes > 0 {
				got := r.ratios(li, ci, 0, p50)
				row(c, l.name, "× "+spread(got, times), "≤ × "+times(c.goalTimes), median(got) <= c.goalTimes)
			}
		}
		if c.goals[0] > 0 {
			got := r.ratios(0, ci, 0, p99)
			row(c, loads[0].name+", p99", "× "+spread(got, times), "≤ × 2.00", median(got) <= 2)
		}
		if c.name == "exact, PostgreSQL" {
			got := r.ratios(0, ci, len(contenders)-1, perSecond)
			row(c, loads[0].name, spread(got, times)+" × system E's SQL", "≥ 3.50 ×", median(got) >= 3.5)
		}
	}
}

// failures says which figures count answers that are not what the row is about.
func (r *results) failures(t *strings.Builder) {
	for li, l := range loads {
		for ci, c := range contenders {
			var failed, checks int64
			for _, round := range r.cells {
				if m := round[li][ci]; m != nil {
					failed, checks = failed+m.failed, checks+m.checks
				}
			}
			if failed > 0 {
				fmt.Fprintf(t, "\n%s, %s: %d of %d answers were errors, degraded, or not the decision that the row is about.\n", c.name, l.name, failed, checks)
			}
		}
	}
}

// machine says what this ran on, as far as the system tells.
func (d *bed) machine(b *testing.B) string {
	b.Helper()
	version, err := d.show("server_version")
	if err != nil {
		b.Fatal(err)
	}
	sync, err := syncTime(d.dir)
	if err != nil {
		b.Fatal(err)
	}
	version, _, _ = strings.Cut(version, " ")
	return fmt.Sprintf("%s: %s, %d cores, %s of memory; an fsync of 8 KiB takes %s (median of 200). %s, PostgreSQL %s "+
		"(fsync, synchronous_commit and full_page_writes on), NATS server %s.",
		time.Now().UTC().Format(time.DateOnly), procField("/proc/cpuinfo", "model name", "CPU unknown"), runtime.NumCPU(),
		memory(), micros(sync), runtime.Version(), version, natsserver.VERSION)
}

// syncTime is what the disk takes to make a page durable, in microseconds: what group commit divides by its batch.
func syncTime(dir string) (float64, error) {
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	page, took := make([]byte, 8192), make([]float64, 200)
	for i := range took {
		began := time.Now()
		if _, err := f.Write(page); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took[i] = float64(time.Since(began).Nanoseconds()) / 1000
	}
	return median(took), nil
}

func memory() string {
	kib, err := strconv.ParseFloat(strings.TrimSuffix(procField("/proc/meminfo", "MemTotal", ""), " kB"), 64)
	if err != nil {
		return "an unknown amount"
	}
	return fmt.Sprintf("%.0f GiB", kib/(1<<20))
}

func procField(file, name, otherwise string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return otherwise // not Linux
	}
	for line := range strings.Lines(string(text)) {
		if field, value, _ := strings.Cut(line, ":"); strings.TrimSpace(field) == name {
			return strings.TrimSpace(value)
		}
	}
	return otherwise
}

// replaceBetween puts text between two markers of a file.
func replaceBetween(file, begin, end, text string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(old), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no %s … %s", file, begin, end)
	}
	return os.WriteFile(file, []byte(before+begin+"\n\n"+text+"\n"+end+after), 0o644)
}

func TestMedian(t *testing.T) {
	for want, values := range map[float64][]float64{0: nil, 3: {9, 1, 3}, 2.5: {4, 1, 3, 2}} {
		if got := median(values); got != want {
			t.Errorf("median of %v: %v, want %v", values, got, want)
		}
	}
}

func TestThousands(t *testing.T) {
	for v, want := range map[float64]string{7: "7", 999: "999", 1234: "1,230", 123456: "123,000", 1e6: "1,000,000"} {
		if got := thousands(v); got != want {
			t.Errorf("thousands(%v): %s, want %s", v, got, want)
		}
	}
}

// The ratio is taken inside each round: a machine that halves its speed between two changes no ratio.
func TestRatiosAreOfOneRound(t *testing.T) {
	r := newResults("A machine.", 3, 1)
	for round, speed := range []float64{1, 0.5, 0.25} {
		for l := range loads {
			for c := range contenders {
				r.add(round, l, c, measured{perSecond: speed * 1000 / float64(c+1), p50: 100, p99: 200, checks: 1})
			}
		}
	}
	text := r.markdown()
	for _, want := range []string{
		"| exact, PostgreSQL | 250 (125–500), × 0.50 |",
		"| exact, PostgreSQL | 10,000 keys, 128 in flight | × 0.50 (0.50–0.50) | ≥ × 0.40 | reached |",
		"| exact, PostgreSQL | 10,000 keys, 512 in flight | × 0.50 (0.50–0.50) | ≥ × 0.45 | reached |",
		"| exact, PostgreSQL | hot key, 128 in flight | × 0.50 (0.50–0.50) | ≥ × 0.65 | not yet |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if svg := r.chart(); strings.Count(svg, "<rect") < 4*len(contenders) {
		t.Errorf("chart lacks bars:\n%s", svg)
	}
}
