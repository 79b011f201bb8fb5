package engine

import (
	"context"
	"time"
)

// Config configures an [Engine].
type Config struct {
	// Store keeps the counters; required.
	Store Store
	// Broadcast tells all workers, this one included, what to forget, after a refund or reset was committed. It
	// must not block. Nil when there is one worker.
	Broadcast func(Forget)
	// Committed is called after events were written, so that they are published soon. It must not block.
	Committed func()
	// Observer takes measurements; nil for none.
	Observer Observer
	// NewID makes ids of events; required.
	NewID func() string
	// Queue is how many requests may wait; more are answered ErrOverloaded. 16384 unless set.
	Queue int
	// MaxBatch is how many requests are written together at most. 512 unless set.
	MaxBatch int
	// Deadline is how long a request may take; after it the request is answered as when the store fails. 2 s
	// unless set.
	Deadline time.Duration
}

// Forget names counters whose remembered state is void: those of Key, of every key with Prefix, or all.
type Forget struct {
	Key    string `json:"key,omitempty"`
	Prefix string `json:"prefix,omitempty"`
	All    bool   `json:"all,omitempty"`
}

// Observer takes the engine's measurements. Its methods are called on the hot path and must not block.
type Observer interface {
	// Decided is called for each answered request: result is "allowed", "denied" or "error"; algorithm is that
	// of the limit that speaks for the decision, empty when there is none.
	Decided(v Verb, result, algorithm string, degraded bool, took time.Duration)
	// Wrote is called for each transaction.
	Wrote(requests, counters int, took time.Duration)
	// StoreFailed is called for each failed transaction.
	StoreFailed(err error)
}

// Engine decides requests over a store.
type Engine struct{}

// New starts an engine.
func New(ctx context.Context, cfg Config) (*Engine, error) { panic("soon") }

// Submit takes a request in; its Done is called once, unless Submit fails: ErrOverloaded, ErrClosed.
func (e *Engine) Submit(r *Request) error { panic("soon") }

// Do submits the request, whose Done it sets, and waits for the answer.
func (e *Engine) Do(ctx context.Context, r *Request) (Decision, error) { panic("soon") }

// Status gives the counters of a key that have something used, in order of name.
func (e *Engine) Status(ctx context.Context, key string) ([]Counter, error) { panic("soon") }

// List gives up to max counters that have something used, in order of key and name, from behind after; more
// tells whether others follow.
func (e *Engine) List(ctx context.Context, prefix string, after CounterID, max int) (page []Counter, more bool, err error) {
	panic("soon")
}

// Reset removes counters, or only counts them, and makes all workers forget them.
func (e *Engine) Reset(ctx context.Context, sel Selection, dryRun bool) (int64, error) { panic("soon") }

// Forget drops what the engine remembers of counters; it is what a broadcast from another worker calls.
func (e *Engine) Forget(f Forget) { panic("soon") }

// Queued is how many requests wait.
func (e *Engine) Queued() int { panic("soon") }

// Close answers everything that was submitted and stops. Submit fails from then on.
func (e *Engine) Close(ctx context.Context) error { panic("soon") }
