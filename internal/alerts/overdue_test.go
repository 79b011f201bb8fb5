package alerts_test

import (
	"slices"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

// inTenMinutes resolves alerts ten minutes after their last denial.
const inTenMinutes = `{rules: [{name: denials, threshold: {denials: 5, within: 10m}, dedup: 10m, channels: [log]}]}`

// kinds returns the kinds of the messages that wait for the log.
func (r *rig) kinds() (all []alerts.Kind) {
	r.t.Helper()
	for _, d := range r.send("log") {
		all = append(all, d.Message.Kind)
	}
	slices.Sort(all)
	return all
}

// TestDenialsAfterAnOverdueAlertRaiseANewOne: the job that resolves alerts stood still, such as while the alerter was down.
// What came in time still belongs to the alert, also if it was taken only now.
func TestDenialsAfterAnOverdueAlertRaiseANewOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, inTenMinutes)
	s := r.run()
	r.take(s, r.exceeded("7", "api", 5))
	r.seen.wait(t, "sent", 1)
	r.kinds()
	r.advance(5 * time.Minute)
	inTime := r.exceeded("7", "api", 3)
	r.advance(3 * time.Hour)
	r.take(s, inTime)
	if a := r.only(); a.Denied != 8 || a.ResolvedAt != 0 {
		t.Fatalf("what came in time is not of the open alert: %+v", a)
	}
	r.advance(3 * time.Hour)
	delivered := r.seen.count("delivered")
	r.take(s, r.exceeded("7", "api", 4))
	r.seen.wait(t, "delivered", delivered+1) // the sender is woken
	if a := r.only(); a.Denied != 8 || a.ResolvedAt != r.clock.now().UnixMilli() {
		t.Errorf("when denials began again: %+v", a)
	}
	r.take(s, r.exceeded("7", "api", 2), r.exceeded("7", "api", 1))
	r.seen.wait(t, "sent", 2)
	if all := r.all(); len(all) != 2 || all[1].Denied != 7 || all[1].ResolvedAt != 0 {
		t.Errorf("%+v", all)
	}
	if all := r.kinds(); !slices.Equal(all, []alerts.Kind{alerts.KindRaised, alerts.KindResolved}) {
		t.Errorf("told %v", all)
	}
	if n := r.seen.count("resolved"); n != 1 {
		t.Errorf("%d were resolved", n)
	}
}

// TestOverdueAlertWithholdsNoWarning: nobody would hear of a counter that comes close to its limit again.
func TestOverdueAlertWithholdsNoWarning(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{rules: [{name: denials, threshold: {denials: 1}, dedup: 10m}, {name: close, match: {type: warning}, threshold: {denials: 1}}]}`)
	s := r.run()
	warning := func() alerts.Event {
		e := r.exceeded("7", "api", 1)
		e.Type = limits.EventWarning
		return e
	}
	r.take(s, r.exceeded("7", "api", 5))
	r.advance(5 * time.Minute)
	inTime := warning()
	r.advance(3 * time.Hour)
	r.take(s, inTime)
	if r.only(); r.seen.count("withheld") != 1 {
		t.Error("one that came in time is not withheld")
	}
	r.take(s, warning())
	if all := r.all(); len(all) != 2 || all[1].Rule != "close" {
		t.Errorf("%+v", all)
	}
}

// TestDenialsThatGoOnInABacklogAreOfOneAlert: an alerter that was down for hours takes what waited.
func TestDenialsThatGoOnInABacklogAreOfOneAlert(t *testing.T) {
	t.Parallel()
	r := newRig(t, inTenMinutes)
	s := r.run()
	r.take(s, r.exceeded("7", "api", 5))
	r.seen.wait(t, "sent", 1)
	var backlog []alerts.Event
	for range 20 {
		r.advance(9 * time.Minute)
		backlog = append(backlog, r.exceeded("7", "api", 5))
	}
	r.advance(time.Hour)
	r.take(s, backlog...)
	if a := r.only(); a.Denied != 105 || a.ResolvedAt != 0 {
		t.Errorf("%+v", a)
	}
}

// TestPendingAlertIsNotOverdue: nobody was told of it yet.
func TestPendingAlertIsNotOverdue(t *testing.T) {
	t.Parallel()
	r := newRig(t, inTenMinutes)
	s := &running{Service: r.newService(r.store, r.limiter)}
	r.take(s, r.exceeded("7", "api", 5))
	r.advance(3 * time.Hour)
	r.take(s, r.exceeded("7", "api", 5))
	if a := r.only(); a.Denied != 10 || a.ResolvedAt != 0 {
		t.Errorf("%+v", a)
	}
}
