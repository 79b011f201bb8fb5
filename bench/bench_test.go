// Package bench measures the limiter and what it is compared with, and writes the table and the chart of
// docs/performance.md:
//
//	make bench        # within 20 minutes
//	make bench-quick  # within 2
//	make growth       # many live counters, cleanup, several workers; within 20
//	make soak         # a steady load for 30
//	make alerts-load  # 100,000 events a minute beside alerters; within 10
//
// The contenders answer the same loads in turn. Each is started for its measurement and stopped after it, so that a machine
// whose speed changes does so for all. The ratio that counts is the one to the ceiling just before and after.
package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/postgres"
	"github.com/seed503877ad/limits/internal/testenv"
)

var (
	rounds  = flag.Int("rounds", 0, "rounds of the whole table; 0 skips it")
	seconds = flag.Float64("seconds", 1, "seconds of each measurement, after a warmup of 1 s at most")
	outDir  = flag.String("out", "", "folder of performance.md and performance.svg, from the module's root; empty writes none")
)

const (
	// budget is the time after which no further measurement begins. The table then has only the measurements so far.
	budget = 18 * time.Minute
	// patience bounds every wait for a process or a server, in addition to the time of a measurement.
	patience = 20 * time.Second
	// fillFor is how long keys are exhausted before denials are measured.
	fillFor = 2 * time.Second
	// deniedFor is how long many denied keys are measured, if other measurements take deniedLong seconds at least.
	deniedFor  = 10 * time.Second
	deniedLong = 2
)

func TestMain(m *testing.M) {
	if url := os.Getenv(ceilingEnv); url != "" {
		os.Exit(runCeiling(url))
	}
	if asked := os.Getenv(requestsEnv); asked != "" {
		os.Exit(runRequests(asked))
	}
	testenv.Main(m)
}

// load is a load under which contenders are measured.
type load struct {
	name                        string
	keys, inFlight, connections int
	// latency says that the median time of an answer counts. Otherwise answers per second count.
	latency bool
}

var loads = []load{
	{name: "10,000 keys, 128 in flight", keys: 10_000, inFlight: 128, connections: 4},
	{name: "10,000 keys, 512 in flight", keys: 10_000, inFlight: 512, connections: 4},
	{name: "hot key, 128 in flight", keys: 1, inFlight: 128, connections: 4},
	{name: "hot key, 512 in flight", keys: 1, inFlight: 512, connections: 4},
	// Few keys, so that a warmup with one request at a time has used all of them.
	{name: "1 in flight, 100 keys", keys: 100, inFlight: 1, connections: 1, latency: true},
}

// figure is what counts under the load: its name, and how it is written.
func (l load) figure() (name string, of func(*measured) float64, format func(float64) string) {
	if l.latency {
		return "p50", p50, micros
	}
	return "answers/s", perSecond, thousands
}

// measured is a measurement of one contender under one load in one round.
type measured struct {
	perSecond float64
	p50, p99  float64 // microseconds
	checks    int64
	// failed counts errors, degraded answers, and decisions that the contender is not about (denied or allowed).
	failed int64
}

// generator is what makes requests.
type generator int

const (
	byRequest generator = iota // Request of nats.go, as a service asks
	byBench                    // limiter bench, which takes less processor time
	generators
)

var generatorNames = [generators]string{"`Request` of nats.go", "`limiter bench`"}

// sample is a measurement with each generator.
type sample [generators]measured

// testbed is the servers and programs that all contenders use.
type testbed struct {
	ctx     context.Context
	limiter string // path of the program
	nats    string
	js      jetstream.JetStream
	admin   *pgx.Conn
	dir     string
	warmup  time.Duration
	measure time.Duration
	first   generator // that measures first
}

// BenchmarkTable runs the whole table once; make bench gives its flags.
func BenchmarkTable(b *testing.B) {
	if *rounds <= 0 {
		b.Skip("make bench runs it")
	}
	began := time.Now()
	d := newTestbed(b, budget+2*time.Minute)
	r := newResults(d.machine(b), *rounds, *seconds)
	p, err := d.constant()
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = p.stop() }()
	total := *rounds * len(loads) * len(contenders)
	n := 0
	for round := range *rounds {
		d.first = generator(round) % generators
		for li, l := range loads {
			before, err := d.ceiling(l)
			if err != nil {
				b.Errorf("ceiling, %s: %v", l.name, err)
				continue
			}
			for i := range contenders {
				ci := (i + round) % len(contenders)
				n++
				if time.Since(began) > budget || d.ctx.Err() != nil {
					continue
				}
				m, err := contenders[ci].run(d, l)
				after, ceilingErr := d.ceiling(l)
				if err := errors.Join(err, ceilingErr); err != nil {
					b.Errorf("%s, %s: %v", contenders[ci].name, l.name, err)
					continue
				}
				r.add(round, li, ci, m, before, after)
				before = after
				fmt.Fprintf(os.Stderr, "%4.0fs %3d/%d  %-24s %-27s", time.Since(began).Seconds(), n, total, contenders[ci].name, l.name)
				for g := range generators {
					fmt.Fprintf(os.Stderr, "  %9.0f of %9.0f/s, p50 %6.2f ms, p99 %6.2f ms", m[g].perSecond, after[g].perSecond, m[g].p50/1000, m[g].p99/1000)
				}
				fmt.Fprintln(os.Stderr)
			}
		}
	}
	if err := d.ctx.Err(); err != nil {
		b.Fatalf("ended early, nothing is written: %v", context.Cause(d.ctx))
	}
	text := r.markdown()
	fmt.Println(text)
	if b.Failed() {
		return
	}
	document(b, "<!-- bench table -->", "<!-- end -->", text)
	if dir := outFolder(); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, "performance.svg"), []byte(r.chart()), 0o644); err != nil {
			b.Fatal(err)
		}
	}
}

// newTestbed starts the servers. settings are settings of PostgreSQL in addition to those of testenv.
func newTestbed(b *testing.B, atMost time.Duration, settings ...string) *testbed {
	b.Helper()
	// The context ends everything after an interrupt, a SIGTERM, or atMost if a run hangs in spite of its timeouts.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	b.Cleanup(stop)
	ctx, cancel := context.WithTimeout(ctx, atMost)
	b.Cleanup(cancel)

	d := &testbed{ctx: ctx, dir: b.TempDir(), measure: time.Duration(*seconds * float64(time.Second))}
	d.warmup = min(time.Second, d.measure/2)
	d.limiter = filepath.Join(d.dir, "limiter")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", d.limiter, "../cmd/limiter").CombinedOutput(); err != nil {
		b.Fatalf("build the limiter: %v\n%s", err, out)
	}
	d.nats = testenv.NATSServer(b).URL
	d.js = testenv.JetStream(b, testenv.Connect(b, d.nats))
	var err error
	if d.admin, err = pgx.Connect(ctx, testenv.PostgresServer(b, settings...).URL); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		late, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = d.admin.Close(late)
	})
	for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		if got, err := d.show(setting); err != nil || got != "on" {
			b.Fatalf("PostgreSQL has %s %q (%v), want on", setting, got, err)
		}
	}
	return d
}

func (d *testbed) show(setting string) (value string, err error) {
	err = d.admin.QueryRow(d.ctx, "SHOW "+setting).Scan(&value)
	return value, err
}

// migrated makes a database with the schema of a limiter. It returns its URL and a function that drops it.
func (d *testbed) migrated(name string) (url string, drop func() error, err error) {
	if url, drop, err = d.database(name); err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	_, err = postgres.MigrateUp(ctx, url)
	return url, drop, err
}

// database makes an empty database. It returns its URL and a function that drops it.
func (d *testbed) database(name string) (url string, drop func() error, err error) {
	exec := func(sql string) error {
		ctx, cancel := context.WithTimeout(d.ctx, patience)
		defer cancel()
		_, err := d.admin.Exec(ctx, sql)
		return err
	}
	drop = func() error { return exec("DROP DATABASE IF EXISTS " + name + " WITH (FORCE)") }
	if err := errors.Join(drop(), exec("CREATE DATABASE "+name)); err != nil {
		return "", nil, fmt.Errorf("create database: %w", err)
	}
	u := *d.admin.Config()
	return fmt.Sprintf("postgres://%s:%s@%s:%d/%s?sslmode=disable", u.User, u.Password, u.Host, u.Port, name), drop, nil
}

// waitPublished waits until no more events come. If many keys are exhausted at once, publishing their events takes seconds.
func (d *testbed) waitPublished() error {
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	for last := uint64(0); ; {
		s, err := d.js.Stream(ctx, limits.EventStream)
		if err != nil {
			return fmt.Errorf("wait for the events to be published: %w", err)
		}
		now := s.CachedInfo().State.LastSeq
		if now == last && now > 0 {
			return nil
		}
		last = now
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the events to be published, %d so far: %w", now, ctx.Err())
		case <-time.After(300 * time.Millisecond):
		}
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// deleteStreams deletes streams, so that the events of one measurement cause no work during the next.
func (d *testbed) deleteStreams(names ...string) error {
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	for _, name := range names {
		if err := d.js.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("delete the stream %s: %w", name, err)
		}
	}
	return nil
}
