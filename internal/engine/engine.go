package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// Config configures an [Engine].
type Config struct {
	// Store keeps the counters; required.
	Store Store
	// NewID makes ids of events; required.
	NewID func() string
	// Broadcast tells the other workers what to forget: after a reset, and before the commit of a
	// refund or of any other change that makes their memory wrong, while nobody else can write. It
	// must not block. Nil if there is one worker.
	Broadcast func(Forget)
	// Committed is called after events were written, so that they are published soon. It must not
	// block.
	Committed func()
	// Observer takes measurements; nil for none.
	Observer Observer
	// Tally is called with the decision on each consume, check and record before the answer is
	// handed out, but not for an answer from a receipt, nor for one that no limit decided because the
	// store fails. It is on the hot path: it must not block, and must not keep r or d. Nil for none.
	Tally func(r *Request, d *Decision)
	// StoreFailing is called with the reason when requests begin to be answered without the store:
	// its circuit opens, or a transaction hangs. It is called with nil when the store answers again.
	// It must not block.
	StoreFailing func(err error)
	// Queue is how many requests may wait; further ones get ErrOverloaded. Default 16384. Of requests
	// with many limits fewer may wait, see maxQueuedLimits.
	Queue int
	// MaxBatch is how many requests are written together at most. Default 512.
	MaxBatch int
	// Deadline is how long a request may take. Before it is over, the request is answered as when
	// the store fails. Default 2 s.
	Deadline time.Duration
}

// Forget names counters that a worker must drop from memory: one of Key, or all of them, those of
// all keys with Prefix, or all.
type Forget struct {
	Key string `json:"key,omitzero"`
	// Name is that of the one counter of Key; empty for all. With a Prefix or All every counter has to be searched.
	Name   string `json:"name,omitzero"`
	Prefix string `json:"prefix,omitzero"`
	All    bool   `json:"all,omitzero"`
	// Freed says that counters only became freer: their leases remain valid.
	Freed bool `json:"freed,omitzero"`
}

// Observer takes the engine's measurements. Its methods are called on the hot path and must not block.
type Observer interface {
	// Decided is called for each answered request, except for those that got their Refusal. result
	// is "allowed", "denied" or "error"; algorithm is that of [Decision.Speaker], empty if there is
	// none. took is 0 for an answer from memory: to read the clock would take as long as the answer
	// does.
	Decided(v Verb, result, algorithm string, degraded bool, took time.Duration)
	// Wrote is called for each batch whose transaction was committed.
	Wrote(requests, counters int, took time.Duration)
	// StoreFailed is called for each transaction that failed or hangs, and with [ErrCorrupt] for
	// each request whose counter cannot be read.
	StoreFailed(err error)
}

// Engine decides requests over a store. One goroutine gathers the queued requests into batches and
// has the store run one transaction for each; another hands out the answers, so that this does not
// delay the next batch. Two more wake up regularly: one reports denials whose event is due, one
// gives back what is left of ended leases.
type Engine struct {
	cfg     Config
	breaker *gobreaker.CircuitBreaker[struct{}]

	queue chan *Request
	// queuedLimits counts the limits of the queued requests beyond the first of each.
	queuedLimits atomic.Int64
	// answers are batches to hand out, spare those to use again.
	answers, spare chan *batch

	// closing guards closed and queue against a Submit that runs while Close begins.
	closing sync.RWMutex
	closed  bool
	quit    chan struct{}
	done    sync.WaitGroup
	// unreported is the error of the denials that could not be reported at the end.
	unreported error

	// The health of the store, see failure.go.

	// lastFailure is nil while the store answers.
	lastFailure atomic.Pointer[failure]
	// lastTimedOut says that the store took long over the last transaction and did not answer it:
	// one such is enough to open the circuit.
	lastTimedOut atomic.Bool
	// probeTimedOut says that the store did not answer a probe in time. It may just be slow, so a
	// goroutine tries it with a longer timeout, while probing is true.
	probeTimedOut, probing atomic.Bool
	// typicalTxn is about how long recent transactions took, in nanoseconds.
	typicalTxn atomic.Int64
	// shortTimeouts counts the transactions in a row that timed out because their requests had
	// waited for long.
	shortTimeouts atomic.Int64

	// The running transaction, see hung.go.

	// txnDeadline is when it should end, in nanoseconds since the heartbeat's origin; 0 while none
	// runs.
	txnDeadline atomic.Int64
	// hung says that it runs past that deadline. returned then gets a value when it ends.
	hung      atomic.Bool
	returned  chan struct{}
	heartbeat heartbeat

	// clock is the last reading of the store's clock.
	clock atomic.Pointer[clockReading]
	// refreshed is the last reading for which a denial from memory has queued a new transaction.
	refreshed atomic.Pointer[clockReading]

	cache        denialCache
	denials      denialCounts
	leases       leases
	local        localLimiter
	receiptReads receiptReads
}

// New starts an engine: it reads the store's clock, so the store must be reachable. Close stops it.
func New(ctx context.Context, cfg Config) (*Engine, error) {
	cfg.setDefaults()
	e := &Engine{
		cfg:     cfg,
		queue:   make(chan *Request, cfg.Queue),
		answers: make(chan *batch, 2),
		spare:   make(chan *batch, 4),
		quit:    make(chan struct{}),

		returned: make(chan struct{}, 1),
	}
	e.breaker = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        "store",
		MaxRequests: 1,
		Timeout:     openFor,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 3 || e.lastTimedOut.Load() },
		IsSuccessful: func(err error) bool {
			return err == nil || errors.Is(err, ErrConflict) || errors.Is(err, errShortTimeout)
		},
		OnStateChange: func(_ string, from, to gobreaker.State) {
			switch {
			case to == gobreaker.StateOpen && from == gobreaker.StateClosed:
				cfg.StoreFailing(e.cause())
			case to == gobreaker.StateClosed:
				cfg.StoreFailing(nil)
			}
		},
	})
	e.heartbeat.init()
	e.cache.init()
	e.denials.init()
	e.leases.init()
	e.local.init()
	if err := e.update(ctx, newBatch()); err != nil {
		return nil, fmt.Errorf("read the store's clock: %w", err)
	}
	e.done.Go(e.writeLoop)
	e.done.Go(e.answerLoop)
	e.done.Go(e.reportLoop)
	e.done.Go(e.leaseLoop)
	return e, nil
}

func (c *Config) setDefaults() {
	c.Queue = cmp.Or(c.Queue, 16384)
	c.MaxBatch = cmp.Or(c.MaxBatch, 512)
	c.Deadline = cmp.Or(c.Deadline, 2*time.Second)
	if c.Observer == nil {
		c.Observer = nopObserver{}
	}
	if c.Broadcast == nil {
		c.Broadcast = func(Forget) {}
	}
	if c.StoreFailing == nil {
		c.StoreFailing = func(error) {}
	}
	if c.Committed == nil {
		c.Committed = func() {}
	}
}

type nopObserver struct{}

func (nopObserver) Decided(Verb, string, string, bool, time.Duration) {}
func (nopObserver) Wrote(int, int, time.Duration)                     {}
func (nopObserver) StoreFailed(error)                                 {}

// Submit takes a request in. Its Done is called once, perhaps before Submit returns. If Submit
// fails, with ErrOverloaded or ErrClosed, Done is not called.
func (e *Engine) Submit(r *Request) error {
	if r.Received.IsZero() {
		r.Received = time.Now()
	}
	if d, ok := e.answerFromMemory(r); ok {
		r.decision, r.AtOnce = d, true
		e.finish(r, 0)
		return nil
	}
	var err error
	if r.Verb == Settle {
		err = e.submitSettle(r)
	} else {
		err = e.enqueue(r)
	}
	if err != nil && !r.Verb.internal() {
		e.cfg.Observer.Decided(r.Verb, "error", "", false, time.Since(r.Received))
	}
	return err
}

// maxQueuedLimits bounds the limits of the queued requests beyond the first of each. A limit with the
// longest texts takes about 1 KiB. Without a bound a full queue of requests with 16 limits each
// would take 240 MiB, and longer to decide than anybody waits. A request with more limits than this
// waits alone.
const maxQueuedLimits = 1 << 15

func (e *Engine) enqueue(r *Request) error {
	e.closing.RLock()
	defer e.closing.RUnlock()
	if e.closed {
		return ErrClosed
	}
	more := r.moreLimits()
	if more > 0 {
		if all := e.queuedLimits.Add(more); all > maxQueuedLimits && all > more {
			e.queuedLimits.Add(-more)
			return ErrOverloaded
		}
	}
	select {
	case e.queue <- r:
		return nil
	default:
		e.dequeued(r)
		return ErrOverloaded
	}
}

// dequeued notes that a request has left the queue, and returns it.
func (e *Engine) dequeued(r *Request) *Request {
	if more := r.moreLimits(); more > 0 {
		e.queuedLimits.Add(-more)
	}
	return r
}

// moreLimits is how many limits a request has beyond the first. The usual request has none, so that
// it costs nothing to count them.
func (r *Request) moreLimits() int64 { return int64(max(0, len(r.Limits)-1)) }

// answerFromMemory answers a request that needs no store: one without limits and id, one that
// leases serve, and one that the cache denies.
func (e *Engine) answerFromMemory(r *Request) (Decision, bool) {
	if len(r.Limits) == 0 && !r.hasReceipt() {
		return Decision{Allowed: true, Results: []Result{}}, true
	}
	if r.look {
		return Decision{}, false // memory would count it as a check
	}
	if d, ok := e.leases.serve(r, r.Received, e.clock.Load()); ok {
		return d, true
	}
	if r.ID != "" && r.Verb == Consume || r.Verb > Check {
		return Decision{}, false
	}
	// Load the clock before the cache: a transaction invalidates the cache before it stores its clock.
	clock := e.clock.Load()
	d, ok := e.cache.deny(r, clock, &e.denials)
	if ok && r.Received.Sub(clock.sent) >= refreshAfter && e.refreshed.Load() != clock && e.refreshed.Swap(clock) != clock {
		_ = e.enqueue(&Request{Verb: noop}) // if the queue is full, other requests run a transaction
	}
	return d, ok
}

// Do submits the request, whose Done it sets, and waits for the answer. If ctx ends first, the
// request is decided all the same.
func (e *Engine) Do(ctx context.Context, r *Request) (Decision, error) {
	type answer struct {
		d   Decision
		err error
	}
	ch := make(chan answer, 1)
	r.Done = func(d Decision, err error) { ch <- answer{d, err} }
	if err := e.Submit(r); err != nil {
		return Decision{}, err
	}
	select {
	case a := <-ch:
		return a.d, a.err
	case <-ctx.Done():
		return Decision{}, ctx.Err()
	}
}

// Queued is how many requests wait.
func (e *Engine) Queued() int { return len(e.queue) }

// Forget drops counters from the engine's memory, as a broadcast from another worker asks for.
func (e *Engine) Forget(f Forget) {
	e.cache.invalidate(f)
	if !f.Freed {
		e.leases.endFor(f)
	}
}

// Close answers everything that was submitted and stops. Submit fails from then on. The error says
// how many denials are in no event, if the store did not take them.
func (e *Engine) Close(ctx context.Context) error {
	e.closing.Lock()
	first := !e.closed
	e.closed = true
	e.closing.Unlock()
	if first {
		close(e.quit)
	}
	stopped := make(chan struct{})
	go func() {
		e.done.Wait()
		close(stopped)
	}()
	select {
	case <-stopped:
		return e.unreported
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("close the engine with %d requests waiting: %w", e.Queued(), ctx.Err()), e.denials.lost(ctx.Err()))
	}
}

// finish hands out the answer of a request; nobody waits for one to the engine's own.
func (e *Engine) finish(r *Request, took time.Duration) {
	if r.Verb.internal() {
		return
	}
	if !r.look {
		e.observe(r, took)
		if e.cfg.Tally != nil && r.err == nil && r.Verb <= Record && !r.replayed && (!r.decision.Degraded || r.OnError == OnErrorLocal) {
			e.cfg.Tally(r, &r.decision)
		}
	}
	r.Done(r.decision, r.err)
}

func (e *Engine) observe(r *Request, took time.Duration) {
	if r.Verb != Settle && r.Refusal != nil && errors.Is(r.err, r.Refusal) {
		return // without an id it would not have reached the engine
	}
	result, algorithm := "denied", ""
	if s := r.decision.Speaker(); s != nil {
		algorithm = s.Algorithm.String()
	}
	switch {
	case r.err != nil:
		result = "error"
	case r.decision.Allowed:
		result = "allowed"
	}
	e.cfg.Observer.Decided(r.Verb, result, algorithm, r.decision.Degraded, took)
}

func (e *Engine) answerLoop() {
	for b := range e.answers {
		now := time.Now()
		for _, r := range b.requests {
			e.finish(r, now.Sub(r.Received))
		}
		e.reuse(b)
	}
}
