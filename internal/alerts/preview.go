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
	// Events is how many there were, Matched how many of them a rule matched.
	Events, Matched int64
	// Alerts are those that would have been raised, in order, as they were after the last event. Notice says which would have
	// been sent, and which the throttle or quiet hours would have held.
	Alerts []Alert
	// Sent and Held count them. Withheld counts the warnings that raised no alert because an exceeded alert was open.
	Sent, Held, Withheld int64
}

// NewPreview runs rules over events in memory, with nothing stored and nothing sent. The events come in about the order of
// their times: one that comes up to an hour late counts with the others of its time, and one that comes later may count
// alone. Throttles start with nothing charged.
func NewPreview(r *Rules, events iter.Seq[Event]) (Preview, error) {
	v := previewer{rules: r, states: map[GroupID]json.RawMessage{}, open: map[GroupID]int{}, exceeded: map[string][]int{}, sent: map[string][]int64{}}
	for e := range events {
		v.Events++
		if err := v.take(e); err != nil {
			return Preview{}, err
		}
	}
	for i := range v.Alerts {
		v.resolveOrOpen(i)
	}
	return v.Preview, nil
}

// previewer makes a preview. It stands in for the store and for the limiter.
type previewer struct {
	Preview
	rules *Rules
	// now is what the store's clock would show.
	now    int64
	states map[GroupID]json.RawMessage
	// open and exceeded are indexes of Alerts: by group, and by subject for alerts of exceeded limits.
	open     map[GroupID]int
	exceeded map[string][]int
	// sent are the times at which each throttle of each user was charged, by throttleID.
	sent map[string][]int64
}

func (v *previewer) take(e Event) error {
	if e.Time > v.now || e.Time < v.now-maxEventDelay {
		v.now = e.Time
	}
	b := newBatch(v.rules, []Event{e}, func() string { return strconv.Itoa(len(v.Alerts) + 1) })
	if len(b.matches) == 0 {
		return nil
	}
	b.late = maxEventDelay * time.Millisecond
	v.Matched++
	changes, err := b.decide(v.known(&e, b.taking()))
	if err != nil {
		return err
	}
	v.Withheld += int64(len(b.withheld))
	v.apply(changes)
	return nil
}

// maxEventDelay is how late, in milliseconds, an event may reach the stream. If an event is dated earlier than that before
// now, the clock was ahead and has been set back.
const maxEventDelay = 3_600_000

// known returns what the store would know when an event comes.
func (v *previewer) known(e *Event, t TakeQuery) TakeState {
	known := TakeState{Now: v.now, Fresh: map[string]bool{e.ID: true}, States: v.states, Open: map[GroupID]Alert{}, Exceeded: map[string]int64{}}
	for _, g := range t.Groups {
		if i, ok := v.open[g]; ok && v.resolveOrOpen(i) {
			known.Open[g] = v.Alerts[i]
		}
	}
	for _, subject := range t.Subjects {
		v.exceeded[subject] = slices.DeleteFunc(v.exceeded[subject], func(i int) bool { return !v.resolveOrOpen(i) })
		for _, i := range v.exceeded[subject] {
			known.Exceeded[subject] = max(known.Exceeded[subject], v.Alerts[i].ResolveAt)
		}
	}
	return known
}

// resolveOrOpen resolves an alert if its ResolveAt has come, and reports whether it is still open.
func (v *previewer) resolveOrOpen(i int) (open bool) {
	a := &v.Alerts[i]
	if a.ResolvedAt == 0 && a.ResolveAt <= v.now {
		a.ResolvedAt = a.ResolveAt
	}
	return a.ResolvedAt == 0
}

func (v *previewer) apply(c Changes) {
	maps.Copy(v.states, c.States)
	for _, a := range c.Updated {
		v.Alerts[v.open[a.GroupID]] = a
	}
	for _, a := range c.Raised {
		a.NoticeAt = a.RaisedAt
		v.decideNotice(&a)
		v.open[a.GroupID] = len(v.Alerts)
		if a.Type == limits.EventExceeded {
			v.exceeded[a.Subject] = append(v.exceeded[a.Subject], len(v.Alerts))
		}
		v.Alerts = append(v.Alerts, a)
	}
}

// decideNotice decides as [Service.decideNotice] does, without silences.
func (v *previewer) decideNotice(a *Alert) {
	until, quiet := v.rules.rule(a.Rule).quietUntil(time.UnixMilli(a.RaisedAt))
	switch {
	case quiet:
		a.Notice, a.Reason, a.HeldUntil = Held, "quiet hours", until.UnixMilli()
		v.Held++
	case !v.charge(a):
		a.Notice, a.Reason = Held, "throttle"
		v.Held++
	default:
		a.Notice = Sent
		v.Sent++
	}
}

// charge charges all throttles of an alert, or none if one of them is exhausted.
func (v *previewer) charge(a *Alert) (charged bool) {
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

func throttleID(a *Alert, t Throttle) string { return a.User + "\n" + t.Name }

// window returns the parsed Window, which was validated when the file was read.
func (t *Throttle) window() time.Duration {
	d, err := parseDuration(t.Window, maxDuration)
	if err != nil {
		return time.Hour
	}
	return d
}
