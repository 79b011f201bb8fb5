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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// contender is one row of the table.
type contender struct {
	name string
	run  func(*bed, load) (measured, error)
	// goals are the ratios to the ceiling to reach, in the order of loads: at least for answers a second. For the
	// time of an answer, goalMicros is what it may take more than the ceiling, or goalTimes how many times its time.
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
	ceilingEnv     = "LIMITS_BENCH_CEILING" // a NATS URL: answer a constant there instead of running tests
	ceilingSubject = "bench.ceiling"
	ceilingReady   = "ceiling is ready"
)

// ceiling is the most that a NATS micro service can answer: a constant, of the size of a real answer. The service, which
// has to be there, takes nothing of the machine while nobody asks it. It needs little time, and is asked often.
func (d *bed) ceiling(l load) (measured, error) {
	a, err := d.ask(l, d.measure/10, d.measure/3, "--subject", ceilingSubject)
	return a.measured(false), err
}

// constant starts a service that answers the constant.
func (d *bed) constant() (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return d.start(ceilingReady, append(os.Environ(), ceilingEnv+"="+d.nats), self)
}

// runCeiling is the whole life of the child process; it returns the exit status.
func runCeiling(url string) int {
	nc, err := nats.Connect(url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	answer := []byte(`{"allowed":true,"limit":1000000000,"remaining":999999999,"retryAfter":0,"resetAfter":3600000}`)
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

// serving is limiters, one unless said, on a database or a data folder that is fresh for each measurement.
type serving struct {
	workers                  int
	postgres, leased, denied bool
}

func (s serving) run(d *bed, l load) (m measured, err error) {
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
		defer func() { _ = drop() }() // the next measurement needs it dropped, and says so
		args = append(args, "--database-url", url)
	}
	defer func() { err = errors.Join(err, d.forgetEvents()) }()
	for range max(1, s.workers) {
		p, err := d.start("ready nats=", os.Environ(), d.limiter, args...)
		if err != nil {
			return m, err
		}
		defer func() { _ = p.stop() }()
	}
	return s.ask(d, l)
}

// ask measures what the limiters answer. Keys that are to be denied are exhausted before.
func (s serving) ask(d *bed, l load) (measured, error) {
	var asked []string
	measure := d.measure
	if s.leased {
		asked = []string{"--consistency", "leased"}
	}
	if s.denied {
		asked = append(asked, "--limit", "1")
		fill := l
		fill.inFlight, fill.connections = 512, 4
		if _, err := d.ask(fill, 0, fillFor, asked...); err != nil {
			return measured{}, err
		}
		if err := d.published(); err != nil {
			return measured{}, err
		}
		// A counter that is denied has an event every 10 s, all of them within a few seconds, because they were exhausted so.
		if l.keys >= 1000 && *seconds >= 2 {
			measure = 10 * time.Second
		}
	}
	a, err := d.ask(l, d.warmup, measure, asked...)
	return a.measured(s.denied), err
}

// process is a program that was started.
type process struct {
	pid  int
	stop func() error
}

// start runs a program until it says that it is ready.
func (d *bed) start(ready string, env []string, path string, args ...string) (*process, error) {
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
	var said bytes.Buffer // to be read when done is closed
	go func() {
		defer close(done)
		isReady := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if !isReady && strings.Contains(lines.Text(), ready) {
				isReady = true
				close(seen)
			}
			if said.Len() < 1<<16 {
				fmt.Fprintln(&said, lines.Text())
			}
		}
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait() // how it ended is no news: it was told to
	}()
	// A limiter publishes for up to 5 s the events that are left, which nobody waits for here.
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
			return fmt.Errorf("process %d outlives SIGKILL", cmd.Process.Pid)
		}
	}
	select {
	case <-seen:
		return &process{pid: cmd.Process.Pid, stop: stop}, nil
	case <-done:
		return nil, fmt.Errorf("ended before it was ready:\n%s", said.String())
	case <-time.After(patience):
		return nil, errors.Join(errors.New("not ready after "+patience.String()), stop())
	}
}

// withoutSettings drops the settings of a limiter that the shell may have.
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

// answers is what limiter bench --json prints, as far as it is used.
type answers struct {
	Checks, Allowed, Denied, Degraded int64
	PerSecond                         float64
	Errors                            map[string]int64
	LatencyMicros                     struct {
		P50, P99, Max float64
		P999          float64 `json:"p99.9"`
	}
}

func (a answers) measured(denied bool) measured {
	m := measured{perSecond: a.PerSecond, p50: a.LatencyMicros.P50, p99: a.LatencyMicros.P99, checks: a.Checks, failed: a.Degraded}
	for _, n := range a.Errors {
		m.failed += n
	}
	if denied {
		m.failed += a.Allowed
	} else {
		m.failed += a.Denied
	}
	return m
}

// ask runs limiter bench, a process of its own like all the rest.
func (d *bed) ask(l load, warmup, measure time.Duration, args ...string) (a answers, err error) {
	ctx, cancel := context.WithTimeout(d.ctx, warmup+measure+patience)
	defer cancel()
	args = append([]string{"bench", "--nats-url", d.nats, "--json", "--quiet",
		"--keys", strconv.Itoa(l.keys), "--in-flight", strconv.Itoa(l.inFlight), "--connections", strconv.Itoa(l.connections),
		"--warmup", warmup.String(), "--duration", measure.String()}, args...)
	cmd := exec.CommandContext(ctx, d.limiter, args...)
	cmd.Env = withoutSettings(os.Environ())
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return a, fmt.Errorf("limiter bench: %w\n%s", err, complaint.String())
	}
	if err := json.Unmarshal(out, &a); err != nil {
		return a, fmt.Errorf("read result of limiter bench: %w", err)
	}
	return a, nil
}
