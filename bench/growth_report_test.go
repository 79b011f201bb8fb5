package bench

import (
	"fmt"
	"strings"
)

const (
	growGoal    = 1.25 // times the time of a check
	memoryGoal  = 256  // MiB
	workersGoal = 0.90 // of what one worker answers
	lockGoal    = 50   // ms
)

// of returns a figure of every round.
func of(all []taken, figure func(taken) float64) (values []float64) {
	for _, t := range all {
		values = append(values, figure(t))
	}
	return values
}

func answered(t taken) float64  { return t.PerSecond }
func checkTime(t taken) float64 { return 1e6 / t.PerSecond }

// processors returns the processor time per check, which other work on the machine changes less than the elapsed time.
func processors(t taken) float64 { return t.worker + t.server }

// against returns the ratios of a figure, round by round.
func against(all, base []taken, figure func(taken) float64) (ratios []float64) {
	for i := range min(len(all), len(base)) {
		ratios = append(ratios, figure(all[i])/figure(base[i]))
	}
	return ratios
}

// markdown returns the text between the markers of performance.md.
func (g *growth) markdown(machine string) string {
	var t strings.Builder
	fmt.Fprintf(&t, "%s shared_buffers 4 GB, max_wal_size 16 GB.\n\n%d rounds in turn, %s each: median (least–most). The large table has %s live counters.\n\n",
		machine, growRounds, growFor, thousands(float64(*growKeys)))
	g.tablesText(&t)
	fmt.Fprintf(&t, "\nThe large table takes %.0f B a counter, and its two indexes %.0f B; the state itself is %.0f B. To fill it took %.0f s, vacuum and checkpoint %.0f s. A worker that was asked for all keys for %s, 512 in flight, had %.0f MiB in memory at its peak; %.0f MiB when asked for 10,000.\n\n",
		g.rowBytes, g.indexBytes, g.stateBytes, g.fillSeconds, g.vacuumSeconds, growMemory, g.memory, g.memorySmall)
	g.cleanupText(&t)
	g.workersText(&t)
	t.WriteString("\n" + verdicts(g.verdicts()))
	return t.String()
}

func (g *growth) tablesText(t *strings.Builder) {
	t.WriteString("| 128 in flight | answers/s | time of a check | × | p99 | worker CPU | PostgreSQL CPU | both, × | log |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for i, row := range tableRows {
		all := g.tables[i]
		fmt.Fprintf(t, "| %s | %s | %.1f µs | %s | %s | %.1f µs | %.1f µs | %s | %.0f B |\n", row.name, spread(of(all, answered), thousands),
			median(of(all, checkTime)), spread(against(all, g.tables[0], checkTime), times),
			millis(median(of(all, func(t taken) float64 { return t.LatencyMicros.P99 }))), median(of(all, func(t taken) float64 { return t.worker })),
			median(of(all, func(t taken) float64 { return t.server })), spread(against(all, g.tables[0], processors), times), median(of(all, func(t taken) float64 { return t.wal })))
	}
}

func (g *growth) cleanupText(t *strings.Builder) {
	fmt.Fprintf(t, "The job `expire` of an alerter removes %s expired counters in parts, beside checks of 10,000 keys of the large table:\n\n", thousands(float64(*growKeys/2)))
	t.WriteString("| beside | rows/s | p99 without | p99 with | × |\n| --- | --- | --- | --- | --- |\n")
	for _, c := range g.cleanups {
		fmt.Fprintf(t, "| %s | %s | %s | %s | %s |\n", c.load, thousands(c.perSecond()), spread(c.without, millis), spread(c.with, millis), spread(c.ratios(), times))
	}
	t.WriteString("\n")
}

func (g *growth) workersText(t *strings.Builder) {
	t.WriteString("| workers, 10,000 keys, 128 in flight | answers/s in all | × | × of services that answer a constant | p50 | p99 | p99.9 | longest | longest wait for a lock |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for i, n := range workerCounts {
		all := g.workers[i]
		at := func(f func(taken) float64) string { return millis(median(of(all, f))) }
		fmt.Fprintf(t, "| %d | %s | %s | %s | %s | %s | %s | %s | %.0f ms |\n", n, spread(of(all, answered), thousands),
			spread(against(all, g.workers[0], answered), times), spread(against(g.constants[i], g.constants[0], answered), times),
			at(func(t taken) float64 { return t.LatencyMicros.P50 }), at(func(t taken) float64 { return t.LatencyMicros.P99 }),
			at(func(t taken) float64 { return t.LatencyMicros.P999 }), at(func(t taken) float64 { return t.LatencyMicros.Max }), g.lockWaits[i])
	}
}

func (g *growth) verdicts() (all []verdict) {
	for _, row := range []int{1, 2} {
		r := against(g.tables[row], g.tables[0], checkTime)
		all = append(all, verdict{"time of a check, " + tableRows[row].name, "× " + spread(r, times), "≤ × " + times(growGoal), median(r) <= growGoal})
	}
	all = append(all, verdict{"memory of a worker, all keys of the large table", fmt.Sprintf("%.0f MiB", g.memory), fmt.Sprintf("< %d MiB", memoryGoal), g.memory < memoryGoal})
	for _, c := range g.cleanups {
		all = append(all, verdict{fmt.Sprintf("p99 during the removal, %s (%s rows/s)", c.load, thousands(c.perSecond())), "× " + spread(c.ratios(), times),
			"≤ × " + times(cleanGoal), median(c.ratios()) <= cleanGoal})
	}
	for i := 1; i < len(workerCounts); i++ {
		r := against(g.workers[i], g.workers[0], answered)
		all = append(all,
			verdict{fmt.Sprintf("%d workers, answers of one", workerCounts[i]), "× " + spread(r, times), "≥ × " + times(workersGoal), median(r) >= workersGoal},
			verdict{fmt.Sprintf("%d workers, longest wait for a lock", workerCounts[i]), fmt.Sprintf("%.0f ms", g.lockWaits[i]),
				fmt.Sprintf("≤ %d ms", lockGoal), g.lockWaits[i] <= lockGoal})
	}
	return append(all, verdict{"answers that were errors, degraded or denied", fmt.Sprint(g.failed), "0", g.failed == 0})
}
