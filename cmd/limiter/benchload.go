package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
)

// answerTimeout is when a request counts as lost; sweepEvery is how often that is looked at.
const (
	answerTimeout = 2 * time.Second
	sweepEvery    = 100 * time.Millisecond
)

// benchKey is the key whose digits are written anew for each request.
const benchKey = "bench:0000000000"

// load keeps a number of requests in flight. It is built to cost little, so that it is the service that is
// measured: no goroutine and no channel for a request, but one subscription for a connection, whose callback
// tells the slot by the last token of the reply subject, counts, writes the digits of the next key into the
// slot's body and publishes again.
type load struct {
	subject     string
	anyAnswer   bool
	keys        int
	connections []*connection
	began       time.Time
	stopSweep   chan struct{}
	swept       sync.WaitGroup
}

// connection is one NATS connection with its slots; mu guards all that changes.
type connection struct {
	load  *load
	nc    *nats.Conn
	inbox string

	mu        sync.Mutex
	slots     []slot
	random    *rand.Rand
	inFlight  int
	measuring bool
	stopping  bool
	drained   chan struct{}
	tally     tally
	// lost are the answers that were missing when the measuring had ended.
	lost int64
}

// slot is one place for a request in flight.
type slot struct {
	body, digits []byte
	reply        string
	// round tells a late answer, whose request was given up, from the one that is waited for.
	round   int
	waiting bool
	sent    time.Duration
}

func newLoad(subject string, anyAnswer bool, keys int) *load {
	return &load{subject: subject, anyAnswer: anyAnswer, keys: keys, began: time.Now(), stopSweep: make(chan struct{})}
}

// add gives the load a connection with n slots.
func (l *load) add(nc *nats.Conn, n int, r limits.Request) error {
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write request: %w", err)
	}
	c := &connection{
		load: l, nc: nc, inbox: nc.NewInbox() + ".", slots: make([]slot, n), drained: make(chan struct{}),
		random: rand.New(rand.NewPCG(uint64(len(l.connections)), 0)), tally: newTally(),
	}
	at := bytes.Index(body, []byte(benchKey)) + len("bench:")
	for i := range c.slots {
		own := bytes.Clone(body)
		c.slots[i] = slot{body: own, digits: own[at : at+len(benchKey)-len("bench:")]}
		c.address(i)
	}
	s, err := nc.Subscribe(c.inbox+"*", c.answered)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	l.connections = append(l.connections, c)
	return s.SetPendingLimits(-1, -1) // what is in flight bounds it
}

// address writes the reply subject of a slot's round.
func (c *connection) address(i int) {
	c.slots[i].reply = c.inbox + strconv.Itoa(c.slots[i].round*len(c.slots)+i)
}

func (l *load) start() {
	for _, c := range l.connections {
		c.fill()
	}
	l.swept.Go(l.sweep)
}

// sweep gives up what was not answered in time.
func (l *load) sweep() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			for _, c := range l.connections {
				c.giveUp()
				c.fill()
			}
		case <-l.stopSweep:
			return
		}
	}
}

// measure begins to count.
func (l *load) measure() {
	for _, c := range l.connections {
		c.mu.Lock()
		c.measuring = true
		c.mu.Unlock()
	}
}

// finish stops counting and sending, and gives what was counted.
func (l *load) finish() tally {
	sum := newTally()
	for _, c := range l.connections {
		c.mu.Lock()
		c.measuring, c.stopping = false, true
		c.noteDrained()
		sum = sum.plus(c.tally)
		c.mu.Unlock()
	}
	return sum
}

// drain waits until every request in flight is answered or given up.
func (l *load) drain() {
	for _, c := range l.connections {
		<-c.drained
	}
}

// lost counts what was in flight at the end and never answered.
func (l *load) lost() tally {
	t := newTally()
	for _, c := range l.connections {
		c.mu.Lock()
		t.fail("no_answer", c.lost)
		c.mu.Unlock()
	}
	return t
}

// done counts what was answered so far, while measuring or not.
func (l *load) done() (n int64) {
	for _, c := range l.connections {
		c.mu.Lock()
		n += c.tally.answered
		c.mu.Unlock()
	}
	return n
}

func (l *load) close() {
	close(l.stopSweep)
	l.swept.Wait()
	for _, c := range l.connections {
		c.nc.Close()
	}
}

// answered takes an answer and sends the slot's next request.
func (c *connection) answered(m *nats.Msg) {
	now := time.Since(c.load.began)
	token, err := strconv.Atoi(m.Subject[len(c.inbox):])
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i := token % len(c.slots)
	s := &c.slots[i]
	if !s.waiting || s.round != token/len(c.slots) {
		return // it was given up
	}
	c.free(s)
	noLimiter := c.count(m, now-s.sent)
	if !noLimiter { // else the sweep tries again: as fast as it can would help nobody
		c.send(s)
	}
}

// count counts an answer and tells whether it says that nobody listens.
func (c *connection) count(m *nats.Msg, took time.Duration) (noLimiter bool) {
	c.tally.answered++
	noLimiter = len(m.Data) == 0 && m.Header.Get("Status") == "503"
	if !c.measuring {
		return noLimiter
	}
	switch {
	case noLimiter:
		c.tally.fail("no_limiter", 1)
	case len(m.Header) > 0 && m.Header.Get("Nats-Service-Error-Code") != "":
		c.tally.fail(errorCode(m), 1)
	default:
		c.tally.answer(m.Data, c.load.anyAnswer, took)
	}
	return noLimiter
}

func errorCode(m *nats.Msg) string {
	var body limits.ErrorBody
	if err := json.Unmarshal(m.Data, &body); err != nil || body.Error == nil {
		return m.Header.Get("Nats-Service-Error-Code")
	}
	return body.Error.Code
}

// fill sends the request of every slot that has none in flight.
func (c *connection) fill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.slots {
		if !c.slots[i].waiting {
			c.send(&c.slots[i])
		}
	}
}

// send sends a slot's next request. What cannot be published is not answered, and is given up as that.
func (c *connection) send(s *slot) {
	if c.stopping {
		return
	}
	writeDigits(s.digits, c.random.IntN(c.load.keys))
	s.waiting, s.sent = true, time.Since(c.load.began)
	c.inFlight++
	_ = c.nc.PublishRequest(c.load.subject, s.reply, s.body)
}

// free takes a slot's request as over.
func (c *connection) free(s *slot) {
	s.waiting = false
	c.inFlight--
	c.noteDrained()
}

// noteDrained closes drained once: inFlight cannot rise again after stopping.
func (c *connection) noteDrained() {
	if c.stopping && c.inFlight == 0 {
		select {
		case <-c.drained:
		default:
			close(c.drained)
		}
	}
}

func (c *connection) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Since(c.load.began)
	for i := range c.slots {
		s := &c.slots[i]
		if !s.waiting || now-s.sent < answerTimeout {
			continue
		}
		s.round++
		c.address(i)
		switch {
		case c.measuring:
			c.tally.fail("no_answer", 1)
		case c.stopping:
			c.lost++
		}
		c.free(s)
	}
}

// writeDigits writes n with leading zeros over all of digits.
func writeDigits(digits []byte, n int) {
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = byte('0' + n%10)
		n /= 10
	}
}

// tally is what was counted.
type tally struct {
	// answered counts answers of any kind since the start, for the progress.
	answered                  int64
	allowed, denied, degraded int64
	failures                  map[string]int64
	// took holds microseconds.
	took *hdrhistogram.Histogram
}

func newTally() tally {
	longest := (2 * answerTimeout).Microseconds()
	return tally{failures: map[string]int64{}, took: hdrhistogram.New(1, longest, 3)}
}

// How answers begin, and what a degraded one holds; that without its first letters, because to look for a quote, with which
// every word begins, takes several times as long as to look for a rare letter.
var (
	allowedTrue  = []byte(`{"allowed":true`)
	allowedFalse = []byte(`{"allowed":false`)
	degradedTrue = []byte(`graded":true`)
)

// answer counts a reply. It looks for the words instead of reading the JSON, which would cost more than the rest
// of the generator.
func (t *tally) answer(data []byte, anyAnswer bool, took time.Duration) {
	switch {
	case anyAnswer || bytes.HasPrefix(data, allowedTrue):
		t.allowed++
	case bytes.HasPrefix(data, allowedFalse):
		t.denied++
	default:
		t.fail("unreadable_answer", 1)
		return
	}
	if !anyAnswer && bytes.Contains(data, degradedTrue) {
		t.degraded++
	}
	_ = t.took.RecordValue(max(1, took.Microseconds())) // in range: longer ones were given up
}

func (t *tally) fail(code string, n int64) {
	if n > 0 {
		t.failures[code] += n
	}
}

func (t tally) plus(o tally) tally {
	t.answered += o.answered
	t.allowed += o.allowed
	t.denied += o.denied
	t.degraded += o.degraded
	for code, n := range o.failures {
		t.failures[code] += n
	}
	t.took.Merge(o.took)
	return t
}
