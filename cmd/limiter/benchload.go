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

// answerTimeout is when a request counts as lost; sweepEvery is how often that is checked.
const (
	answerTimeout = 2 * time.Second
	sweepEvery    = 100 * time.Millisecond
)

// benchKey is a key; its digits are replaced for each request.
const benchKey = "bench:0000000000"

// load keeps a number of requests in flight. It is built to cost little, so that the service is measured and not the
// generator. A request needs no goroutine and no channel. Each connection has one subscription; its callback finds the slot
// by the last token of the reply subject, counts the answer, writes the digits of the next key into the slot's body and
// publishes it.
type load struct {
	subject     string
	anyAnswer   bool
	keys        int
	connections []*connection
	began       time.Time
	stopSweep   chan struct{}
	swept       sync.WaitGroup
}

// connection is one NATS connection with its slots. mu guards all mutable fields.
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
	// lost counts requests that were in flight when the measurement ended, and never answered.
	lost int64
}

// slot sends one request at a time.
type slot struct {
	body, digits []byte
	reply        string
	// round is in the reply subject. It rises when a request is given up, so that a late answer to it is recognized.
	round   int
	waiting bool
	sent    time.Duration
}

func newLoad(subject string, anyAnswer bool, keys int) *load {
	return &load{subject: subject, anyAnswer: anyAnswer, keys: keys, began: time.Now(), stopSweep: make(chan struct{})}
}

// add adds a connection with n slots.
func (l *load) add(nc *nats.Conn, n int, r limits.Request) error {
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	c := &connection{
		load: l, nc: nc, inbox: nc.NewInbox() + ".", slots: make([]slot, n), drained: make(chan struct{}),
		random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), tally: newTally(),
	}
	at := bytes.Index(body, []byte(benchKey)) + len("bench:")
	for i := range c.slots {
		own := bytes.Clone(body)
		c.slots[i] = slot{body: own, digits: own[at : at+len(benchKey)-len("bench:")]}
		c.setReply(i)
	}
	s, err := nc.Subscribe(c.inbox+"*", c.onAnswer)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	l.connections = append(l.connections, c)
	return s.SetPendingLimits(-1, -1) // the requests in flight are the bound
}

// setReply sets the reply subject of a slot's round.
func (c *connection) setReply(i int) {
	c.slots[i].reply = c.inbox + strconv.Itoa(c.slots[i].round*len(c.slots)+i)
}

func (l *load) start() {
	for _, c := range l.connections {
		c.fill()
	}
	l.swept.Go(l.sweep)
}

// sweep gives up requests that were not answered in time, and sends the next ones.
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

// measure begins to count answers.
func (l *load) measure() {
	for _, c := range l.connections {
		c.mu.Lock()
		c.measuring = true
		c.mu.Unlock()
	}
}

// finish stops counting and sending, and returns the counts.
func (l *load) finish() tally {
	sum := newTally()
	for _, c := range l.connections {
		c.mu.Lock()
		c.measuring, c.stopping = false, true
		c.closeIfDrained()
		sum.add(&c.tally)
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

// lost counts the requests that were in flight at the end and never answered.
func (l *load) lost() (n int64) {
	for _, c := range l.connections {
		c.mu.Lock()
		n += c.lost
		c.mu.Unlock()
	}
	return n
}

// done counts all answers so far, also those before the measurement.
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

// onAnswer counts an answer and sends the slot's next request.
func (c *connection) onAnswer(m *nats.Msg) {
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
		return // its request was given up
	}
	c.release(s)
	noLimiter := c.count(m, now-s.sent)
	if !noLimiter { // otherwise the sweep tries again, at a moderate rate
		c.send(s)
	}
}

// count counts an answer, and reports whether the server sent it because no limiter is subscribed.
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

// send sends a slot's next request. If it cannot be published it gets no answer, and is given up later.
func (c *connection) send(s *slot) {
	if c.stopping {
		return
	}
	writeDigits(s.digits, c.random.IntN(c.load.keys))
	s.waiting, s.sent = true, time.Since(c.load.began)
	c.inFlight++
	_ = c.nc.PublishRequest(c.load.subject, s.reply, s.body)
}

// release ends a slot's request.
func (c *connection) release(s *slot) {
	s.waiting = false
	c.inFlight--
	c.closeIfDrained()
}

// closeIfDrained closes drained when the last request after stopping has ended.
func (c *connection) closeIfDrained() {
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
		c.setReply(i)
		switch {
		case c.measuring:
			c.tally.fail("no_answer", 1)
		case c.stopping:
			c.lost++
		}
		c.release(s)
	}
}

// writeDigits writes n into digits, with leading zeros.
func writeDigits(digits []byte, n int) {
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = byte('0' + n%10)
		n /= 10
	}
}

// tally counts answers.
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

// The beginnings of answers, and a part of every degraded one. That part does not begin with the quote before degraded:
// bytes.Contains searches for the first byte, and quotes are frequent, which makes it several times as slow.
var (
	allowedTrue  = []byte(`{"allowed":true`)
	allowedFalse = []byte(`{"allowed":false`)
	degradedTrue = []byte(`graded":true`)
)

// answer counts a decision. It searches for words instead of parsing the JSON, which would cost more than the rest of the
// generator.
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
	_ = t.took.RecordValue(max(1, took.Microseconds())) // always in range: slower requests were given up
}

func (t *tally) fail(code string, n int64) {
	if n > 0 {
		t.failures[code] += n
	}
}

func (t *tally) add(o *tally) {
	t.answered += o.answered
	t.allowed += o.allowed
	t.denied += o.denied
	t.degraded += o.degraded
	for code, n := range o.failures {
		t.failures[code] += n
	}
	t.took.Merge(o.took)
}
