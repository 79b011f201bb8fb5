package alerts_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

// TestClockAheadDoesNotSuppressAlerts: events that were dated in the future must not make later
// ones seem too old.
func TestClockAheadDoesNotSuppressAlerts(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	rules := `{rules: [{name: denials, threshold: {denials: 5, within: 10m}, channels: [log]}]}`
	for name, ahead := range map[string]func(*rig, *running){
		"the store's": func(r *rig, s *running) {
			r.advance(day)
			r.take(s, r.exceeded("7", "api", 4))
			r.advance(-day)
		},
		"a worker's": func(r *rig, s *running) {
			e := r.exceeded("7", "api", 4)
			e.Time += day.Milliseconds()
			r.take(s, e)
			r.advance(20 * time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rules)
			s := r.run()
			ahead(r, s)
			r.take(s, r.exceeded("7", "api", 2))
			if all := r.all(); len(all) != 0 {
				t.Errorf("what was counted then is counted now: %+v", all)
			}
			r.take(s, r.exceeded("7", "api", 3))
			if a := r.only(); a.Denied != 5 || a.LastAt != r.clock.now().UnixMilli() {
				t.Errorf("%d denials until %s", a.Denied, time.UnixMilli(a.LastAt))
			}
		})
	}
	r := newRig(t, rules)
	s := r.run()
	e := r.exceeded("7", "api", 4)
	e.Time += day.Milliseconds()
	r.take(s, e, r.exceeded("7", "api", 1))
	if a := r.only(); a.Denied != 5 || a.FirstAt != a.RaisedAt || a.LastAt != a.RaisedAt {
		t.Errorf("what a worker's clock dates tomorrow is not of now: %+v", a)
	}
}

// TestClockAheadAlertResolves: an alert of a clock that was ahead ends, so that later denials
// raise a new alert.
func TestClockAheadAlertResolves(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	r := newRig(t, `{rules: [{name: denials, threshold: {denials: 1, within: 10m}, channels: [log]}]}`)
	s := r.run()
	r.advance(365 * day)
	r.take(s, r.exceeded("7", "api", 1))
	r.seen.wait(t, "told", 1)
	s.stop()
	r.take(s, r.exceeded("8", "api", 1)) // of which nobody is told before the clock is set right
	r.advance(-365 * day)
	s = r.run()
	r.seen.wait(t, "told", 2)
	for n := range 3 {
		r.take(s, r.exceeded("7", "api", 1), r.exceeded("8", "api", 1))
		r.seen.wait(t, "told", 2+2*n)
		r.advance(day)
		if _, err := s.Resolve(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	all := r.all()
	for _, a := range all {
		if a.ResolvedAt == 0 {
			t.Errorf("%s is open: %d denials until %s", a.ID, a.Denied, time.UnixMilli(a.ResolveAt))
		}
	}
	if len(all) != 6 { // the first denials since are those of the alerts of before
		t.Errorf("%d alerts of two users, denied on 4 days", len(all))
	}
}

// TestClockAheadAlertWithholdsNoWarnings: an alert of a clock that was ahead withholds none after
// it should have been resolved.
func TestClockAheadAlertWithholdsNoWarnings(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	r := newRig(t, "{rules: [{name: denials, threshold: {denials: 1}}, {name: warnings, match: {type: warning}}]}")
	s := r.run()
	r.advance(year)
	r.take(s, r.exceeded("7", "api", 1))
	r.seen.wait(t, "told", 1)
	r.advance(-year)
	if note, err := s.Resolve(t.Context()); note != "resolved 1" || err != nil {
		t.Errorf("%q, %v", note, err)
	}
	e := r.exceeded("7", "api", 1)
	e.Type = limits.EventWarning
	r.take(s, e)
	if raised, withheld := r.seen.count("raised"), r.seen.count("withheld"); raised != 2 || withheld != 0 {
		t.Errorf("%d raised, %d withheld", raised, withheld)
	}
}

// TestClockAheadHeldAlertIsInADigest: an alert that was held while the clock was ahead is in the
// next digest, or the first that may include it.
func TestClockAheadHeldAlertIsInADigest(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour // Thursday is a Friday
	for name, c := range map[string]struct {
		rules string
		held  int
		hours int
	}{
		"throttle":    {"{throttle: {limit: 1, window: 1h}, rules: [{name: denials, threshold: {denials: 1}}]}", 2, 1},
		"quiet hours": {`{rules: [{name: denials, threshold: {denials: 1}, quietHours: [{from: "10:00", to: "14:30"}]}]}`, 3, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.rules)
			s := r.run()
			r.advance(year)
			for _, policy := range []string{"a", "b", "c"} {
				r.take(s, r.exceeded("7", policy, 1))
			}
			r.seen.wait(t, "told", 3)
			r.advance(-year)
			for hour := 1; hour <= c.hours; hour++ {
				r.advance(time.Hour)
				want := "0 digests of 0 alerts"
				if hour == c.hours {
					want = fmt.Sprintf("1 digests of %d alerts", c.held)
				}
				if note, err := s.Digest(t.Context()); note != want || err != nil {
					t.Errorf("%d h later: %q, %v; want %q", hour, note, err, want)
				}
			}
			for _, a := range r.all() {
				if a.Notice == alerts.Held && a.Digest == "" {
					t.Errorf("in no digest: held until %s", time.UnixMilli(a.HeldUntil))
				}
			}
		})
	}
}
