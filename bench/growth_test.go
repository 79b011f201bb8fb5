package bench

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

var growKeys = flag.Int("grow", 0, "live counters of the large table of the growth figures; 0 skips them")

const (
	// growFew is how many keys are checked in both tables.
	growFew    = 10_000
	growRounds = 3
	// growFor is how long a measurement takes.
	growFor = 5 * time.Second
	// growMemory is how long a worker gets requests before its memory is measured.
	growMemory = 40 * time.Second
	// growBudget ends a run that hangs.
	growBudget = 19 * time.Minute
)

// growth has the data of the growth figures.
type growth struct {
	*testbed
	small, large string // URLs of the databases
	conn         *pgx.Conn
	postmaster   int
	began        time.Time

	tables                           [][]taken // by tableRows, then round
	memory, memorySmall              float64   // MiB
	rowBytes, indexBytes, stateBytes float64
	cleanups                         []*cleanup
	workers                          [][]taken // by workerCounts, then round
	constants                        [][]taken // likewise, of services that answer a constant
	lockWaits                        []float64 // the longest, by workerCounts
	fillSeconds, vacuumSeconds       float64
	failed                           int64 // answers
}

// ask counts the answers that are not decisions of the store.
func (g *growth) ask(l load, warmup, measure time.Duration, args ...string) (answers, error) {
	a, err := g.testbed.ask(l, warmup, measure, args...)
	g.failed += a.measured(false).failed
	return a, err
}

// taken is one measurement, with the resources used per check.
type taken struct {
	answers
	worker, server, wal float64 // µs, µs, bytes
}

// tableRows are the rows of the first table. The warmup of all keys is long enough for a worker to have more keys than it
// caches, and than usage counts by themselves; the measurement draws others.
var tableRows = []struct {
	name   string
	large  bool
	all    bool // of the keys
	warmup time.Duration
}{
	{"10,000 keys of 10,000", false, false, 3 * time.Second},
	{"the same 10,000 keys of the large table", true, false, 3 * time.Second},
	{"all keys of the large table", true, true, 15 * time.Second},
	{"all keys, a worker that has just started", true, true, 0},
}

var workerCounts = []int{1, 2, 4}

// BenchmarkGrowth measures how the cost of a check grows with the number of stored counters, what the removal of expired
// counters costs, and several workers on one PostgreSQL. make growth runs it.
func BenchmarkGrowth(b *testing.B) {
	if *growKeys <= 0 {
		b.Skip("make growth runs it")
	}
	// The memory of a server that is sized for this. Checkpoints are rare, because after each one whole pages go into the log.
	g := &growth{testbed: newTestbed(b, growBudget, "shared_buffers=4GB", "max_wal_size=16GB"), began: time.Now()}
	for _, step := range []struct {
		what string
		run  func() error
	}{
		{"one, two, four workers", g.measureWorkers},
		{fmt.Sprintf("fill %d counters", *growKeys), g.fill},
		{"time of a check", g.measureTables},
		{"memory of a worker", g.measureMemory},
		{fmt.Sprintf("clean up %d counters", *growKeys/2), g.measureCleanup},
	} {
		g.say("%s", step.what)
		if err := step.run(); err != nil {
			b.Fatalf("%s: %v", step.what, err)
		}
	}
	text := g.markdown(g.machine(b))
	fmt.Println(text)
	document(b, "<!-- growth table -->", "<!-- growth end -->", text)
}

func (g *growth) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%4.0fs  %s\n", time.Since(g.began).Seconds(), fmt.Sprintf(format, args...))
}

// fill makes a table with few counters and one with many.
func (g *growth) fill() (err error) {
	if g.postmaster, err = g.testbed.postmaster(); err != nil {
		return err
	}
	for _, t := range []struct {
		url  *string
		name string
		rows int
	}{{&g.small, "small", growFew}, {&g.large, "large", *growKeys}} {
		if *t.url, _, err = g.migrated(t.name); err != nil {
			return err
		}
		if err := g.fillOne(*t.url, t.rows); err != nil {
			return err
		}
	}
	return nil
}

// fillOne has a limiter write one counter, and copies it. It keeps the connection open for the later steps.
func (g *growth) fillOne(url string, rows int) (err error) {
	if _, err := g.measureFresh(url, load{keys: 1, inFlight: 1, connections: 1}, 0, time.Second); err != nil {
		return err
	}
	if g.conn, err = pgx.Connect(g.ctx, url); err != nil {
		return err
	}
	began := time.Now()
	if err := g.add(0, rows, false); err != nil {
		return err
	}
	g.fillSeconds, began = time.Since(began).Seconds(), time.Now()
	if err := execEach(g.ctx, g.conn, "VACUUM ANALYZE counters", "CHECKPOINT"); err != nil {
		return err
	}
	g.vacuumSeconds = time.Since(began).Seconds()
	table, indexes, err := relationSizes(g.ctx, g.conn)
	if err != nil {
		return err
	}
	g.rowBytes, g.indexBytes = table/float64(rows), indexes/float64(rows)
	g.say("  %d rows in %.0f s, vacuum and checkpoint %.0f s, %.0f + %.0f B a counter (table, indexes)", rows, g.fillSeconds,
		g.vacuumSeconds, g.rowBytes, g.indexBytes)
	return g.conn.QueryRow(g.ctx, "SELECT length(state)::float8 FROM counters LIMIT 1").Scan(&g.stateBytes)
}

// add copies the first counter in parts, so that an interrupt takes effect soon.
func (g *growth) add(from, to int, expired bool) error {
	const part = 500_000
	for ; from < to; from += part {
		if err := multiply(g.ctx, g.conn, from, min(to, from+part), expired); err != nil {
			return err
		}
	}
	return nil
}

// measureFresh starts a worker on a database, measures it, and stops it.
func (g *growth) measureFresh(url string, l load, warmup, measure time.Duration) (t taken, err error) {
	p, err := g.worker(url)
	if err != nil {
		return t, err
	}
	defer func() { _ = p.stop() }()
	return g.measureWorker(p, l, warmup, measure)
}

// measureWorker measures a running worker. The resources used and the checks are both counted from the start of the load to
// its end.
func (g *growth) measureWorker(p *process, l load, warmup, measure time.Duration) (t taken, err error) {
	if warmup > 0 {
		if _, err := g.ask(l, 0, warmup); err != nil {
			return t, err
		}
	}
	wal, err := g.walWritten()
	if err != nil {
		return t, err
	}
	_, worker := stat(p.pid)
	server := family(g.postmaster)
	if t.answers, err = g.ask(l, 0, measure); err != nil {
		return t, err
	}
	_, workerEnd := stat(p.pid)
	walEnd, err := g.walWritten()
	each := func(v float64) float64 { return v / float64(max(1, t.Checks)) }
	t.worker = each(float64((workerEnd - worker).Microseconds()))
	t.server = each(float64((family(g.postmaster) - server).Microseconds()))
	t.wal = each(walEnd - wal)
	return t, err
}

// measureTables measures every row of the first table in turn.
func (g *growth) measureTables() error {
	g.tables = make([][]taken, len(tableRows))
	for round := range growRounds {
		for i := range tableRows {
			row := (i + round) % len(tableRows)
			r := tableRows[row]
			url, keys := g.small, growFew
			if r.large {
				url = g.large
			}
			if r.all {
				keys = *growKeys
			}
			t, err := g.measureFresh(url, load{keys: keys, inFlight: 128, connections: 4}, r.warmup, growFor)
			if err != nil {
				return err
			}
			g.tables[row] = append(g.tables[row], t)
			g.say("  %-40s %6.0f/s  p99 %5.1f ms, worker %4.1f µs, PostgreSQL %4.1f µs, log %5.0f B a check", r.name, t.PerSecond,
				t.LatencyMicros.P99/1000, t.worker, t.server, t.wal)
		}
	}
	return nil
}

func (g *growth) measureMemory() error {
	for keys, peak := range map[int]*float64{growFew: &g.memorySmall, *growKeys: &g.memory} {
		p, err := g.worker(g.large)
		if err != nil {
			return err
		}
		t, err := g.measureWorker(p, load{keys: keys, inFlight: 512, connections: 4}, 0, growMemory)
		*peak = peakMemory(p.pid)
		_ = p.stop()
		if err != nil {
			return err
		}
		g.say("  %d keys: %.0f MiB after %d checks", keys, *peak, t.Checks)
	}
	return nil
}

// measureWorkers measures one, two and four workers on one small table, and the waits for locks. All workers of a round get
// requests for the same keys.
func (g *growth) measureWorkers() error {
	g.workers, g.lockWaits = make([][]taken, len(workerCounts)), make([]float64, len(workerCounts))
	g.constants = make([][]taken, len(workerCounts))
	for round := range growRounds {
		for i := range workerCounts {
			at := (i + round) % len(workerCounts)
			t, wait, err := g.severalWorkers(workerCounts[at])
			if err != nil {
				return err
			}
			g.workers[at] = append(g.workers[at], t)
			g.lockWaits[at] = max(g.lockWaits[at], wait)
			g.say("  %d workers: %6.0f/s  p50 %4.1f ms, p99 %4.1f ms, p99.9 %4.1f ms, max %.0f ms; longest lock wait seen %.0f ms",
				workerCounts[at], t.PerSecond, t.LatencyMicros.P50/1000, t.LatencyMicros.P99/1000, t.LatencyMicros.P999/1000,
				t.LatencyMicros.Max/1000, wait)
			if t, err = g.severalConstants(workerCounts[at]); err != nil {
				return err
			}
			g.constants[at] = append(g.constants[at], t)
			g.say("  %d services that answer a constant: %6.0f/s", workerCounts[at], t.PerSecond)
		}
	}
	return nil
}

// severalConstants measures n services that answer a constant: the cost of processes that only receive requests.
func (g *growth) severalConstants(n int) (t taken, err error) {
	for range n {
		p, err := g.constant()
		if err != nil {
			return t, err
		}
		defer func() { _ = p.stop() }()
	}
	t.answers, err = g.ask(loads[0], time.Second, growFor, "--subject", ceilingSubject)
	return t, err
}

func (g *growth) severalWorkers(n int) (t taken, wait float64, err error) {
	url, drop, err := g.migrated("bench")
	if err != nil {
		return t, 0, err
	}
	defer func() { _ = drop() }()
	for range n {
		p, err := g.worker(url)
		if err != nil {
			return t, 0, err
		}
		defer func() { _ = p.stop() }()
	}
	if _, err := g.ask(loads[0], 0, 2*time.Second); err != nil {
		return t, 0, err
	}
	ctx, cancel := context.WithCancel(g.ctx)
	longest := g.longestLockWait(ctx)
	t.answers, err = g.ask(loads[0], 0, growFor)
	cancel()
	return t, <-longest, err
}
