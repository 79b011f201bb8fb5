package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
)

const (
	requestsEnv  = "LIMITS_BENCH_REQUESTS" // has requests; with it the process makes them instead of running tests
	answerWithin = 2 * time.Second         // as limiter bench has it; a later answer is an error
	anyKey       = "bench:0000000000"
)

// requests are what a process of its own asks, in a closed loop like that of limiter bench but as services do: a goroutine
// for each request in flight, and Request of nats.go.
type requests struct {
	URL, Subject, Body          string // Body has anyKey, whose digits are drawn anew for each request
	Keys, InFlight, Connections int
	Warmup, Measure             time.Duration
}

// request asks with Request of nats.go.
func (d *testbed) request(l load, subject string, r limits.Request, warmup, measure time.Duration) (a answers, err error) {
	self, err := os.Executable()
	if err != nil {
		return a, err
	}
	body, err := json.Marshal(r)
	if err != nil {
		return a, err
	}
	asked, err := json.Marshal(requests{URL: d.nats, Subject: subject, Body: string(body), Keys: l.keys,
		InFlight: l.inFlight, Connections: l.connections, Warmup: warmup, Measure: measure})
	if err != nil {
		return a, err
	}
	ctx, cancel := context.WithTimeout(d.ctx, warmup+measure+patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), requestsEnv+"="+string(asked))
	err = a.readFrom(cmd)
	return a, err
}

// runRequests makes the requests in the child process, and returns the exit status.
func runRequests(asked string) int {
	var r requests
	err := json.Unmarshal([]byte(asked), &r)
	if err == nil {
		var a answers
		if a, err = r.run(); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(a)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (r requests) run() (answers, error) {
	connections, counts := make([]*nats.Conn, r.Connections), make([]*counts, r.Connections)
	for i := range connections {
		nc, err := nats.Connect(r.URL)
		if err != nil {
			return answers{}, err
		}
		defer nc.Close()
		connections[i], counts[i] = nc, newCounts()
	}
	elapsed := closedLoop(context.Background(), r.InFlight, r.Warmup, r.Measure, func(i int, phase *phase) {
		i %= r.Connections
		r.ask(connections[i], phase, counts[i])
	})
	sum := newCounts()
	for _, c := range counts {
		sum.add(c)
	}
	return sum.over(elapsed), nil
}

// ask keeps one request in flight.
func (r requests) ask(nc *nats.Conn, phase *phase, c *counts) {
	body := []byte(r.Body)
	at := strings.Index(r.Body, anyKey) + len("bench:")
	digits := body[at : at+len(anyKey)-len("bench:")]
	for !phase.over() {
		n := rand.IntN(r.Keys)
		for i := len(digits) - 1; i >= 0; i-- {
			digits[i] = byte('0' + n%10)
			n /= 10
		}
		sent := time.Now()
		m, err := nc.Request(r.Subject, body, answerWithin)
		if phase.measuring() {
			c.answer(m, err, time.Since(sent))
		}
	}
}

// counts are those of one connection.
type counts struct {
	sync.Mutex
	answers
	took *hdrhistogram.Histogram // of decisions, in microseconds
}

func newCounts() *counts {
	return &counts{answers: answers{Errors: map[string]int64{}}, took: hdrhistogram.New(1, (2 * answerWithin).Microseconds(), 3)}
}

func (c *counts) answer(m *nats.Msg, err error, took time.Duration) {
	c.Lock()
	defer c.Unlock()
	switch {
	case errors.Is(err, nats.ErrTimeout):
		c.Errors["no_answer"]++
		return
	case err != nil:
		c.Errors[err.Error()]++
		return
	case bytes.HasPrefix(m.Data, []byte(`{"allowed":true`)):
		c.Allowed++
	case bytes.HasPrefix(m.Data, []byte(`{"allowed":false`)):
		c.Denied++
	default:
		c.Errors["no_decision"]++
		return
	}
	if bytes.Contains(m.Data, []byte(`graded":true`)) { // as limiter bench looks for it
		c.Degraded++
	}
	_ = c.took.RecordValue(max(1, took.Microseconds())) // later ones are errors
}

func (c *counts) add(o *counts) {
	c.Allowed, c.Denied, c.Degraded = c.Allowed+o.Allowed, c.Denied+o.Denied, c.Degraded+o.Degraded
	for code, n := range o.Errors {
		c.Errors[code] += n
	}
	c.took.Merge(o.took)
}

// over returns the answers of a measurement that took so long.
func (c *counts) over(elapsed time.Duration) answers {
	a := c.answers
	a.Checks = a.Allowed + a.Denied
	a.PerSecond = float64(a.Checks) / elapsed.Seconds()
	a.LatencyMicros.P50, a.LatencyMicros.P99 = float64(c.took.ValueAtQuantile(50)), float64(c.took.ValueAtQuantile(99))
	return a
}
