package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
)

// contender is one row of the table.
type contender struct {
	name string
	run  func(*testbed, load) (sample, error)
	// goals are the least ratios of answers per second to the ceiling, in the order of loads. For the time of an answer,
	// goalMicros is how much more than the ceiling's it may be, or goalTimes how many times the ceiling's.
	goals                 [4]float64
	goalMicros, goalTimes float64
}

var contenders = []contender{
	{name: "exact, PostgreSQL", run: serving{postgres: true}.run, goals: [4]float64{0.40, 0.45, 0.65, 0.75}, goalMicros: 450},
	{name: "exact, SQLite", run: serving{}.run, goals: [4]float64{0.40, 0.45, 0.65, 0.75}, goalMicros: 400},
	{name: "leased, PostgreSQL", run: serving{postgres: true, leased: true}.run, goals: [4]float64{0.80, 0.80, 0.85, 0.85}, goalTimes: 1.15},
	{name: "denied keys, PostgreSQL", run: serving{postgres: true, denied: true}.run, goals: [4]float64{0.85, 0.85, 0.85, 0.85}, goalTimes: 1.15},
	{name: "two workers, PostgreSQL", run: serving{postgres: true, workers: 2}.run},
	{name: "system A's SQL", run: systemA.run},
	{name: "system E's SQL", run: systemE.run},
}

const (
	ceilingEnv     = "LIMITS_BENCH_CEILING" // has a NATS URL; with it the process answers a constant there instead of running tests
	ceilingSubject = "bench.ceiling"
	ceilingReady   = "ceiling is ready"
)

// ceiling measures the most that a NATS micro service can answer: a constant of the size of a real answer. The service from
// constant must run; it uses no processor time while it is not asked. The measurements are short, because they are made often.
func (d *testbed) ceiling(l load) (sample, error) {
	return d.both(func(g generator) (answers, error) {
		if g == byRequest {
			return d.request(l, ceilingSubject, limits.Per(anyKey, limits.MaxAmount, "1h"), d.measure/10, d.measure/3)
		}
		return d.ask(l, d.measure/10, d.measure/3, "--subject", ceilingSubject)
	}, false)
}

// both measures with both generators. Which one is first changes from round to round.
func (d *testbed) both(ask func(generator) (answers, error), denied bool) (s sample, err error) {
	for i := range generators {
		g := (i + d.first) % generators
		a, err := ask(g)
		if err != nil {
			return s, err
		}
		s[g] = a.measured(denied)
	}
	return s, nil
}

// constant starts a service that answers a constant, in a process of its own.
func (d *testbed) constant() (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return d.start(ceilingReady, append(os.Environ(), ceilingEnv+"="+d.nats), self)
}

// runCeiling runs the service in the child process, and returns the exit status.
func runCeiling(url string) int {
	nc, err := nats.Connect(url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// What a limiter answers to a request of the load.
	answer := []byte(`{"allowed":true,"key":"bench:0000000000","name":"1h","limit":1000000000,"remaining":999999999,"reset":1795229011000}`)
	s, err := micro.AddService(nc, micro.Config{Name: "ceiling", Version: "1.0.0"})
	if err == nil {
		err = s.AddEndpoint("answer", micro.HandlerFunc(func(r micro.Request) { _ = r.Respond(answer) }),
			micro.WithEndpointSubject(ceilingSubject))
	}
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(ceilingReady)
	select {} // until a signal
}

// serving is the contender that runs limiters, by default one, on a fresh database or data folder for each measurement.
type serving struct {
	workers                  int
	postgres, leased, denied bool
}

func (s serving) run(d *testbed, l load) (m sample, err error) {
	dir, err := os.MkdirTemp(d.dir, "data-")
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	args := []string{"serve", "--nats-url", d.nats, "--http", "off", "--data-dir", dir}
	if s.postgres {
		url, drop, err := d.migrated("bench")
		if err != nil {
			return m, err
		}
		defer func() { _ = drop() }() // if it fails, the next measurement drops it or fails
		args = append(args, "--database-url", url)
	}
	defer func() { err = errors.Join(err, d.deleteStreams(limits.EventStream)) }()
	for range max(1, s.workers) {
		p, err := d.start("ready nats=", os.Environ(), d.limiter, args...)
		if err != nil {
			return m, err
		}
		defer func() { _ = p.stop() }()
	}
	return s.ask(d, l)
}

// ask measures the limiters. For denials it exhausts the keys first.
func (s serving) ask(d *testbed, l load) (sample, error) {
	var flags []string
	r, measure := limits.Per(anyKey, limits.MaxAmount, "1h"), d.measure
	if s.leased {
		flags, r.Consistency = []string{"--consistency", limits.Leased}, limits.Leased
	}
	if s.denied {
		flags, r.Limit = []string{"--limit", "1"}, 1
		fill := l
		fill.inFlight, fill.connections = 512, 4
		if _, err := d.ask(fill, 0, fillFor, flags...); err != nil {
			return sample{}, err
		}
		if err := d.waitPublished(); err != nil {
			return sample{}, err
		}
		// A denied counter has an event every 10 s. All counters have theirs within the same few seconds, because they were
		// exhausted at about the same time. So measure a whole interval.
		if l.keys >= 1000 && *seconds >= deniedLong {
			measure = deniedFor
		}
	}
	return d.both(func(g generator) (answers, error) {
		if g == byRequest {
			return d.request(l, limits.SubjectConsume, r, d.warmup, measure)
		}
		return d.ask(l, d.warmup, measure, flags...)
	}, s.denied)
}

// process is a program that runs.
type process struct {
	pid  int
	stop func() error
}

// start starts a program, and returns when its output has the text ready.
func (d *testbed) start(ready string, env []string, path string, args ...string) (*process, error) {
	cmd := exec.CommandContext(d.ctx, path, args...)
	cmd.Env = withoutSettings(env)
	out, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = cmd.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	seen, done := make(chan struct{}), make(chan struct{})
	var output bytes.Buffer // may be read after done is closed
	go func() {
		defer close(done)
		isReady := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if !isReady && strings.Contains(lines.Text(), ready) {
				isReady = true
				close(seen)
			}
			if output.Len() < 1<<16 {
				fmt.Fprintln(&output, lines.Text())
			}
		}
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait() // it fails, because the process is stopped by a signal
	}()
	// On its stop a limiter publishes the events that are left for up to 5 s. Nothing here needs them, so it is killed after 2 s.
	stop := func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
			return nil
		case <-time.After(2 * time.Second):
		}
		_ = cmd.Process.Kill()
		select {
		case <-done:
			return nil
		case <-time.After(patience):
			return fmt.Errorf("process %d is still running after SIGKILL", cmd.Process.Pid)
		}
	}
	select {
	case <-seen:
		return &process{pid: cmd.Process.Pid, stop: stop}, nil
	case <-done:
		return nil, fmt.Errorf("ended before it was ready:\n%s", output.String())
	case <-time.After(patience):
		return nil, errors.Join(errors.New("not ready after "+patience.String()), stop())
	}
}

// withoutSettings removes settings of a limiter from an environment.
func withoutSettings(env []string) (kept []string) {
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		switch name {
		case "DATABASE_URL", "DATA_DIR", "NATS_URL", "NATS_LISTEN", "HTTP_ADDR", "WARNING_THRESHOLD", "ON_ERROR",
			"SOURCE", "LOG_LEVEL", "LOG_FORMAT", "NATS_CREDS", "NATS_TLS_CA", "NATS_TLS_CERT", "NATS_TLS_KEY":
		default:
			kept = append(kept, e)
		}
	}
	return kept
}

// answers is the part of the output of limiter bench --json that is used.
type answers struct {
	Checks, Allowed, Denied, Degraded int64
	PerSecond                         float64
	Errors                            map[string]int64
	LatencyMicros                     struct {
		P50, P99, Max float64
		P999          float64 `json:"p99.9"`
	}
}

// measured counts only the answers that the contender is about.
func (a answers) measured(denied bool) measured {
	m := measured{p50: a.LatencyMicros.P50, p99: a.LatencyMicros.P99, checks: a.Checks, failed: a.Degraded}
	if denied {
		m.failed += a.Allowed
	} else {
		m.failed += a.Denied
	}
	m.perSecond = a.PerSecond * max(0, 1-float64(m.failed)/float64(max(1, a.Checks)))
	for _, n := range a.Errors { // which are no checks
		m.failed += n
	}
	return m
}

// ask runs limiter bench in a process of its own.
func (d *testbed) ask(l load, warmup, measure time.Duration, args ...string) (a answers, err error) {
	ctx, cancel := context.WithTimeout(d.ctx, warmup+measure+patience)
	defer cancel()
	args = append([]string{"bench", "--nats-url", d.nats, "--json", "--quiet",
		"--keys", strconv.Itoa(l.keys), "--in-flight", strconv.Itoa(l.inFlight), "--connections", strconv.Itoa(l.connections),
		"--warmup", warmup.String(), "--duration", measure.String()}, args...)
	cmd := exec.CommandContext(ctx, d.limiter, args...)
	cmd.Env = withoutSettings(os.Environ())
	err = a.readFrom(cmd)
	return a, err
}

// readFrom runs a generator and reads what it prints.
func (a *answers) readFrom(cmd *exec.Cmd) error {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, stderr.String())
	}
	if err := json.Unmarshal(out, a); err != nil {
		return fmt.Errorf("read what %s printed: %w", filepath.Base(cmd.Path), err)
	}
	return nil
}
