package limits_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestWait(t *testing.T) {
	nc := connect(t)
	c := patient(nc)
	tries := 0
	var denied time.Time
	answer(t, nc, limits.SubjectConsume, func(string) *nats.Msg {
		if tries++; tries < 3 {
			denied = time.Now()
			return body(`{"allowed":false,"retryAfter":30}`)
		}
		if waited := time.Since(denied); waited < 30*time.Millisecond {
			t.Errorf("came back after %v, sooner than retryAfter", waited)
		}
		return body(`{"allowed":true}`)
	})
	if reply, err := c.Wait(t.Context(), limits.Per("k", 1, "1m")); err != nil || !reply.Allowed || tries != 3 {
		t.Fatalf("reply %+v, error %v, %d tries", reply, err, tries)
	}
}

// TestWaitersDoNotAllRetryAtOnce: of many Waits for the same request, one retries when one can
// pass, and learns for the others when the next one can.
func TestWaitersDoNotAllRetryAtOnce(t *testing.T) {
	t.Parallel()
	const waits, every = 50, 10 * time.Millisecond
	nc := connect(t)
	c := limits.NewClient(nc, limits.Timeout(time.Minute))
	var next time.Time
	denied := 0
	answer(t, nc, limits.SubjectConsume, func(string) *nats.Msg {
		now := time.Now()
		if left := next.Sub(now); left > 0 {
			denied++
			return body(fmt.Sprintf(`{"allowed":false,"retryAfter":%d}`, (left+time.Millisecond-1)/time.Millisecond))
		}
		next = now.Add(every)
		return body(`{"allowed":true}`)
	})
	var all sync.WaitGroup
	for i := range waits {
		all.Go(func() {
			r := limits.Per("k", 1, "1m")
			if i%5 == 0 {
				r.ID = fmt.Sprint("job-", i) // the ID makes no difference
			}
			if reply, err := c.Wait(t.Context(), r); err != nil || !reply.Allowed {
				t.Errorf("%+v, %v", reply, err)
			}
		})
	}
	all.Wait()
	if denied > 4*waits {
		t.Errorf("%d denials for %d who waited", denied, waits)
	}
}

// TestWaitsInFlightDoubleWhileAllowed: the number of Waits in flight doubles as long as they are
// allowed. Otherwise the round trip to the limiter would bound how many pass. The limiter of this
// test answers only when that many requests are in flight.
func TestWaitsInFlightDoubleWhileAllowed(t *testing.T) {
	t.Parallel()
	const most = 32
	nc := connect(t)
	c := limits.NewClient(nc, limits.Timeout(time.Minute))
	waits, denied := 2*most-1, 0
	var together atomic.Int64
	together.Store(1)
	var asking []*nats.Msg
	if _, err := nc.Subscribe(limits.SubjectConsume, func(m *nats.Msg) {
		if denied < waits {
			denied++
			_ = m.Respond([]byte(`{"allowed":false,"retryAfter":500}`))
			return
		}
		if asking = append(asking, m); len(asking) < int(together.Load()) {
			return
		}
		together.Store(2 * together.Load())
		for _, m := range asking {
			_ = m.Respond([]byte(`{"allowed":true}`))
		}
		asking = nil
	}); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range waits {
		all.Go(func() {
			if reply, err := c.Wait(t.Context(), limits.Per("k", 1, "1m")); err != nil || !reply.Allowed {
				t.Errorf("%+v, %v", reply, err)
			}
		})
	}
	all.Wait()
	if next := together.Load(); next != 2*most {
		t.Errorf("%d asked at the same time in the end", next/2)
	}
}

// TestUnansweredWaitDoesNotBlockOthers: both Waits end within one or two timeouts of an attempt.
func TestUnansweredWaitDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	nc := connect(t)
	c := limits.NewClient(nc, limits.Timeout(50*time.Millisecond))
	var asked atomic.Int64
	if _, err := nc.Subscribe(limits.SubjectConsume, func(m *nats.Msg) {
		if asked.Add(1) <= 2 {
			_ = m.Respond([]byte(`{"allowed":false,"retryAfter":5}`))
		}
	}); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			if reply, err := c.Wait(t.Context(), limits.Per("k", 1, "1m")); !errors.Is(err, context.DeadlineExceeded) || reply != nil {
				t.Errorf("%+v, %v", reply, err)
			}
		})
	}
	all.Wait()
}

// receipts answers consumes as the service does: a known id gets the same answer as before. New ids are allowed while free is
// true.
type receipts struct {
	free  bool
	known map[string]string
	asked []string
}

const deniedForAnHour = `{"allowed":false,"key":"k","retryAfter":3600000}`

func (s *receipts) consume(request string) *nats.Msg {
	var r limits.Request
	_ = json.Unmarshal([]byte(request), &r)
	s.asked = append(s.asked, r.ID)
	if s.known[r.ID] == "" {
		s.known[r.ID] = s.now()
	}
	return body(s.known[r.ID])
}

func (s *receipts) now() string {
	if s.free {
		return `{"allowed":true,"key":"k"}`
	}
	return deniedForAnHour
}

// TestWaitIgnoresOldDenials: a remembered denial says how long the wait was at that time. Wait
// does not go by that.
func TestWaitIgnoresOldDenials(t *testing.T) {
	nc := connect(t)
	c := patient(nc)
	s := receipts{known: map[string]string{"job-7": deniedForAnHour, "job-7:1": deniedForAnHour, "job-7:2": deniedForAnHour}}
	answer(t, nc, limits.SubjectConsume, s.consume)
	answer(t, nc, limits.SubjectCheck, func(request string) *nats.Msg {
		if strings.Contains(request, "job-7") {
			t.Errorf("checked %s; the id belongs to the charge", request)
		}
		return body(s.now())
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request := limits.Per("k", 1, "1h")
	request.ID = "job-7"
	if reply, err := c.Wait(ctx, request); !errors.Is(err, context.DeadlineExceeded) || reply == nil || reply.Allowed {
		t.Errorf("as long as nothing is free: reply %+v, error %v", reply, err)
	}
	s.free = true
	reply, err := c.Wait(ctx, request)
	if err != nil || !reply.Allowed || reply.ID != "job-7:3" {
		t.Errorf("reply %+v, error %v; want it charged under job-7:3", reply, err)
	}
	if reply, err = c.Wait(ctx, request); err != nil || reply.ID != "job-7:3" {
		t.Errorf("again: reply %+v, error %v; want the same", reply, err)
	}
	const chain = " job-7 job-7:1 job-7:2 job-7:3"
	if got := strings.Join(s.asked, " "); got != "job-7"+chain+chain {
		t.Errorf("ids %s", got)
	}
}

// TestWaitIgnoresOldNeverFitDenials: the limit may have been raised since.
func TestWaitIgnoresOldNeverFitDenials(t *testing.T) {
	nc := connect(t)
	c := patient(nc)
	const never = `{"allowed":false,"key":"k"}`
	s := receipts{free: true, known: map[string]string{"job-7": never}}
	answer(t, nc, limits.SubjectConsume, s.consume)
	fits := false
	answer(t, nc, limits.SubjectCheck, func(string) *nats.Msg {
		if !fits {
			return body(never)
		}
		return body(s.now())
	})
	request := limits.Per("k", 1, "1h")
	request.ID = "job-7"
	if reply, err := c.Wait(t.Context(), request); !errors.Is(err, limits.ErrNeverFits) || reply == nil {
		t.Errorf("as long as it does not fit: reply %+v, error %v", reply, err)
	}
	fits = true
	if reply, err := c.Wait(t.Context(), request); err != nil || !reply.Allowed || reply.ID != "job-7:1" {
		t.Errorf("reply %+v, error %v; want it charged under job-7:1", reply, err)
	}
}

// TestWaitWithoutCheckPermission: a user who may consume, but not check, waits as long as the
// denial says.
func TestWaitWithoutCheckPermission(t *testing.T) {
	nc := connect(t)
	s := receipts{free: true, known: map[string]string{"job-7": `{"allowed":false,"key":"k","retryAfter":30}`}}
	answer(t, nc, limits.SubjectConsume, s.consume)
	request := limits.Per("k", 1, "1m")
	request.ID = "job-7"
	reply, err := patient(nc).Wait(t.Context(), request)
	if err != nil || !reply.Allowed || reply.ID != "job-7:1" {
		t.Errorf("reply %+v, error %v", reply, err)
	}
}

// TestWaitEndsWhenAnswerIsLost: the Wait ends soon, even if its context would last for long. A
// lost answer to the check does not hold it up either: then it goes by the denial.
func TestWaitEndsWhenAnswerIsLost(t *testing.T) {
	nc := connect(t)
	c := limits.NewClient(nc, limits.Timeout(20*time.Millisecond))
	answered := map[string]string{"job-7": `{"allowed":false,"key":"k","retryAfter":30}`}
	if _, err := nc.Subscribe(limits.SubjectConsume, func(m *nats.Msg) {
		var r limits.Request
		_ = json.Unmarshal(m.Data, &r)
		if reply := answered[r.ID]; reply != "" {
			_ = m.Respond([]byte(reply))
		}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Subscribe(limits.SubjectCheck, func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, id := range []string{"", "job-7"} {
		request := limits.Per("k", 1, "1m")
		request.ID = id
		reply, err := c.Wait(ctx, request)
		if !errors.Is(err, context.DeadlineExceeded) || reply != nil || ctx.Err() != nil {
			t.Errorf("id %q: reply %+v, error %v, context %v; want an error, and long before the context's end", id, reply, err, ctx.Err())
		}
	}
}

func TestWaitGivesUp(t *testing.T) {
	nc := connect(t)
	c := patient(nc)
	tries := 0
	waiting, cancelWait := context.WithCancel(t.Context())
	answer(t, nc, limits.SubjectConsume, func(r string) *nats.Msg {
		tries++
		if strings.Contains(r, "large") {
			return body(`{"allowed":false,"key":"large"}`)
		}
		if strings.Contains(r, "cancelled") {
			time.AfterFunc(20*time.Millisecond, cancelWait)
		}
		if strings.Contains(r, "in debt") { // 548 years
			return body(`{"allowed":false,"key":"k","retryAfter":17280000000000}`)
		}
		return body(`{"allowed":false,"key":"k","retryAfter":3600000}`)
	})
	reply, err := c.Wait(t.Context(), limits.Per("large", 1, "1m"))
	if !errors.Is(err, limits.ErrNeverFits) || reply == nil {
		t.Errorf("never fits: reply %v, error %v", reply, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if reply, err = c.Wait(ctx, limits.Per("k", 1, "1m")); !errors.Is(err, context.DeadlineExceeded) || reply == nil {
		t.Errorf("deadline before the retry: reply %v, error %v", reply, err)
	}
	if reply, err = c.Wait(ctx, limits.Per("in debt", 1, "1m")); !errors.Is(err, context.DeadlineExceeded) || reply == nil {
		t.Errorf("centuries: reply %v, error %v", reply, err)
	}
	if _, err := c.Wait(waiting, limits.Per("cancelled", 1, "1m")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if tries != 4 {
		t.Errorf("%d tries, want 4", tries)
	}
}

// TestWaitDoesNotJoinOthersWhileDisconnected: it fails at once, as without others, and those who sleep go on.
func TestWaitDoesNotJoinOthersWhileDisconnected(t *testing.T) {
	t.Parallel()
	s := serveNATS(t, server.RANDOM_PORT)
	lost := make(chan struct{}, 1)
	nc := testenv.Connect(t, s.ClientURL(), limits.Reconnect(), nats.DisconnectErrHandler(func(*nats.Conn, error) { lost <- struct{}{} }))
	answer(t, nc, limits.SubjectConsume, func(string) *nats.Msg { return body(deniedForAnHour) })
	c, r := patient(nc), limits.Per("k", 1, "1h")
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if _, err := c.Wait(ctx, r); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	waitUntilJoined(t, c, r)
	s.Shutdown()
	<-lost
	if reply, err := c.Wait(t.Context(), r); !errors.Is(err, nats.ErrDisconnected) || reply != nil {
		t.Errorf("reply %+v, error %v", reply, err)
	}
	cancel()
	all.Wait()
}

// waitUntilJoined returns when others Wait for a request that is denied for an hour, so that one more does not ask.
func waitUntilJoined(t *testing.T, c *limits.Client, r limits.Request) {
	t.Helper()
	waitFor(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		reply, err := c.Wait(ctx, r)
		return errors.Is(err, context.DeadlineExceeded) && reply.RetryAfter < time.Hour.Milliseconds()
	})
}

// TestWaitEndsWithTheConnection: its retry time may be weeks away.
func TestWaitEndsWithTheConnection(t *testing.T) {
	t.Parallel()
	nc := connect(t)
	c := patient(nc)
	answer(t, nc, limits.SubjectConsume, func(string) *nats.Msg { return body(deniedForAnHour) })
	var all sync.WaitGroup
	all.Go(func() {
		reply, err := c.Wait(t.Context(), limits.Per("k", 1, "1h"))
		if !errors.Is(err, nats.ErrConnectionClosed) || !strings.Contains(err.Error(), "wait for k") || reply == nil {
			t.Errorf("reply %+v, error %v", reply, err)
		}
	})
	waitUntilJoined(t, c, limits.Per("k", 1, "1h"))
	nc.Close()
	all.Wait()
}
