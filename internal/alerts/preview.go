package alerts

import (
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/seed503877ad/limits"
)

// Preview is what rules would have made of events.
type Preview struct {
	// Events is how many there were, Matched how many of them a rule took.
	Events, Matched int64
	// Alerts are those that would have been raised, in order, with the counts they ended with; Notice says which were sent and
	// which the throttle or quiet hours held.
	Alerts []Alert
	// Sent and Held count them; Withheld counts the warnings held back while an exceeded alert was open.
	Sent, Held, Withheld int64
}

// NewPreview runs rules over events in memory: nothing is asked, kept or sent. The events are to come in order of time. The
// throttle is that of the rules, with nothing charged before the first event.
func NewPreview(r *Rules, events iter.Seq[Event]) (Preview, error) {
	v := view{rules: r, states: map[GroupID]json.RawMessage{}, open: map[GroupID]int{}, exceeded: map[string][]int{}, sent: map[string][]int64{}}
	for e := range events {
		v.Events++
		if err := v.take(e); err != nil {
			return Preview{}, err
		}
	}
	return v.Preview, nil
}

// view is a preview being made.
type view struct {
	Preview
	rules *Rules
	// now is what a store's clock would say.
	now    int64
	states map[GroupID]json.RawMessage
	// open and exceeded are indexes of Alerts: by group, and of those of exceeded limits by subject.
	open     map[GroupID]int
	exceeded map[string][]int
	// sent are the times at which each throttle of a user was charged.
	sent map[string][]int64
}

func (v *view) take(e Event) error {
	b := newBatch(v.rules, []Event{e}, func() string { return strconv.Itoa(len(v.Alerts) + 1) })
	if len(b.matches) == 0 {
		return nil
	}
	v.Matched++
	if e.Time > v.now || e.Time < v.now-maxLate {
		v.now = e.Time
	}
	changes, err := b.decide(v.known(&e, b.taking()))
	if err != nil {
		return err
	}
	v.Withheld += int64(len(b.withheld))
	v.keep(changes)
	return nil
}

// maxLate is how late, in milliseconds, an event may come to the stream. One that is dated longer ago follows one that was dated
// by a clock which was ahead.
const maxLate = 3_600_000

// known is what a store would know when an event comes.
func (v *view) known(e *Event, t Taking) Taken {
	known := Taken{Now: v.now, Fresh: map[string]bool{e.ID: true}, States: v.states, Open: map[GroupID]Alert{}, Exceeded: map[string]bool{}}
	for _, g := range t.Groups {
		if i, ok := v.open[g]; ok && v.lasts(i, v.now) {
			known.Open[g] = v.Alerts[i]
		}
	}
	for _, subject := range t.Subjects {
		v.exceeded[subject] = slices.DeleteFunc(v.exceeded[subject], func(i int) bool { return !v.lasts(i, v.now) })
		known.Exceeded[subject] = len(v.exceeded[subject]) > 0
	}
	return known
}

// lasts tells whether an alert is open at a time, and resolves it if its time has come.
func (v *view) lasts(i int, now int64) bool {
	a := &v.Alerts[i]
	if a.ResolvedAt == 0 && a.ResolveAt <= now {
		a.ResolvedAt = a.ResolveAt
	}
	return a.ResolvedAt == 0
}

func (v *view) keep(c Changes) {
	maps.Copy(v.states, c.States)
	for _, a := range c.Updated {
		v.Alerts[v.open[a.GroupID]] = a
	}
	for _, a := range c.Raised {
		a.NoticeAt = a.RaisedAt
		v.notice(&a)
		v.open[a.GroupID] = len(v.Alerts)
		if a.Type == limits.EventExceeded {
			v.exceeded[a.Subject] = append(v.exceeded[a.Subject], len(v.Alerts))
		}
		v.Alerts = append(v.Alerts, a)
	}
}

// notice decides as [Service.tell] does, without silences.
func (v *view) notice(a *Alert) {
	until, quiet := v.rules.find(a.Rule).quietUntil(time.UnixMilli(a.RaisedAt))
	switch {
	case quiet:
		a.Notice, a.Reason, a.HeldUntil = Held, "quiet hours", until.UnixMilli()
		v.Held++
	case !v.fits(a):
		a.Notice, a.Reason = Held, "throttle"
		v.Held++
	default:
		a.Notice = Sent
		v.Sent++
	}
}

// fits charges all throttles of an alert, or none.
func (v *view) fits(a *Alert) bool {
	for _, t := range a.Throttles {
		id, since := throttleID(a, t), a.RaisedAt-t.window().Milliseconds()
		times := v.sent[id]
		for len(times) > 0 && times[0] <= since {
			times = times[1:]
		}
		v.sent[id] = times
		if int64(len(times)) >= t.Limit {
			return false
		}
	}
	for _, t := range a.Throttles {
		id := throttleID(a, t)
		v.sent[id] = append(v.sent[id], a.RaisedAt)
	}
	return true
}

func throttleID(a *Alert, t Throttle) string { return a.User + "\n" + t.Name + "\n" + t.Window }

// window is the throttle's; the file was held to it.
func (t *Throttle) window() time.Duration {
	d, err := parseSpan(t.Window, maxSpan)
	if err != nil {
		return time.Hour
	}
	return d
}
