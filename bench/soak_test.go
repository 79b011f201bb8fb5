package bench

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

var (
	minutes = flag.Int("minutes", 0, "minutes of the soak; 0 skips it")
	rate    = flag.Float64("rate", 2000, "checks a second of the soak")
	window  = flag.String("window", "1h", "window of the soak's limits")
)

const (
	soakKeys = 10_000
	// Goals of the soak.
	soakGrowth, soakHOT = 2.0, 95.0
)

// soakLine has the figures of a minute of the soak. Counts are since the start.
type soakLine struct {
	minute                   int
	paced                    paced
	size, updates, hot, dead int64
}

func (l soakLine) hotPercent() float64 { return 100 * float64(l.hot) / float64(max(1, l.updates)) }

func (l soakLine) row(perSecond float64) string {
	return fmt.Sprintf("| %d | %s | %s | %s | %.1f MB | %d | %.2f %% | %d |", l.minute, thousands(perSecond), millis(l.paced.p50()),
		millis(l.paced.p99()), float64(l.size)/1e6, l.updates, l.hotPercent(), l.dead)
}

const soakHead = "| minute | answers/s | p50 | p99 | table | updates | HOT | dead rows |\n| --- | --- | --- | --- | --- | --- | --- | --- |"

// BenchmarkSoak runs a steady load for a long time, and measures the table each minute. make soak runs it.
func BenchmarkSoak(b *testing.B) {
	if *minutes <= 0 {
		b.Skip("make soak runs it")
	}
	d := newTestbed(b, time.Duration(*minutes+5)*time.Minute)
	url, stop, err := d.serve("soak")
	if err != nil {
		b.Fatal(err)
	}
	defer stop()
	if err := d.touch(soakKeys); err != nil {
		b.Fatal(err)
	}
	admin, err := pgx.Connect(d.ctx, url)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = admin.Close(context.WithoutCancel(d.ctx)) }()
	// Leave out the updates of the first touch.
	if _, err := admin.Exec(d.ctx, "SELECT pg_stat_reset_single_table_counters('counters'::regclass)"); err != nil {
		b.Fatal(err)
	}
	lines, err := d.soak(admin)
	if err != nil {
		b.Fatalf("after %d minutes: %v", len(lines), err)
	}
	text := soakText(d.machine(b), lines)
	fmt.Println(text)
	document(b, "<!-- soak table -->", "<!-- soak end -->", text)
}

// serve starts a worker on a database of its own. It returns the URL of the database, and a function that stops the worker
// and drops the database.
func (d *testbed) serve(name string) (url string, stop func(), err error) {
	url, drop, err := d.migrated(name)
	if err != nil {
		return "", nil, err
	}
	p, err := d.worker(url)
	if err != nil {
		return "", nil, err
	}
	return url, func() { _, _ = p.stop(), drop() }, nil
}

// worker starts a limiter on a database.
func (d *testbed) worker(url string) (*process, error) {
	return d.start("ready nats=", os.Environ(), d.limiter, "serve", "--nats-url", d.nats, "--http", "off", "--data-dir", d.dir, "--database-url", url)
}

// touch sends requests for all keys. They are random, so a key is left out with a probability of e^-15.
func (d *testbed) touch(keys int) error {
	for asked := int64(0); asked < int64(15*keys); {
		a, err := d.ask(load{keys: keys, inFlight: 128, connections: 4}, 0, 2*time.Second, "--window", *window)
		if err != nil {
			return err
		}
		asked += a.Checks
	}
	return nil
}

// soak runs the load, and measures a line each minute. The line of minute 0 is the state at the start.
func (d *testbed) soak(admin *pgx.Conn) (lines []soakLine, err error) {
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	if err := d.waitFolded(admin); err != nil {
		return nil, err
	}
	line, err := d.soakLine(admin, 0, newPaced())
	if err != nil {
		return nil, err
	}
	p, err := d.newPace(ctx, soakKeys, *rate, *window)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "%d minutes at %g checks/s over %d keys\n%s\n", *minutes, *rate, soakKeys, soakHead)
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		lines = append(lines, line)
		fmt.Fprintln(os.Stderr, line.row(float64(line.paced.answered)/60))
		if len(lines) > *minutes {
			cancel()
			<-p.stopped
			lines[len(lines)-1].paced.failed += p.take().failed + p.inFlight
			return lines, nil
		}
		select {
		case <-tick.C:
		case <-d.ctx.Done():
			return lines, context.Cause(d.ctx)
		}
		if line, err = d.soakLine(admin, len(lines), p.take()); err != nil {
			return lines, err
		}
	}
}

// waitFolded waits until all counters are in their table. Before that its size is no basis for a comparison.
func (d *testbed) waitFolded(admin *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		var rows int
		if err := admin.QueryRow(ctx, "SELECT count(*) FROM counters").Scan(&rows); err != nil {
			return fmt.Errorf("wait until %d counters are folded, %d so far: %w", soakKeys, rows, err)
		}
		if rows >= soakKeys {
			return nil
		}
		<-tick.C
	}
}

func (d *testbed) soakLine(admin *pgx.Conn, minute int, p paced) (l soakLine, err error) {
	l = soakLine{minute: minute, paced: p}
	err = admin.QueryRow(d.ctx, `
SELECT pg_table_size('counters'), n_tup_upd, n_tup_hot_upd, n_dead_tup FROM pg_stat_user_tables WHERE relname = 'counters'`).
		Scan(&l.size, &l.updates, &l.hot, &l.dead)
	return l, err
}

func soakText(machine string, lines []soakLine) string {
	var t strings.Builder
	var failed, skipped int64
	most, first, last := int64(0), lines[0], lines[len(lines)-1]
	for _, l := range lines {
		failed, skipped, most = failed+l.paced.failed, skipped+l.paced.skipped, max(most, l.size)
	}
	growth := float64(most) / float64(first.size)
	fmt.Fprintf(&t, "%s\n\n%d min at %s checks/s over %s keys, window %s, one worker.\n\n%s\n", machine, last.minute, thousands(*rate),
		thousands(soakKeys), *window, soakHead)
	for i, l := range lines {
		if i <= 1 || i == len(lines)-1 || i%5 == 0 {
			fmt.Fprintln(&t, l.row(float64(l.paced.answered)/60))
		}
	}
	fmt.Fprintf(&t, "\n%s\n", verdicts([]verdict{
		{"the table at its largest, to its start", "× " + times(growth), "≤ × " + times(soakGrowth), growth <= soakGrowth},
		{"HOT updates", fmt.Sprintf("%.2f %%", last.hotPercent()), fmt.Sprintf("≥ %.0f %%", soakHOT), last.hotPercent() >= soakHOT},
		{"answers that were errors or degraded, or did not come", fmt.Sprint(failed), "0", failed == 0},
		{fmt.Sprintf("requests not sent, with %d in flight", paceMaxInFlight), fmt.Sprint(skipped), "0", skipped == 0},
	}))
	return t.String()
}

// verdict is a figure beside its goal.
type verdict struct {
	what, measured, goal string
	reached              bool
}

func verdicts(all []verdict) string {
	var t strings.Builder
	t.WriteString("| against the goals | measured | goal | |\n| --- | --- | --- | --- |\n")
	for _, v := range all {
		mark := "not yet"
		if v.reached {
			mark = "reached"
		}
		fmt.Fprintf(&t, "| %s | %s | %s | %s |\n", v.what, v.measured, v.goal, mark)
	}
	return t.String()
}
