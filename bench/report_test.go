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

// results has all measurements. Cells that were not measured are nil.
type results struct {
	machine string
	rounds  int
	seconds float64
	cells   [][][]*cell // by round, load, contender
}

// cell is a measurement, with the ceiling just before and just after it.
type cell struct {
	own, before, after sample
}

// asked is the results with one generator.
type asked struct {
	*results
	by generator
}

func newResults(machine string, rounds int, seconds float64) *results {
	r := &results{machine: machine, rounds: rounds, seconds: seconds, cells: make([][][]*cell, rounds)}
	for i := range r.cells {
		r.cells[i] = make([][]*cell, len(loads))
		for j := range r.cells[i] {
			r.cells[i][j] = make([]*cell, len(contenders))
		}
	}
	return r
}

func (r *results) add(round, load, contender int, own, before, after sample) {
	r.cells[round][load][contender] = &cell{own, before, after}
}

func perSecond(m *measured) float64 { return m.perSecond }
func p50(m *measured) float64       { return m.p50 }
func p99(m *measured) float64       { return m.p99 }

// values returns a contender's figures in the rounds that have them.
func (r asked) values(load, contender int, of func(*measured) float64) (values []float64) {
	for _, round := range r.cells {
		if c := round[load][contender]; c != nil {
			values = append(values, of(&c.own[r.by]))
		}
	}
	return values
}

// ceilings returns the figures of the ceiling after each measurement.
func (r asked) ceilings(load int, of func(*measured) float64) (values []float64) {
	for _, round := range r.cells {
		for _, c := range round[load] {
			if c != nil {
				values = append(values, of(&c.after[r.by]))
			}
		}
	}
	return values
}

// ratios returns the ratios of a contender to the ceiling beside it.
func (r asked) ratios(load, contender int, of func(*measured) float64) (ratios []float64) {
	return r.beside(load, contender, of, func(own, ceiling float64) float64 { return own / ceiling })
}

// beside compares a contender to the mean of the ceiling just before and after it.
func (r asked) beside(load, contender int, of func(*measured) float64, compare func(own, ceiling float64) float64) (all []float64) {
	for _, round := range r.cells {
		if c := round[load][contender]; c != nil {
			if ceiling := (of(&c.before[r.by]) + of(&c.after[r.by])) / 2; ceiling > 0 {
				all = append(all, compare(of(&c.own[r.by]), ceiling))
			}
		}
	}
	return all
}

// against returns the ratios of a contender to another one in the same round.
func (r asked) against(load, contender, to int, of func(*measured) float64) (ratios []float64) {
	for _, round := range r.cells {
		if m, other := round[load][contender], round[load][to]; m != nil && other != nil && of(&other.own[r.by]) > 0 {
			ratios = append(ratios, of(&m.own[r.by])/of(&other.own[r.by]))
		}
	}
	return ratios
}

// median returns the median; 0 for no values.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// spread formats the median and, if there are several values, the minimum and the maximum.
func spread(values []float64, format func(float64) string) string {
	switch len(values) {
	case 0:
		return "–"
	case 1:
		return format(values[0])
	}
	return fmt.Sprintf("%s (%s–%s)", format(median(values)), format(slices.Min(values)), format(slices.Max(values)))
}

// thousands formats a number rounded to about three digits, with commas.
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

// ratio formats the median of ratios.
func ratio(values []float64) string {
	if len(values) == 0 {
		return "–"
	}
	return times(median(values))
}

func times(v float64) string  { return fmt.Sprintf("%.2f", v) }
func micros(v float64) string { return thousands(v) + " µs" }
func millis(v float64) string { return fmt.Sprintf("%.1f ms", v/1000) }

// markdown returns the text between the markers of performance.md.
func (r *results) markdown() string {
	var t strings.Builder
	if r.rounds < 3 {
		fmt.Fprintf(&t, "**A quick run: %d × %g s for each figure. It shows that the bench works and no more: two such runs have differed by a third and more on the same figure.**\n\n", r.rounds, r.seconds)
	}
	fmt.Fprintf(&t, "%s\n\n%d × %g s for each figure (", r.machine, r.rounds, r.seconds)
	if r.seconds >= deniedLong {
		fmt.Fprintf(&t, "%g s for 10,000 denied keys, ", deniedFor.Seconds())
	}
	fmt.Fprintf(&t, "%.1f s for the ceiling before and after each): median (least–most). ×: the ratio to the ceiling just before and after it, median.\n\n", r.seconds/3)

	for g := range generators {
		fmt.Fprintf(&t, "Asked with %s:\n\n", generatorNames[g])
		asked{r, g}.table(&t)
	}
	r.goals(&t)
	r.failures(&t)
	fmt.Fprintf(&t, "\n![Asked with Request of nats.go, as a chart](performance.svg)\n")
	return t.String()
}

// table writes the figures with one generator.
func (r asked) table(t *strings.Builder) {
	t.WriteString("| |")
	for _, l := range loads {
		name, _, _ := l.figure()
		fmt.Fprintf(t, " %s: %s |", l.name, name)
	}
	t.WriteString(" p99 at the first |\n|" + strings.Repeat(" --- |", len(loads)+2) + "\n")
	t.WriteString("| ceiling |")
	for i, l := range loads {
		_, of, format := l.figure()
		fmt.Fprintf(t, " %s |", spread(r.ceilings(i, of), format))
	}
	fmt.Fprintf(t, " %s |\n", spread(r.ceilings(0, p99), millis))
	for c := range contenders {
		t.WriteString("| " + contenders[c].name + " |")
		for i, l := range loads {
			_, of, format := l.figure()
			fmt.Fprintf(t, " %s, × %s |", spread(r.values(i, c, of), format), ratio(r.ratios(i, c, of)))
		}
		fmt.Fprintf(t, " %s, × %s |\n", spread(r.values(0, c, p99), millis), ratio(r.ratios(0, c, p99)))
	}
	t.WriteString("\n")
}

// goals writes the table of the goals.
func (r *results) goals(t *strings.Builder) {
	fmt.Fprintf(t, "| against the goals | load | goal | %s | | %s | |\n| --- | --- | --- | --- | --- | --- | --- |\n",
		generatorNames[byRequest], generatorNames[byBench])
	for ci, c := range contenders {
		for li, l := range loads {
			switch goal := c.goals[min(li, len(c.goals)-1)]; {
			case !l.latency && goal > 0:
				r.goal(t, c.name, l.name, "≥ × "+times(goal), func(r asked) (string, bool) {
					got := r.ratios(li, ci, perSecond)
					return "× " + spread(got, times), median(got) >= goal
				})
			case l.latency && c.goalMicros > 0:
				r.goal(t, c.name, l.name, "≤ ceiling + "+micros(c.goalMicros), func(r asked) (string, bool) {
					got := r.beside(li, ci, p50, func(own, ceiling float64) float64 { return own - ceiling })
					return "ceiling + " + spread(got, micros), median(got) <= c.goalMicros
				})
			case l.latency && c.goalTimes > 0:
				r.goal(t, c.name, l.name, "≤ × "+times(c.goalTimes), func(r asked) (string, bool) {
					got := r.ratios(li, ci, p50)
					return "× " + spread(got, times), median(got) <= c.goalTimes
				})
			}
		}
		if c.goals[0] > 0 {
			r.goal(t, c.name, loads[0].name+", p99", "≤ × 2.00", func(r asked) (string, bool) {
				got := r.ratios(0, ci, p99)
				return "× " + spread(got, times), median(got) <= 2
			})
		}
		if c.name == "exact, PostgreSQL" {
			r.goal(t, c.name, loads[0].name, "≥ 3.50 × system E's SQL", func(r asked) (string, bool) {
				got := r.against(0, ci, len(contenders)-1, perSecond)
				return spread(got, times) + " ×", median(got) >= 3.5
			})
		}
	}
}

// goal writes a row: what each generator measured, and whether that is the goal.
func (r *results) goal(t *strings.Builder, name, load, goal string, measured func(asked) (string, bool)) {
	fmt.Fprintf(t, "| %s | %s | %s |", name, load, goal)
	for g := range generators {
		got, reached := measured(asked{r, g})
		mark := "not yet"
		switch {
		case !strings.ContainsAny(got, "0123456789"):
			mark = "not measured"
		case reached:
			mark = "reached"
		}
		fmt.Fprintf(t, " %s | %s |", got, mark)
	}
	t.WriteString("\n")
}

// failures writes how many answers failed, and are in no figure.
func (r *results) failures(t *strings.Builder) {
	for g := range generators {
		for li, l := range loads {
			var ceiling measured
			for ci, c := range contenders {
				var own measured
				for _, round := range r.cells {
					if m := round[li][ci]; m != nil {
						own.count(m.own[g])
						ceiling.count(m.after[g])
					}
				}
				own.failures(t, c.name, l, g)
			}
			ceiling.failures(t, "ceiling", l, g)
		}
	}
}

func (m *measured) count(o measured) { m.failed, m.checks = m.failed+o.failed, m.checks+o.checks }

func (m *measured) failures(t *strings.Builder, name string, l load, g generator) {
	if m.failed > 0 {
		fmt.Fprintf(t, "\n%s, %s, asked with %s: %d answers beside %d decisions were errors, degraded, or not the decision that the row is about.\n",
			name, l.name, generatorNames[g], m.failed, m.checks)
	}
}

// machine describes the machine and the servers.
func (d *testbed) machine(b *testing.B) string {
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

// syncTime measures an fsync of one page, in microseconds. Group commit shares this time among the requests of a batch.
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

// outFolder returns the folder of -out, relative to this package; empty if it is not set.
func outFolder() string {
	if *outDir == "" || filepath.IsAbs(*outDir) {
		return *outDir
	}
	return filepath.Join("..", *outDir)
}

// document replaces the text between two markers of performance.md, if -out is set.
func document(b *testing.B, begin, end, text string) {
	b.Helper()
	if dir := outFolder(); dir != "" {
		if err := replaceBetween(filepath.Join(dir, "performance.md"), begin, end, text); err != nil {
			b.Fatal(err)
		}
	}
}

// replaceBetween replaces the text between two markers of a file.
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

// TestRatiosUseAdjacentCeilings: a machine whose speed halves between two rounds, or decreases steadily, changes no
// ratio.
func TestRatiosUseAdjacentCeilings(t *testing.T) {
	r := newResults("A machine.", 3, 1)
	for round, speed := range []float64{1, 0.5, 0.25} {
		for l := range loads {
			for c := range contenders {
				now := func(speed float64) sample {
					m := measured{perSecond: speed * 1000, p50: 100, p99: 200, checks: 1}
					return sample{byRequest: m, byBench: m}
				}
				m := now(speed / float64(c+2))
				m[byRequest].p50, m[byBench].p50 = 400, 600
				m[byBench].perSecond *= 1.5
				r.add(round, l, c, m, now(speed*1.2), now(speed*0.8))
			}
		}
	}
	text := r.markdown()
	for _, want := range []string{
		"| ceiling | 400 (200–800) |",
		"| exact, PostgreSQL | 250 (125–500), × 0.50 |",
		"| exact, PostgreSQL | 375 (188–750), × 0.75 |",
		"| exact, PostgreSQL | 10,000 keys, 128 in flight | ≥ × 0.40 | × 0.50 (0.50–0.50) | reached | × 0.75 (0.75–0.75) | reached |",
		"| exact, PostgreSQL | hot key, 128 in flight | ≥ × 0.65 | × 0.50 (0.50–0.50) | not yet | × 0.75 (0.75–0.75) | reached |",
		"| exact, PostgreSQL | 1 in flight, 100 keys | ≤ ceiling + 450 µs | ceiling + 300 µs (300 µs–300 µs) | reached | ceiling + 500 µs (500 µs–500 µs) | not yet |",
		"| exact, PostgreSQL | 10,000 keys, 128 in flight | ≥ 3.50 × system E's SQL | 4.00 (4.00–4.00) × | reached | 4.00 (4.00–4.00) × | reached |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if svg := r.chart(); strings.Count(svg, "<rect") < 4*len(contenders) {
		t.Errorf("chart lacks bars:\n%s", svg)
	}
}
