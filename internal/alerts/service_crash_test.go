package alerts_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

var errDead = errors.New("the process is dead")

// fuse kills a process at one of its next steps, before or after the step has done its work. Then no step does anything.
type fuse struct {
	left   atomic.Int64
	behind bool
	burnt  chan struct{}
}

func newFuse(r *rand.Rand) *fuse {
	f := &fuse{behind: r.IntN(2) == 0, burnt: make(chan struct{})}
	left := 1 + r.Int64N(20) // to tell of 10 alerts takes 12 and more
	if r.IntN(4) == 0 {
		left *= 8 // and 20 more for each time that they are charged anew
	}
	f.left.Store(left)
	return f
}

func (f *fuse) step(do func() error) error {
	switch left := f.left.Add(-1); {
	case left > 0:
		return do()
	case left == 0:
		defer close(f.burnt)
		if f.behind {
			_ = do()
		}
	}
	return errDead
}

// mortal is the store and the limiter of a process that dies: every call is a step of its fuse.
type mortal struct {
	alerts.Store
	limiter alerts.Limiter
	*fuse
}

func (m *mortal) Take(ctx context.Context, t alerts.TakeQuery, decide func(alerts.TakeState) (alerts.Changes, error)) error {
	return m.step(func() error { return m.Store.Take(ctx, t, decide) })
}

func (m *mortal) PendingAlerts(ctx context.Context, max int, lease time.Duration) (all []alerts.Alert, now int64, err error) {
	err = m.step(func() (err error) { all, now, err = m.Store.PendingAlerts(ctx, max, lease); return err })
	if err != nil {
		return nil, 0, err
	}
	return all, now, nil
}

func (m *mortal) SaveNotices(ctx context.Context, all []alerts.NoticeDecision) (told []string, err error) {
	err = m.step(func() (err error) { told, err = m.Store.SaveNotices(ctx, all); return err })
	return told, err
}

func (m *mortal) DigestAlerts(ctx context.Context, user string, max int, build func([]alerts.Alert, int64) (alerts.DigestDecision, error)) (n int, err error) {
	err = m.step(func() (err error) { n, err = m.Store.DigestAlerts(ctx, user, max, build); return err })
	return n, err
}

func (m *mortal) Consume(ctx context.Context, r limits.Request) (reply *limits.Reply, err error) {
	err = m.step(func() (err error) { reply, err = m.limiter.Consume(ctx, r); return err })
	if err != nil {
		return nil, err
	}
	return reply, nil
}

func (m *mortal) Settle(ctx context.Context, id string, cost int64) (reply *limits.Reply, err error) {
	err = m.step(func() (err error) { reply, err = m.limiter.Settle(ctx, id, cost); return err })
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// runMortal starts a process that is going to die.
func (r *rig) runMortal(random *rand.Rand) (*running, *fuse) {
	m := &mortal{Store: r.store, limiter: r.limiter, fuse: newFuse(random)}
	return r.runOver(m, m), m.fuse
}

// untold counts the alerts of a user that are pending.
func (r *rig) untold(user string) (n int) {
	r.t.Helper()
	all, err := r.store.Alerts(r.t.Context(), alerts.AlertFilter{User: user, Max: 100})
	if err != nil {
		r.t.Fatal(err)
	}
	for i := range all {
		if all[i].Notice == alerts.Pending {
			n++
		}
	}
	return n
}

// live runs a process until it dies, or all events are taken and all alerts decided. It returns the events that it did not
// take, which are redelivered.
func (r *rig) live(random *rand.Rand, user string, events []alerts.Event) []alerts.Event {
	r.t.Helper()
	s, f := r.runMortal(random)
	defer s.stop()
	for len(events) > 0 {
		n := min(1+random.IntN(4), len(events))
		if s.Take(r.t.Context(), events[:n]) != nil {
			return events
		}
		events = events[n:]
	}
	for end := time.After(patience); ; {
		_, changed := r.seen.look("")
		if r.untold(user) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-f.burnt:
			return nil
		case <-end:
			r.t.Fatalf("%s: %d alerts are not sent after %s", user, r.untold(user), patience)
		}
	}
}

// schedules is how many random schedules TestAlertsSurviveCrashAtAnyMoment tries: some by default,
// hundreds with make crashes.
var schedules = flag.Int("schedules", 30, "how many random deaths the tests of alerts try")

// TestAlertsSurviveCrashAtAnyMoment makes processes die at any step from event to digest, in
// random schedules, and starts others after a while. In each schedule a user has 10 alerts within
// an hour: 8 must be sent once, and 2 must be in digests.
func TestAlertsSurviveCrashAtAnyMoment(t *testing.T) {
	t.Parallel()
	const each, most = 10, 8
	r := newRig(t, "{throttle: {limit: 8, window: 1h}, rules: [{name: denials, threshold: {denials: 1}}]}")
	random := rand.New(rand.NewPCG(1, 2))
	deaths := 0
	for i := range *schedules {
		user := fmt.Sprint("user-", i)
		var events []alerts.Event
		for n := range each {
			events = append(events, r.exceeded(user, fmt.Sprint("policy-", n), 1))
		}
		for first := true; first || len(events) > 0 || r.untold(user) > 0; first = false {
			events = r.live(random, user, events)
			r.advance(afterDeath + time.Duration(random.IntN(4)/3)*2*time.Minute)
			deaths++
		}
		if slots := r.slots(user); slots != most {
			t.Errorf("%s: %d slots charged, want %d", user, slots, most)
		}
	}
	for digested := false; !digested; {
		s, _ := r.runMortal(random)
		_, err := s.Digest(t.Context())
		s.stop()
		digested = err == nil
	}
	raised, digested := map[string]int{}, map[string]int64{}
	ids := map[string]bool{}
	for _, d := range r.outbox("log") {
		if ids[d.Message.ID] {
			t.Errorf("%s is there twice", d.Message.ID)
		}
		ids[d.Message.ID] = true
		if d.Message.Kind == alerts.KindDigest {
			digested[d.Message.User] += digestOf(t, d).Alerts
		} else {
			raised[d.Message.User]++
		}
	}
	for i := range *schedules {
		if user := fmt.Sprint("user-", i); raised[user] != most || digested[user] != each-most {
			t.Errorf("%s: %d sent and %d in digests", user, raised[user], digested[user])
		}
	}
	t.Logf("%d processes", deaths)
}
