package limits

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// ErrNeverFits is what [Client.Wait] returns if the cost is more than the limit can ever give.
var ErrNeverFits = errors.New("the cost can never fit the limit")

// Per returns a request for one inline limit, of cost 1: at most limit per window.
//
//	limits.Per("api:user:123", 100, "1m")
func Per(key string, limit int64, window string) Request {
	return Request{LimitSpec: LimitSpec{Key: key, Limit: limit, Window: window}}
}

// maxRetryIn is the longest time that RetryIn returns. A token bucket may be in debt for longer than a Duration can
// hold.
const maxRetryIn = 100 * 365 * 24 * time.Hour

// Unlimited reports whether no limit applies to the request: no policy fits it, or those that do are unlimited, for a tier, at
// a time or by an override. A degraded reply without limits knows nothing of them, and is not unlimited.
func (r *Reply) Unlimited() bool {
	return r.Allowed && !r.Degraded && r.Limit == 0 && len(r.Limits) == 0
}

// RetryIn is how long to wait until the same request can fit, at most 100 years. It is 0 for an allowed reply, and for a
// denial of a cost that can never fit: look at Allowed first, or a retry at once would follow each such denial.
func (r *Reply) RetryIn() time.Duration {
	return time.Duration(min(r.RetryAfter, maxRetryIn.Milliseconds())) * time.Millisecond
}

// ResetTime is when the whole limit is free again if nothing more is charged. It is in 1970 if no limit applies.
func (r *Reply) ResetTime() time.Time { return time.UnixMilli(r.Reset) }

// Wait consumes and, as long as the request is denied, sleeps until the limiter says that a retry can fit, and tries
// again. It never retries sooner than that, and up to a tenth of the time later, so that several processes that wait
// for the same limit do not all come back at once. It returns the first allowed reply.
//
// Calls of Wait for the same request on one Client take turns, in the order of the calls: one asks first, and each one
// that is allowed lets one more ask at a time. When one of them is denied, all of them wait for as long as its reply
// says. A call that finds others waiting joins them without asking, unless it has an ID, or the last denial is more
// than a second old: then it asks whether that still holds. There is no order among several Clients. Each denied
// attempt counts as a denial, with its events and alerts.
//
// # Errors
//
// Wait returns the last reply together with an error that wraps
//
//   - [ErrNeverFits], if the cost can never fit,
//   - [context.DeadlineExceeded], at once, if ctx would end before the next attempt is due,
//   - the error of ctx, if ctx ends while Wait sleeps,
//   - nats.ErrConnectionClosed, if the connection is closed for good while Wait sleeps.
//
// A Wait that has not asked itself returns the last reply to those that it joined. If Wait returns a reply with an
// error, this Wait charged nothing. Any other error of [Client.Consume] ends the Wait as well, and is returned without
// a reply; it is up to the caller to try again. Each attempt is bounded by the client's timeout, however far off the
// deadline of ctx is. So if an answer is lost, Wait soon returns an error that wraps [context.DeadlineExceeded], and no
// reply.
//
// # IDs
//
// A request with an ID is charged once, even if Wait is called several times with that ID, one call after the other.
// The service gives a repeated ID the same answer as before, even a denial, so Wait sends the retries with the IDs
// ID:1, ID:2 and so on. Leave room for the suffix in the length of the ID. The ID of the reply is the one that was
// charged, and the one to settle:
//
//	reply, err := c.Wait(ctx, reserve) // with an ID
//	...
//	c.Settle(ctx, reply.ID, cost)
//
// The service remembers an ID for 10 minutes. A Wait that is repeated later than that after the first attempt may
// charge again. Do not use IDs that come from outside: somebody could send ID:1.
//
// A denial of an ID may be the remembered answer to an earlier Wait, with a retry time that is out of date. Wait
// therefore asks how long it has to wait now with [Client.Check], even if the denial says that the cost can never fit,
// since the limit may have been raised. A denied Check counts as a denial, too. If the Check gets no answer, Wait goes
// by the denial.
func (c *Client) Wait(ctx context.Context, r Request) (*Reply, error) {
	id, stale := r.ID, 0
	e := c.queues.newWaiter(ctx)
	allowed, lost := false, false
	defer func() { c.queues.leave(e, allowed, lost) }()
	denial := c.queues.join(e, r)
	if denial != nil && !c.connected(ctx) {
		c.queues.leave(e, false, false)
		e, denial = c.queues.newWaiter(ctx), nil // it asks now, which says why it cannot
	}
	for try := 1; ; try++ {
		if denial != nil {
			if err := e.await(ctx); err != nil {
				return denial, fmt.Errorf("wait for %s: %w", denial.Key, err)
			}
		}
		reply, err := c.withinTimeout(ctx, c.Consume, r)
		if err != nil || reply.Allowed {
			allowed, lost = err == nil, errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
			return reply, err
		}
		delay := reply.RetryIn()
		fits := delay > 0
		if id != "" {
			delay, fits, stale = c.recheck(ctx, r, delay, stale)
			r.ID = id + ":" + strconv.Itoa(try)
		}
		if !fits {
			return reply, fmt.Errorf("wait for %s: %w", reply.Key, ErrNeverFits)
		}
		denial = reply
		if created := c.queues.deny(e, r, denial, delay); created != nil {
			go c.endWithConnection(created)
		}
	}
}

// endWithConnection ends the Waits in a queue if the connection is closed for good. It may block inside the connection,
// and returns when the queue is removed.
func (c *Client) endWithConnection(q *waitQueue) {
	closed := c.nc.StatusChanged(nats.CLOSED)
	defer c.nc.RemoveStatusListener(closed)
	if !c.nc.IsClosed() { // before the listener was added
		select {
		case <-closed:
		case <-q.removed:
			return
		}
	}
	c.queues.end(q, nats.ErrConnectionClosed)
}

// connected reports whether a request could be sent now.
func (c *Client) connected(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var is bool
	return c.blocking.run(ctx, func() { is = c.nc.IsConnected() }) && is
}

// withinTimeout bounds one attempt by the client's timeout. The deadline of ctx is for the whole Wait, and may be an
// hour away.
func (c *Client) withinTimeout(ctx context.Context, verb func(context.Context, Request) (*Reply, error), r Request) (*Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return verb(ctx, r)
}

// recheck returns how long to wait after a denial of an ID, which may be stale, and whether the cost can ever fit.
// stale is the number of stale denials in a row so far, and newStale that including this one.
//
// If the limit turns out to be free, the denial was stale and the next ID may be tried at once. The delay then doubles
// with each stale denial, up to what the denial says: others may take what is free, and what is free may belong to a
// lease that only one worker can use.
func (c *Client) recheck(ctx context.Context, r Request, denied time.Duration, stale int) (delay time.Duration, fits bool, newStale int) {
	r.ID = ""
	now, err := c.withinTimeout(ctx, c.Check, r)
	switch {
	case err != nil:
		return denied, denied > 0, 0
	case !now.Allowed:
		return now.RetryIn(), now.RetryAfter > 0, 0
	case denied == 0: // it could never fit, but it fits now: the limit was changed
		denied = maxRetryIn
	}
	return min(denied, time.Millisecond<<min(stale, 30)-time.Millisecond), true, stale + 1
}

// sleep sleeps for d and up to a tenth longer. It fails at once if ctx would end before d has passed. If the end of
// ctx is near, sleep leaves half of the remaining time for the attempt that follows.
func sleep(ctx context.Context, d time.Duration) error {
	jitter := d / 10
	if end, ok := ctx.Deadline(); ok {
		room := time.Until(end) - d
		if room < 0 {
			return context.DeadlineExceeded
		}
		jitter = min(jitter, room/2)
	}
	timer := time.NewTimer(d + rand.N(jitter+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
