package limits

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	// maxWaitsInFlight is how many Waits for the same request may ask the limiter at the same time.
	maxWaitsInFlight = 1024
	// maxDenialAge is how old a denial may be to hold for those who come later. The limit may have been reset since.
	maxDenialAge = time.Second
)

// waitQueues are the queues of a client's Waits, one for each distinct request. Without them all waiters would come
// back as soon as one of them can be allowed, again and again.
type waitQueues struct {
	mu        sync.Mutex
	byRequest map[string]*waitQueue
	calls     uint64
}

// waitQueue lets one Wait ask at a time, and one more for each that was allowed, so twice as many in each round trip. A
// denial blocks the queue for all of them, since its retry time holds for all. Its fields are guarded by
// waitQueues.mu.
type waitQueue struct {
	request string    // its key in waitQueues.byRequest
	line    []*waiter // in the order of their calls
	// inFlight is how many Waits have a turn, at most maxInFlight, except for those that ask if an old denial still holds.
	inFlight, maxInFlight int

	denial   Reply // the last one
	deniedAt time.Time
	denials  int // what was asked before the last one does not tell what is free after it
	// Nobody gets a turn before opens, which is up to a tenth later than blockedUntil.
	blockedUntil, opens time.Time
	timer               *time.Timer
	removed             chan struct{} // closed when nobody waits any more
	ended               error         // why nobody may wait any more
}

// waiter is a call of Wait. Its fields except for turn are guarded by waitQueues.mu.
type waiter struct {
	number   uint64
	deadline time.Time  // zero without one
	queue    *waitQueue // nil unless it is in line or has a turn
	denials  int        // of the queue when it got its turn
	turn     chan error // gets nil for a turn, or why there will be none
}

func (w *waitQueues) newWaiter(ctx context.Context) *waiter {
	deadline, _ := ctx.Deadline()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	return &waiter{number: w.calls, deadline: deadline, turn: make(chan error, 1)}
}

// await waits for the turn of a waiter that is in line.
func (e *waiter) await(ctx context.Context) error {
	select {
	case err := <-e.turn:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// copyReply returns a copy for somebody else, who may change it.
func copyReply(r *Reply) *Reply {
	c := *r
	c.Limits = slices.Clone(r.Limits)
	return &c
}

// requestKey is the key of a request's queue. Its ID makes no difference.
func requestKey(r Request) string {
	r.ID = ""
	key, _ := json.Marshal(r) // a request that cannot be marshalled was never sent, and so not denied
	return string(key)
}

// join puts a waiter that has not asked yet in line, if there is one, and returns the last denial of those in it. A
// request with an ID asks first: it may have been charged before.
func (w *waitQueues) join(e *waiter, r Request) *Reply {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.ID != "" || len(w.byRequest) == 0 {
		return nil
	}
	q := w.byRequest[requestKey(r)]
	if q == nil {
		return nil
	}
	now, denial := time.Now(), copyReply(&q.denial)
	denial.ID, denial.RetryAfter = "", max(1, q.blockedUntil.Sub(now).Milliseconds())
	e.queue = q
	if now.Before(q.opens) && now.Sub(q.deniedAt) > maxDenialAge {
		q.deniedAt = now // the next one does not ask as well
		q.giveTurn(e)
	} else {
		q.insert(e)
		w.next(q)
	}
	return denial
}

// deny ends the turn of a waiter, if it had one, puts it in line and keeps everybody in the line from asking for d.
// created is its queue if it is a new one, and in use.
func (w *waitQueues) deny(e *waiter, r Request, denial *Reply, d time.Duration) (created *waitQueue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.queue != nil {
		e.queue.inFlight--
	} else if key := requestKey(r); w.byRequest[key] != nil {
		e.queue = w.byRequest[key]
	} else {
		created = w.create(key)
		e.queue = created
	}
	q, now := e.queue, time.Now()
	q.denial, q.deniedAt, q.maxInFlight = *copyReply(denial), now, 1
	q.denials++
	q.blockedUntil = now.Add(d)
	q.opens = q.blockedUntil.Add(rand.N(d/10 + 1))
	q.line = slices.DeleteFunc(q.line, func(other *waiter) bool { return !q.admits(other) })
	q.insert(e)
	if w.next(q); w.byRequest[q.request] != q {
		return nil // its deadline is too early, and nobody else waits
	}
	return created
}

func (w *waitQueues) create(key string) *waitQueue {
	q := &waitQueue{request: key, removed: make(chan struct{})}
	q.timer = time.AfterFunc(maxRetryIn, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.next(q)
	})
	if w.byRequest == nil {
		w.byRequest = map[string]*waitQueue{}
	}
	w.byRequest[key] = q
	return q
}

// leave ends a call: it gives back its turn or its place in line. If it was allowed, nothing keeps the others from
// asking any more. If its answer was lost, it does not hold up the others, who may all ask.
func (w *waitQueues) leave(e *waiter, allowed, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := e.queue
	if q == nil {
		return
	}
	e.queue = nil
	if i, inLine := q.find(e); inLine {
		q.line = slices.Delete(q.line, i, i+1)
	} else {
		q.inFlight--
		switch {
		case e.denials != q.denials:
		case allowed:
			q.maxInFlight, q.opens, q.blockedUntil = min(q.maxInFlight+1, maxWaitsInFlight), time.Time{}, time.Time{}
		case lost:
			q.maxInFlight = maxWaitsInFlight
		}
	}
	w.next(q)
}

// end ends all Waits that are in the queue, or come back to it, with an error.
func (w *waitQueues) end(q *waitQueue, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q.ended = err
	q.line = slices.DeleteFunc(q.line, func(e *waiter) bool { return !q.admits(e) })
	w.next(q)
}

// next gives turns to the first in line, as many as may have one, and removes a queue without waiters.
func (w *waitQueues) next(q *waitQueue) {
	if len(q.line)+q.inFlight == 0 {
		if w.byRequest[q.request] == q {
			q.timer.Stop()
			delete(w.byRequest, q.request)
			close(q.removed)
		}
		return
	}
	if closed := time.Until(q.opens); closed > 0 {
		q.timer.Reset(closed)
		return
	}
	for len(q.line) > 0 && q.inFlight < q.maxInFlight {
		q.giveTurn(q.line[0])
		q.line = q.line[1:]
	}
}

func (q *waitQueue) giveTurn(e *waiter) {
	q.inFlight++
	e.denials = q.denials
	e.turn <- nil
}

func (q *waitQueue) find(e *waiter) (place int, inLine bool) {
	return slices.BinarySearchFunc(q.line, e.number, func(e *waiter, number uint64) int { return cmp.Compare(e.number, number) })
}

func (q *waitQueue) insert(e *waiter) {
	if q.admits(e) {
		i, _ := q.find(e)
		q.line = slices.Insert(q.line, i, e)
	}
}

// admits reports whether a waiter may wait until the end of the block, and tells it if not. If its deadline is near,
// the queue opens early enough to leave half of the remaining time for the attempt that follows.
func (q *waitQueue) admits(e *waiter) bool {
	room, err := e.deadline.Sub(q.blockedUntil), q.ended
	switch {
	case err != nil:
	case e.deadline.IsZero():
		return true
	case room < 0:
		err = fmt.Errorf("free in %v: %w", max(0, time.Until(q.blockedUntil)), context.DeadlineExceeded)
	}
	if err != nil {
		e.queue = nil
		e.turn <- err
		return false
	}
	if latest := q.blockedUntil.Add(room / 2); latest.Before(q.opens) {
		q.opens = latest
	}
	return true
}
