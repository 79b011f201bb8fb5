package alerts

import "github.com/seed503877ad/limits"

// What events do to the alerts that are open when they come.

// resolveOverdue resolves the open alert of an event's group if the event came only after its denials had stopped: the job that
// resolves alerts stood still. Otherwise the alert would go on, and nobody would be told of the new denials. A pending alert goes
// on, because nobody was told of it either.
func (b *batch) resolveOverdue(m *match) error {
	a, open := b.known.Open[m.group]
	if _, updated := b.updated[m.group]; !open || updated || a.Notice == Pending || !b.isOver(a.ResolveAt, m) {
		return nil
	}
	a.ResolvedAt = b.known.Now
	told, err := b.rules.resolved(&a)
	if err != nil {
		return err
	}
	delete(b.known.Open, m.group)
	b.changes.Resolved, b.changes.Deliveries = append(b.changes.Resolved, a), append(b.changes.Deliveries, told...)
	return nil
}

// isOver reports whether an alert with a ResolveAt was over when an event came. The time of the event counts, and not when it is
// taken: while a backlog is worked off denials have not stopped. A worker's clock may be ahead.
func (b *batch) isOver(resolveAt int64, m *match) bool {
	return min(m.event.Time, b.known.Now) > resolveAt+maxClockAhead
}

// noteExceeded notes an open alert by which warnings are withheld.
func (b *batch) noteExceeded(a *Alert) {
	if a.Type == limits.EventExceeded {
		b.known.Exceeded[a.Subject] = max(b.known.Exceeded[a.Subject], a.ResolveAt)
	}
}

// openAlert returns the open alert of a group, to be changed; nil if there is none.
func (b *batch) openAlert(g GroupID) *Alert {
	if i, ok := b.raised[g]; ok {
		return &b.changes.Raised[i]
	}
	if i, ok := b.updated[g]; ok {
		return &b.changes.Updated[i]
	}
	a, ok := b.known.Open[g]
	if !ok {
		return nil
	}
	b.updated[g] = len(b.changes.Updated)
	b.changes.Updated = append(b.changes.Updated, a)
	return &b.changes.Updated[len(b.changes.Updated)-1]
}

// addEvent counts another event of an open alert. A silenced alert becomes pending again: the silence may have ended.
func (a *Alert) addEvent(m *match, now int64) {
	a.Denied += m.event.Denied
	a.Events++
	a.FirstAt = min(a.FirstAt, m.event.Time)
	a.updateDetails(m.event)
	a.extend(m.rule, now)
	if a.Notice == Silenced {
		a.Notice = Pending
	}
}

// extend sets ResolveAt. It counts from the store's clock, not from the event's time: while a backlog is worked off, denials
// have not stopped. If the alert was raised while the store's clock was ahead, Dedup counts from now: otherwise the alert
// would stay open until that time plus Dedup.
func (a *Alert) extend(r *Rule, now int64) {
	a.ResolveAt = max(min(a.RaisedAt, now)+r.Dedup.Milliseconds(), now+r.ResolveAfter.Milliseconds())
}

// updateDetails copies details of the last event. The user and the policy stay those of the event that raised the alert,
// whatever the rule groups by: the throttle may have been charged to that user, and a retry must charge the same.
func (a *Alert) updateDetails(e *Event) {
	if e.Time < a.LastAt {
		return
	}
	a.LastAt = e.Time
	if e.User == a.User && e.Policy == a.Policy {
		a.Key, a.Name, a.Window, a.Limit = e.Key, e.Name, e.Window, e.Limit
	}
}
