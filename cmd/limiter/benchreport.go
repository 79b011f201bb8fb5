package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// benchResult is the result of a bench as --json prints it. Checks counts the answers that are decisions.
type benchResult struct {
	Verb        string           `json:"verb"`
	Algorithm   string           `json:"algorithm"`
	Consistency string           `json:"consistency"`
	Connections int              `json:"connections"`
	InFlight    int              `json:"inFlight"`
	Keys        int              `json:"keys"`
	Seconds     float64          `json:"seconds"`
	Checks      int64            `json:"checks"`
	PerSecond   float64          `json:"perSecond"`
	Allowed     int64            `json:"allowed"`
	Denied      int64            `json:"denied"`
	Degraded    int64            `json:"degraded"`
	Errors      map[string]int64 `json:"errors"`
	Latency     latency          `json:"latencyMicros"`
	// Generator is the processor time of the bench itself per check, in microseconds; 0 if it is not known.
	Generator float64 `json:"generatorMicros"`
}

// latency is the latency of the decisions, in microseconds. In a closed loop a slow service gets fewer requests, so these
// are not the latencies under a fixed rate of requests (coordinated omission).
type latency struct {
	P50  int64 `json:"p50"`
	P90  int64 `json:"p90"`
	P99  int64 `json:"p99"`
	P999 int64 `json:"p99.9"`
	Max  int64 `json:"max"`
}

func (c *benchCmd) result(t tally, elapsed, cpu time.Duration) benchResult {
	r := benchResult{
		Verb: c.Verb, Algorithm: c.Algorithm, Consistency: c.Consistency, Connections: c.Connections, InFlight: c.InFlight, Keys: c.Keys,
		Seconds: elapsed.Seconds(), Checks: t.allowed + t.denied,
		Allowed: t.allowed, Denied: t.denied, Degraded: t.degraded, Errors: t.failures,
		Latency: latency{
			P50: t.took.ValueAtQuantile(50), P90: t.took.ValueAtQuantile(90), P99: t.took.ValueAtQuantile(99),
			P999: t.took.ValueAtQuantile(99.9), Max: t.took.Max(),
		},
	}
	r.PerSecond = float64(r.Checks) / r.Seconds
	if r.Checks > 0 {
		r.Generator = float64(cpu.Microseconds()) / float64(r.Checks)
	}
	return r
}

// report prints the result. It is an error if no check was answered.
func (c *benchCmd) report(s *session, t tally, elapsed, cpu time.Duration) error {
	r := c.result(t, elapsed, cpu)
	if c.JSON {
		text, err := json.Marshal(r)
		if err != nil {
			return err
		}
		s.out.line(text)
	} else {
		printResult(s, &r)
	}
	if r.Checks == 0 {
		return errors.New("bench: no check was answered")
	}
	return nil
}

func printResult(s *session, r *benchResult) {
	fmt.Fprintf(s.out, "%s, %s, %d in flight over %s, %s, %.1f s\n", r.Verb, r.Algorithm,
		r.InFlight, count(r.Connections, "connection"), count(r.Keys, "key"), r.Seconds)
	t := newTable(s.out, "checks/s", fmt.Sprintf("%.0f", r.PerSecond))
	t.row("allowed", r.Allowed)
	t.row("denied", r.Denied)
	t.row("degraded", r.Degraded)
	t.row("errors", errorsByCode(r.Errors))
	l := r.Latency
	for _, p := range []struct {
		name   string
		micros int64
	}{{"p50", l.P50}, {"p90", l.P90}, {"p99", l.P99}, {"p99.9", l.P999}, {"max", l.Max}} {
		t.row(p.name, fmt.Sprintf("%.2f ms", float64(p.micros)/1000))
	}
	if r.Generator > 0 {
		t.row("generator", fmt.Sprintf("%.1f µs processor time a check, %.0f %% of one core",
			r.Generator, r.Generator*r.PerSecond/1e4))
	}
	t.flush()
}

// errorsByCode formats failures in order of the codes, such as "1 no_answer, 12 overloaded"; "0" for none.
func errorsByCode(failures map[string]int64) string {
	var all []string
	for _, code := range slices.Sorted(maps.Keys(failures)) {
		all = append(all, fmt.Sprintf("%d %s", failures[code], code))
	}
	return cmp.Or(strings.Join(all, ", "), "0")
}
