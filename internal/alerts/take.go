package alerts

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed503877ad/limits"
)

// throttlePrefix begins the keys that the throttle charges. Applications share the limiter and limit the same users, so the
// prefix keeps their keys apart.
const throttlePrefix = "limits.alerts:user:"

// ofThrottle reports whether an event is about a key of the throttle. Such events are ignored: alerts about too many alerts
// would never end. Only inline limits share a counter with the throttle. A policy's event is never ignored: its key may
// begin with an attribute, and with one that a caller chooses the caller would raise no alerts.
func (e *Event) ofThrottle() bool { return e.Policy == "" && strings.HasPrefix(e.Key, throttlePrefix) }

// takeMatches is the default of Config.MaxMatches. Larger transactions are no faster.
const takeMatches = 1024

// Observer observes the service, for metrics. Its methods must not block.
type Observer interface {
	// EventsMatched is called after each transaction: how many events matched a rule for the first time, how many
	// matched one but had been taken before, and how many matched none.
	EventsMatched(fresh, repeated, unmatched int)
	// AlertChanged is called for each alert that was "raised", "sent", "held", "silenced" or "resolved", and for each
	// warning that was "withheld" because an exceeded alert with the same subject is open.
	AlertChanged(what, rule string)
	// ThrottleFailed is called when the limiter did not decide about an alert.
	ThrottleFailed()
}

// Config configures a [Service].
type Config struct {
	// Store is required.
	Store Store
	// Limiter is charged for each alert that is sent; required.
	Limiter Limiter
	// Rules returns the current rules; required.
	Rules func() *Rules
	// NewID returns a new unique id; required.
	NewID func() string
	// Batch is how many pending alerts are handled together; default 256.
	Batch int
	// MaxMatches bounds the matches of events with rules that one transaction takes, except for a single event that has more;
	// default 1024. Each match reads and writes a group and perhaps an alert, so this bounds the transaction's time and memory.
	MaxMatches int
	// DigestMax is how many alerts one digest has at most; default 10,000. They are read and marked in one transaction.
	DigestMax int
	// Delivered is called after deliveries were added to the outbox. It must not block.
	Delivered func()
	// CaughtUp is the time up to which all events have been taken, by the clock of this process; nil for always now. While
	// it is long ago no alert is resolved: after an outage denials may have gone on whose events still wait.
	CaughtUp func() time.Time
	// Unpublished returns the age of the oldest event that is not published yet; nil for none ever. While it is long no
	// alert is resolved either.
	Unpublished func(ctx context.Context) (time.Duration, error)
	// OldestEvent returns the time of the oldest event that the stream has, zero if it has none; nil if that is not known.
	// The ids of older events are not kept.
	OldestEvent func(ctx context.Context) (time.Time, error)
	// Locked reports whether an error of the store tells of a lock that something else holds, as on the alerts of one user;
	// nil for never.
	Locked func(err error) bool
	// Observer is optional.
	Observer Observer
}

// Service makes alerts of events.
type Service struct {
	Config
	wake     chan struct{}
	handover handover
	// undecided is the ID of a pending alert for which no pass could decide or store the notice yet; empty if there is none.
	// Only Run's goroutine uses it.
	undecided string
	// failing is how the store last failed Run; nil if it never did.
	failing atomic.Pointer[failure]
}

// New returns a service. [Service.Run] does its background work.
func New(cfg Config) *Service {
	if cfg.Observer == nil {
		cfg.Observer = noObserver{}
	}
	if cfg.Delivered == nil {
		cfg.Delivered = func() {}
	}
	if cfg.Locked == nil {
		cfg.Locked = func(error) bool { return false }
	}
	if cfg.Batch <= 0 {
		cfg.Batch = pendingBatch
	}
	if cfg.MaxMatches <= 0 {
		cfg.MaxMatches = takeMatches
	}
	if cfg.DigestMax <= 0 {
		cfg.DigestMax = digestAlerts
	}
	return &Service{Config: cfg, wake: make(chan struct{}, 1)}
}

type noObserver struct{}

func (noObserver) EventsMatched(int, int, int) {}
func (noObserver) AlertChanged(string, string) {}
func (noObserver) ThrottleFailed()             {}

// Take counts events and stores the result. Once it has returned nil the events may be acknowledged; an event that is
// taken a second time is ignored. Without events it still runs a transaction, which tells whether the store works.
//
// Events with many matches are stored in several transactions, in order. If one fails, the events of those before stay
// taken.
func (s *Service) Take(ctx context.Context, events []Event) error {
	all := newBatch(s.Rules(), events, s.NewID)
	if len(all.matches) == 0 && len(events) > 0 {
		all.report(s.Observer)
		return nil
	}
	for _, part := range all.split(s.MaxMatches) {
		if err := s.takePart(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// takePart stores what one transaction takes.
func (s *Service) takePart(ctx context.Context, b *batch) error {
	b.claim = s.handover.claim(len(b.matches))
	claimedUntil := time.Now().Add(b.claim)
	if err := s.Store.Take(ctx, b.taking(), b.decide); err != nil {
		return err
	}
	b.report(s.Observer)
	if len(b.changes.Deliveries) > 0 {
		s.Delivered()
	}
	if b.claim > 0 {
		s.handover.add(b.changes.Raised, claimedUntil)
	}
	switch {
	case b.leavesPending():
		s.Wake()
	case len(b.changes.Raised) > 0:
		s.signal()
	}
	return nil
}

// leavesPending reports whether the store may have pending alerts of a stored batch that this process has not claimed. An
// open alert that was silenced is pending again.
func (b *batch) leavesPending() bool {
	return b.claim == 0 && len(b.changes.Raised) > 0 ||
		slices.ContainsFunc(b.changes.Updated, func(a Alert) bool { return a.Notice == Pending })
}

// Wake makes Run look for pending alerts in the store now. It does not block.
func (s *Service) Wake() {
	s.handover.requestPoll()
	s.signal()
}

// signal wakes Run if it is idle.
func (s *Service) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// match is an event and a rule that it matches.
type match struct {
	event   *Event
	rule    *Rule
	group   GroupID
	subject string
	// first says that no earlier rule matches the event.
	first bool
}

// batch is a batch of events and what they change under the rules of one moment.
type batch struct {
	rules *Rules
	newID func() string
	// claim is for how long raised alerts are claimed by this process; 0 for not at all.
	claim time.Duration
	// late is for how long counts are kept for events that come late.
	late    time.Duration
	matches []match
	// events are the ids of the events that match a rule, repeated how many of them came again in the batch, and unmatched how
	// many match none.
	events              []string
	repeated, unmatched int

	// The fields below are results of the last call of decide.
	known   TakeState
	counts  map[GroupID]count
	changes Changes
	// raised and updated are indexes of changes.Raised and changes.Updated by group.
	raised  map[GroupID]int
	updated map[GroupID]int
	// withheld are the names of rules, one for each warning that raised no alert because an exceeded alert is open.
	withheld []string
}

func newBatch(r *Rules, events []Event, newID func() string) *batch {
	b := &batch{rules: r, newID: newID, late: lateKept}
	seen := make(map[string]bool, len(events))
	for i := range events {
		e := &events[i]
		switch matched, known := seen[e.ID]; {
		case e.ofThrottle():
		case !known:
			seen[e.ID] = b.match(e)
		case matched:
			b.repeated++
		}
	}
	b.unmatched = len(events) - len(b.events) - b.repeated
	return b
}

// split splits a batch, in order, into parts of at most so many matches. An event that has more is a part of its own: its id
// is stored once, with all that it changes. There is one part at least. The last one has the counts of the other events.
func (b *batch) split(most int) (parts []*batch) {
	for matches, events := b.matches, b.events; ; {
		n, ids := 0, 0
		for n < len(matches) {
			next := n + 1
			for next < len(matches) && !matches[next].first {
				next++
			}
			if next > most && n > 0 {
				break
			}
			n, ids = next, ids+1
		}
		part := &batch{rules: b.rules, newID: b.newID, late: b.late, matches: matches[:n], events: events[:ids]}
		parts, matches, events = append(parts, part), matches[n:], events[ids:]
		if len(matches) == 0 {
			part.repeated, part.unmatched = b.repeated, b.unmatched
			return parts
		}
	}
}

// match finds the rules that match an event, and reports whether there are any.
func (b *batch) match(e *Event) bool {
	first := true
	for i := range b.rules.Rules {
		r := &b.rules.Rules[i]
		if !r.Match.matches(e) {
			continue
		}
		b.matches = append(b.matches, match{
			event: e, rule: r, first: first, subject: e.join(subjectFields), group: GroupID{Rule: r.Name, Key: e.groupKey(r)},
		})
		if first {
			b.events = append(b.events, e.ID)
		}
		first = false
	}
	return !first
}

// defaultGroupBy is the groupBy of a rule that does not say.
var defaultGroupBy = []string{"user", "policy", "window"}

// subjectFields are the fields that make the subject of an alert.
var subjectFields = defaultGroupBy

// groupKey makes the key of an event's group. Warnings are a group of their own, also under a rule for both types: otherwise
// an alert that was raised by a warning, while open, would hide that the limit is exceeded.
func (e *Event) groupKey(r *Rule) string {
	if e.Type == limits.EventWarning {
		return "warning\n" + e.join(r.GroupBy)
	}
	return e.join(r.GroupBy)
}

// join joins the values of fields unambiguously: no two lists of values give the same text.
func (e *Event) join(fields []string) string {
	values := make([]string, len(fields))
	for i, field := range fields {
		switch field {
		case "user":
			values[i] = e.User
		case "policy":
			values[i] = e.Policy
			if e.Policy == "" { // the key stands for the policy of an inline limit
				values[i] = "\t" + e.Key
			}
		case "window":
			values[i] = e.Window
		case "key":
			values[i] = e.Key
		case "name":
			values[i] = e.Name
		}
	}
	return strings.Join(values, "\n")
}

func (b *batch) taking() TakeQuery {
	t := TakeQuery{Events: b.events}
	groups, subjects := map[GroupID]bool{}, map[string]bool{}
	for i := range b.matches {
		m := &b.matches[i]
		if !groups[m.group] {
			groups[m.group] = true
			t.Groups = append(t.Groups, m.group)
		}
		if m.event.Type == limits.EventWarning && !subjects[m.subject] {
			subjects[m.subject] = true
			t.Subjects = append(t.Subjects, m.subject)
		}
	}
	return t
}

// decide applies the events in order to what the store knows, and returns the changes. The store may call it again, with
// newer knowledge.
func (b *batch) decide(known TakeState) (Changes, error) {
	b.known, b.changes, b.withheld = known, Changes{States: map[GroupID]json.RawMessage{}, Claim: b.claim}, nil
	b.counts, b.raised, b.updated = map[GroupID]count{}, map[GroupID]int{}, map[GroupID]int{}
	if b.known.Exceeded == nil {
		b.known.Exceeded = map[string]int64{}
	}
	for i := range b.matches {
		if m := &b.matches[i]; known.Fresh[m.event.ID] {
			if err := b.apply(m); err != nil {
				return Changes{}, err
			}
		}
	}
	b.renderWords()
	for id, c := range b.counts {
		state, err := json.Marshal(c)
		if err != nil {
			return Changes{}, err
		}
		b.changes.States[id] = state
	}
	return b.changes, nil
}

// renderWords renders title and text of the alerts that became pending, after the last of their events in the batch was
// counted. Those of alerts that were pending before stay: they may be on their way to channels.
func (b *batch) renderWords() {
	render := func(a *Alert) { a.Title, a.Text = b.rules.rule(a.Rule).words(a) }
	for i := range b.changes.Raised {
		render(&b.changes.Raised[i])
	}
	for i := range b.changes.Updated {
		if a := &b.changes.Updated[i]; a.Notice == Pending && b.known.Open[a.GroupID].Notice == Silenced {
			render(a)
		}
	}
}

// apply counts one event under one rule: in the open alert of its group, or in the group's count, which may raise an alert.
func (b *batch) apply(m *match) error {
	m = m.clampToNow(b.known.Now)
	if err := b.resolveOverdue(m); err != nil {
		return err
	}
	if a := b.openAlert(m.group); a != nil {
		a.addEvent(m, b.known.Now)
		b.noteExceeded(a)
		return nil
	}
	c, ok := b.counts[m.group]
	if !ok {
		var err error
		if c, err = readCount(b.known.States[m.group]); err != nil {
			return err
		}
	}
	sum := c.add(m.event, m.rule.Within, b.known.Now, b.late)
	switch {
	case sum.Denied < m.rule.Threshold:
	case m.event.Type == limits.EventWarning && !b.isOver(b.known.Exceeded[m.subject], m):
		b.withheld = append(b.withheld, m.rule.Name)
		c = count{}
	default:
		b.raise(m, sum)
		c = count{}
	}
	b.counts[m.group] = c
	return nil
}

// clampToNow sets the time of an event that is more than maxClockAhead in the future to now. Otherwise the events after it
// would seem too old to keep.
func (m *match) clampToNow(now int64) *match {
	if m.event.Time <= now+maxClockAhead {
		return m
	}
	event, clamped := *m.event, *m
	event.Time, clamped.event = now, &event
	return &clamped
}

// raise opens an alert with the sum of its group's count.
func (b *batch) raise(m *match, sum part) {
	a := Alert{
		ID: b.newID(), GroupID: m.group, Severity: m.rule.Severity, Type: m.event.Type, Subject: m.subject,
		Denied: sum.Denied, Events: sum.Events, FirstAt: sum.First, LastAt: sum.Last,
		User: m.event.User, Policy: m.event.Policy,
		EventID: m.event.ID, Channels: m.rule.Channels, Throttles: b.throttles(m.rule),
		RaisedAt: b.known.Now, Notice: Pending, NoticeAt: b.known.Now,
	}
	if !m.first { // each alert of an event is charged to the throttle
		a.EventID += ruleSeparator + m.rule.Name
	}
	last := *m.event
	last.Time = a.LastAt
	a.updateDetails(&last)
	a.extend(m.rule, b.known.Now)
	b.raised[m.group] = len(b.changes.Raised)
	b.changes.Raised = append(b.changes.Raised, a)
	b.noteExceeded(&a)
}

func (b *batch) throttles(r *Rule) []Throttle {
	all := []Throttle{b.rules.Throttle}
	if r.Throttle != nil {
		all = append(all, *r.Throttle)
	}
	return all
}

// report reports a stored batch to the observer.
func (b *batch) report(o Observer) {
	fresh := 0
	for _, id := range b.events {
		if b.known.Fresh[id] {
			fresh++
		}
	}
	o.EventsMatched(fresh, len(b.events)-fresh+b.repeated, b.unmatched)
	for i := range b.changes.Resolved {
		o.AlertChanged("resolved", b.changes.Resolved[i].Rule)
	}
	for i := range b.changes.Raised {
		o.AlertChanged("raised", b.changes.Raised[i].Rule)
	}
	for _, rule := range b.withheld {
		o.AlertChanged("withheld", rule)
	}
}
