package limits

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"
)

// maxWaitsInFlight is how many Waits for the same request may ask the limiter at the same time.
const maxWaitsInFlight = 1024

// waitQueues are the queues of a client's Waits, one for each distinct request. Without them all waiters would come
// back as soon as one of them can be allowed, again and again.
type waitQueues struct {
	mu        sync.Mutex
	byRequest map[string]*waitQueue
}

// waitQueue lets one Wait retry at a time, and one more for each that was allowed, so twice as many in each round trip.
// A denial blocks the queue for all of them, since its retry time holds for all. Its fields are guarded by
// waitQueues.mu.
type waitQueue struct {
	request      string // its key in waitQueues.byRequest
	waits        int    // the Waits that have joined; without any, the queue is removed
	blockedUntil time.Time
	// inFlight is how many Waits have a turn, at most maxInFlight. The others stand in line.
	inFlight, maxInFlight int
	line                  []chan struct{} // closed when its Wait has a turn
}

// join adds a Wait to the queue of its request after its first denial. The ID of the request makes no difference.
func (w *waitQueues) join(r Request) *waitQueue {
	r.ID = ""
	request, _ := json.Marshal(r) // a request that cannot be marshalled was never sent, and so not denied
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.byRequest[string(request)]
	if q == nil {
		if w.byRequest == nil {
			w.byRequest = map[string]*waitQueue{}
		}
		q = &waitQueue{request: string(request), maxInFlight: 1}
		w.byRequest[q.request] = q
	}
	q.waits++
	return q
}

// leave removes a Wait from its queue. q is nil if the Wait has not joined one.
func (w *waitQueues) leave(q *waitQueue) {
	if q == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if q.waits--; q.waits == 0 {
		delete(w.byRequest, q.request)
	}
}

// block keeps everybody in the queue from retrying for d.
func (w *waitQueues) block(q *waitQueue, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q.blockedUntil, q.maxInFlight = time.Now().Add(d), 1
}

func (w *waitQueues) blockedFor(q *waitQueue) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Until(q.blockedUntil)
}

// await sleeps for delay and waits for a turn, and again if another Wait has blocked the queue meanwhile. The caller
// must call release once, with whether its attempt was allowed.
func (w *waitQueues) await(ctx context.Context, q *waitQueue, delay, maxTurn time.Duration) (release func(allowed bool), err error) {
	for delay = max(delay, 0); ; {
		if err = sleep(ctx, delay); err == nil {
			release, err = w.takeTurn(ctx, q, maxTurn)
		}
		if err != nil {
			return nil, fmt.Errorf("free in %v: %w", delay, err)
		}
		if delay = w.blockedFor(q); delay <= 0 {
			return release, nil
		}
		release(false)
	}
}

// takeTurn stands in line for at most maxTurn, the timeout of an attempt, and then goes ahead without a turn: an
// attempt that gets no answer must not hold up the others. release must be called once.
func (w *waitQueues) takeTurn(ctx context.Context, q *waitQueue, maxTurn time.Duration) (release func(allowed bool), err error) {
	giveBack := func(allowed bool) { w.giveBack(q, allowed) }
	w.mu.Lock()
	if q.inFlight < q.maxInFlight {
		q.inFlight++
		w.mu.Unlock()
		return giveBack, nil
	}
	turn := make(chan struct{})
	q.line = append(q.line, turn)
	w.mu.Unlock()
	timer := time.NewTimer(maxTurn)
	defer timer.Stop()
	select {
	case <-turn:
		return giveBack, nil
	case <-timer.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	w.mu.Lock()
	if i := slices.Index(q.line, turn); i >= 0 {
		q.line = slices.Delete(q.line, i, i+1)
		w.mu.Unlock()
		return func(bool) {}, err
	}
	w.mu.Unlock() // the turn came at the same moment
	if err != nil {
		giveBack(false)
		return func(bool) {}, err
	}
	return giveBack, nil
}

// giveBack ends a turn and gives turns to those in line.
func (w *waitQueues) giveBack(q *waitQueue, allowed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q.inFlight--
	if allowed {
		q.maxInFlight, q.blockedUntil = min(q.maxInFlight+1, maxWaitsInFlight), time.Time{}
	}
	for len(q.line) > 0 && q.inFlight < q.maxInFlight {
		q.inFlight++
		close(q.line[0])
		q.line = q.line[1:]
	}
}
