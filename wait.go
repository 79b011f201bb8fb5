package limits

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"
)

// ErrNeverFits is what [Client.Wait] returns when the cost is more than the limit can ever give.
var ErrNeverFits = errors.New("the cost can never fit the limit")

// Per is a request for one inline limit, of cost 1: at most limit per window.
//
//	limits.Per("api:user:123", 100, "1m")
func Per(key string, limit int64, window string) Request {
	return Request{LimitSpec: LimitSpec{Key: key, Limit: limit, Window: window}}
}

// maxRetryIn is the longest that RetryIn tells. A token bucket may be in debt for longer than a Duration can hold.
const maxRetryIn = 100 * 365 * 24 * time.Hour

// RetryIn is how long to wait before the same request can fit, 100 years at most. It is 0 for an allowed reply and for a
// cost that can never fit.
func (r *Reply) RetryIn() time.Duration {
	return time.Duration(min(r.RetryAfter, maxRetryIn.Milliseconds())) * time.Millisecond
}

// ResetTime is when the whole limit is free again if nothing more is charged.
func (r *Reply) ResetTime() time.Time { return time.UnixMilli(r.Reset) }

// Wait consumes, and as long as it is denied sleeps until the limiter says that a retry can fit: never sooner,
// and up to a tenth later, so that those who wait for the same limit do not all come back at once. The first
// allowed reply ends it. Those who wait for the same with one Client come back one by one, and more at a time as long as they are
// allowed; what one of them is told holds for the others. Each answer that is no is a denial like any other, with its events and
// alerts.
//
// It returns the last reply with an error that wraps [ErrNeverFits] when the cost can never fit, and one that
// wraps [context.DeadlineExceeded], at once, when ctx ends before the next try would be due. Where there is a reply beside
// the error, this Wait charged nothing. Any other error of [Client.Consume] ends it too, without a reply; trying again is
// the caller's choice. Each question has the client's timeout, however far off the end of ctx is: an answer that is lost ends
// the Wait soon, with an error that wraps [context.DeadlineExceeded] and no reply.
//
// A request with an ID charges once, also when several Waits have the same, one after the other. Since the service answers
// a repeated ID as it did before, a denial too, the retries are sent as ID:1, ID:2, …; leave room for that in the ID's
// length. The ID of the reply tells which of them charged:
//
//	reply, err := c.Wait(ctx, reserve) // with an ID
//	…
//	c.Settle(ctx, reply.ID, cost)
//
// That holds for the 10 minutes for which the first try is remembered: a Wait that is begun again later may charge again. And
// take no ID from outside, where somebody could send ID:1.
//
// A denial under an ID may be one of an earlier Wait, which says how long it was to wait then. So how long it is now is
// asked with [Client.Check], which counts as a denial too where it is denied; when it gets no answer, what the denial says is
// kept to. One that could never fit is asked about, too: the limit may have been raised since.
func (c *Client) Wait(ctx context.Context, r Request) (*Reply, error) {
	id, old := r.ID, 0
	var g *gate
	defer func() { c.gates.leave(g) }()
	pass := func(bool) {}
	for try := 1; ; try++ {
		reply, err := c.asked(ctx, c.Consume, r)
		if err != nil || reply.Allowed {
			pass(err == nil)
			return reply, err
		}
		due := reply.RetryIn()
		fits := due > 0
		if id != "" {
			due, fits, old = c.due(ctx, r, due, old)
			r.ID = id + ":" + strconv.Itoa(try)
		}
		if g == nil {
			g = c.gates.enter(r)
		}
		c.gates.close(g, due)
		pass(false)
		if !fits {
			return reply, fmt.Errorf("wait for %s: %w", reply.Key, ErrNeverFits)
		}
		if pass, err = c.gates.through(ctx, g, due, c.timeout); err != nil {
			return reply, fmt.Errorf("wait for %s, %w", reply.Key, err)
		}
	}
}

// gates are those at which the Waits of one client for the same stand. Without them all would come back when one can pass, again
// and again.
type gates struct {
	mu  sync.Mutex
	all map[string]*gate
}

// gate is passed by one at a time, and by twice as many whenever one was allowed. A denial closes it for all: what it said
// holds for them, too. All of it is guarded by gates.mu.
type gate struct {
	request string
	waits   int
	until   time.Time
	// asking are those who have passed and have no answer yet, of width at most; the others wait in line.
	asking, width int
	line          []chan struct{}
}

// widest is how many may ask at a gate at the same time.
const widest = 1024

// enter gives the gate of a request, whatever its ID, behind its first denial.
func (g *gates) enter(r Request) *gate {
	r.ID = ""
	request, _ := json.Marshal(r) // of what it cannot write the question fails, too
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[string(request)]
	if one == nil {
		if g.all == nil {
			g.all = map[string]*gate{}
		}
		one = &gate{request: string(request), width: 1}
		g.all[one.request] = one
	}
	one.waits++
	return one
}

// leave may be of none.
func (g *gates) leave(one *gate) {
	if one == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if one.waits--; one.waits == 0 {
		delete(g.all, one.request)
	}
}

// close closes a gate for a time.
func (g *gates) close(one *gate, d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	one.until, one.width = time.Now().Add(d), 1
}

// closed gives for how long a gate is closed still.
func (g *gates) closed(one *gate) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Until(one.until)
}

// through sleeps until a gate opens and waits for a turn at it, and again while somebody closes it meanwhile.
func (g *gates) through(ctx context.Context, one *gate, due, most time.Duration) (pass func(allowed bool), err error) {
	for due = max(due, 0); ; {
		if err = sleep(ctx, due); err == nil {
			pass, err = g.turn(ctx, one, most)
		}
		if err != nil {
			return nil, fmt.Errorf("free in %v: %w", due, err)
		}
		if due = g.closed(one); due <= 0 {
			return pass, nil
		}
		pass(false)
	}
}

// turn waits in line, but no longer than a question takes: one that gets no answer does not keep the others. pass is told whether
// the question was allowed, and is called once.
func (g *gates) turn(ctx context.Context, one *gate, most time.Duration) (pass func(allowed bool), err error) {
	g.mu.Lock()
	if one.asking < one.width {
		one.asking++
		g.mu.Unlock()
		return func(allowed bool) { g.passed(one, allowed) }, nil
	}
	mine := make(chan struct{})
	one.line = append(one.line, mine)
	g.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-mine:
		return func(allowed bool) { g.passed(one, allowed) }, nil
	case <-timer.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	g.mu.Lock()
	if i := slices.Index(one.line, mine); i >= 0 {
		one.line = slices.Delete(one.line, i, i+1)
		g.mu.Unlock()
		return func(bool) {}, err
	}
	g.mu.Unlock() // its turn came at the same moment
	if err != nil {
		g.passed(one, false)
		return func(bool) {}, err
	}
	return func(allowed bool) { g.passed(one, allowed) }, nil
}

// passed lets those in line have their turn.
func (g *gates) passed(one *gate, allowed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	one.asking--
	if allowed {
		one.width, one.until = min(2*one.width, widest), time.Time{}
	}
	for len(one.line) > 0 && one.asking < one.width {
		one.asking++
		close(one.line[0])
		one.line = one.line[1:]
	}
}

// asked asks within the client's timeout: ctx says how long to wait for a turn, and that may be an hour.
func (c *Client) asked(ctx context.Context, verb func(context.Context, Request) (*Reply, error), r Request) (*Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return verb(ctx, r)
}

// due is how long to wait after a denial that may be old, whether the cost can ever fit, and how many such there were one after
// the other. The next may be tried at once when the limit is free; but each time after twice as long, up to what the denial
// says, since others may take what is free, and a lease may be free for one worker alone.
func (c *Client) due(ctx context.Context, r Request, denied time.Duration, old int) (due time.Duration, fits bool, olds int) {
	r.ID = ""
	now, err := c.asked(ctx, c.Check, r)
	switch {
	case err != nil:
		return denied, denied > 0, 0
	case !now.Allowed:
		return now.RetryIn(), now.RetryAfter > 0, 0
	case denied == 0: // it fits under another limit than that of the denial
		denied = maxRetryIn
	}
	return min(denied, time.Millisecond<<min(old, 30)-time.Millisecond), true, old + 1
}

// sleep sleeps d and up to a tenth more, or fails at once when ctx would end before d. Where the end is near, it leaves half
// of the time until then for what comes after.
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
