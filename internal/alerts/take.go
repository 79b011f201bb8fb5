package alerts

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/seed503877ad/limits"
)

// throttlePrefix begins the keys that the throttle charges, which are to be nobody else's: applications share the limiter, and
// have users too. Their own crossings are no alerts: to tell users that they are told too much would never end.
const throttlePrefix = "limits.alerts:user:"

// Observer is told what happens, for metrics. Its methods do not block.
type Observer interface {
	// EventsMatched is called with each batch that was kept: how many events matched a rule for the first time, how many
	// came again, how many matched none.
	EventsMatched(fresh, repeated, unmatched int)
	// AlertChanged is called with each alert that was "raised", "sent", "held", "silenced" or "resolved", and with each
	// warning that was "withheld" because its exceeded alert is open.
	AlertChanged(what, rule string)
	// ThrottleFailed is called when the limiter did not decide.
	ThrottleFailed()
}

// Config configures a [Service].
type Config struct {
	// Store keeps everything; required.
	Store Store
	// Limiter is charged for each alert that somebody is told of; required.
	Limiter Limiter
	// Rules gives the rules in force; required.
	Rules func() *Rules
	// NewID gives ids that nobody gave before; required.
	NewID func() string
	// Batch is how many alerts are looked at together; 256 unless set.
	Batch int
	// DigestMax is how many alerts one digest tells of at most; 10,000 unless set.
	DigestMax int
	// Delivered is called when deliveries were put into the outbox. It does not block.
	Delivered func()
	// CaughtUp is up to when all events have been taken, by the clock of this process; nil for always. While that is long ago
	// nothing is resolved: after an outage denials may have gone on, of which the events still wait.
	CaughtUp func() time.Time
	// Unpublished is how long the event has waited that has waited longest for its publishing; nil for none ever. While that
	// is long nothing is resolved either.
	Unpublished func(ctx context.Context) (time.Duration, error)
	// Observer is told of everything; nobody is unless set.
	Observer Observer
}

// Service makes alerts of events.
type Service struct {
	Config
	wake   chan struct{}
	handed handed
	// untold is an alert that the last try could not tell of; empty where it told of all. Only Run's goroutine uses it.
	untold string
}

// New makes a service, which does nothing by itself but what [Service.Run] does.
func New(cfg Config) *Service {
	if cfg.Observer == nil {
		cfg.Observer = nobody{}
	}
	if cfg.Delivered == nil {
		cfg.Delivered = func() {}
	}
	if cfg.Batch <= 0 {
		cfg.Batch = pendingBatch
	}
	if cfg.DigestMax <= 0 {
		cfg.DigestMax = digestAlerts
	}
	return &Service{Config: cfg, wake: make(chan struct{}, 1)}
}

type nobody struct{}

func (nobody) EventsMatched(int, int, int) {}
func (nobody) AlertChanged(string, string) {}
func (nobody) ThrottleFailed()             {}

// Take keeps what events mean. Once it returned nil they may be acknowledged; an event that is taken again is known. With
// no events it asks whether the store answers.
func (s *Service) Take(ctx context.Context, events []Event) error {
	b := newBatch(s.Rules(), events, s.NewID)
	b.claim = s.handed.claim(len(b.matches))
	until := time.Now().Add(b.claim)
	if len(b.matches) == 0 && len(events) > 0 {
		s.Observer.EventsMatched(0, 0, len(events))
		return nil
	}
	if err := s.Store.Take(ctx, b.taking(), b.decide); err != nil {
		return err
	}
	b.report(s.Observer, len(events))
	if b.claim > 0 {
		s.handed.add(b.changes.Raised, until)
	}
	switch {
	case len(b.changes.Updated) > 0 || b.claim == 0 && len(b.changes.Raised) > 0:
		s.Wake()
	case len(b.changes.Raised) > 0:
		s.nudge()
	}
	return nil
}

// Wake lets the service look for pending alerts now. It does not block.
func (s *Service) Wake() {
	s.handed.askStore()
	s.nudge()
}

// nudge ends an idle wait.
func (s *Service) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// match is an event that a rule takes.
type match struct {
	event   *Event
	rule    *Rule
	group   GroupID
	subject string
	// first says that it is the first match of its event.
	first bool
}

// batch is some events and what they mean under the rules of one moment.
type batch struct {
	rules   *Rules
	newID   func() string
	claim   time.Duration
	matches []match
	events  []string

	// What follows is of the last decide.
	known    Taken
	counts   map[GroupID]count
	changes  Changes
	raised   map[GroupID]int
	updated  map[GroupID]int
	withheld []string
}

func newBatch(r *Rules, events []Event, newID func() string) *batch {
	b := &batch{rules: r, newID: newID}
	seen := make(map[string]bool, len(events))
	for i := range events {
		e := &events[i]
		if seen[e.ID] || strings.HasPrefix(e.Key, throttlePrefix) {
			continue
		}
		seen[e.ID] = true
		b.match(e)
	}
	return b
}

// match finds the rules that take an event.
func (b *batch) match(e *Event) {
	first := true
	for i := range b.rules.Rules {
		r := &b.rules.Rules[i]
		if !r.Match.matches(e) {
			continue
		}
		b.matches = append(b.matches, match{
			event: e, rule: r, first: first, subject: e.by(subjectOf), group: GroupID{Rule: r.Name, Key: e.group(r)},
		})
		if first {
			b.events = append(b.events, e.ID)
		}
		first = false
	}
}

// groupDefault is what makes alerts the same unless a rule says otherwise.
var groupDefault = []string{"user", "policy", "window"}

// subjectOf makes the subject of an alert.
var subjectOf = groupDefault

// group makes the key of an event's group. Warnings of a rule that takes both types are a group of their own: the open alert
// of a warning would hide that the limit is exceeded.
func (e *Event) group(r *Rule) string {
	if e.Type == limits.EventWarning {
		return "warning\n" + e.by(r.GroupBy)
	}
	return e.by(r.GroupBy)
}

// by joins what an event has of each, so that no two lists of values give the same text.
func (e *Event) by(what []string) string {
	values := make([]string, len(what))
	for i, w := range what {
		switch w {
		case "user":
			values[i] = e.User
		case "policy":
			values[i] = e.Policy
			if e.Policy == "" { // an inline limit is known by its key
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

func (b *batch) taking() Taking {
	t := Taking{Events: b.events}
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

// decide says what the events change, in their order. It may be called again with what is known then.
func (b *batch) decide(known Taken) (Changes, error) {
	b.known, b.changes, b.withheld = known, Changes{States: map[GroupID]json.RawMessage{}, Claim: b.claim}, nil
	b.counts, b.raised, b.updated = map[GroupID]count{}, map[GroupID]int{}, map[GroupID]int{}
	if b.known.Exceeded == nil {
		b.known.Exceeded = map[string]bool{}
	}
	for i := range b.matches {
		if m := &b.matches[i]; known.Fresh[m.event.ID] {
			if err := b.apply(m); err != nil {
				return Changes{}, err
			}
		}
	}
	b.word(b.changes.Raised)
	b.word(b.changes.Updated)
	for id, c := range b.counts {
		state, err := json.Marshal(c)
		if err != nil {
			return Changes{}, err
		}
		b.changes.States[id] = state
	}
	return b.changes, nil
}

// word puts alerts that nobody was told of into words, as they are with the last of their events.
func (b *batch) word(all []Alert) {
	for i := range all {
		if a := &all[i]; a.Notice == Pending {
			a.Title, a.Text = b.rules.find(a.Rule).words(a)
		}
	}
}

// apply lets one event do what its rule says.
func (b *batch) apply(m *match) error {
	m = m.notAhead(b.known.Now)
	if a := b.open(m.group); a != nil {
		a.take(m, b.known.Now)
		return nil
	}
	c, ok := b.counts[m.group]
	if !ok {
		var err error
		if c, err = readCount(b.known.States[m.group]); err != nil {
			return err
		}
	}
	sum := c.add(m.event, m.rule.Within, b.known.Now)
	switch {
	case sum.Denied < m.rule.Threshold:
	case m.event.Type == limits.EventWarning && b.known.Exceeded[m.subject]:
		b.withheld = append(b.withheld, m.rule.Name)
		c = count{}
	default:
		b.raise(m, sum)
		c = count{}
	}
	b.counts[m.group] = c
	return nil
}

// notAhead gives an event that is dated after now, by a clock which is ahead, the time now: those that follow would seem old.
func (m *match) notAhead(now int64) *match {
	if m.event.Time <= now+maxAhead {
		return m
	}
	event, dated := *m.event, *m
	event.Time, dated.event = now, &event
	return &dated
}

// open gives the open alert of a group to be changed; nil when there is none.
func (b *batch) open(g GroupID) *Alert {
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

// take counts another event of an open alert. One that a silence held may be told now, if the silence has ended.
func (a *Alert) take(m *match, now int64) {
	a.Denied += m.event.Denied
	a.Events++
	a.FirstAt = min(a.FirstAt, m.event.Time)
	a.describe(m.event)
	a.stayOpen(m.rule, now)
	if a.Notice == Silenced {
		a.Notice = Pending
	}
}

// stayOpen puts off the resolving. The store's clock says when denials stopped, not the event's time: while a backlog is
// worked off they have not. One that was raised while that clock was ahead counts from now on, or it would take in all denials up to
// that time.
func (a *Alert) stayOpen(r *Rule, now int64) {
	a.ResolveAt = max(min(a.RaisedAt, now)+r.Dedup.Milliseconds(), now+r.ResolveAfter.Milliseconds())
}

// describe takes over what the last event says. The user and the policy stay those that raised it, whatever the rule
// groups by: the throttle may have been charged to that user, and is to be asked the same again.
func (a *Alert) describe(e *Event) {
	if e.Time < a.LastAt {
		return
	}
	a.LastAt = e.Time
	if e.User == a.User && e.Policy == a.Policy {
		a.Key, a.Name, a.Window, a.Limit = e.Key, e.Name, e.Window, e.Limit
	}
}

// raise opens an alert.
func (b *batch) raise(m *match, sum part) {
	a := Alert{
		ID: b.newID(), GroupID: m.group, Severity: m.rule.Severity, Type: m.event.Type, Subject: m.subject,
		Denied: sum.Denied, Events: sum.Events, FirstAt: sum.First, LastAt: sum.Last,
		User: m.event.User, Policy: m.event.Policy,
		EventID: m.event.ID, Channels: m.rule.Channels, Throttles: b.throttles(m.rule),
		RaisedAt: b.known.Now, Notice: Pending, NoticeAt: b.known.Now,
	}
	if !m.first { // each alert has a slot of its own
		a.EventID += ruleCut + m.rule.Name
	}
	last := *m.event
	last.Time = a.LastAt
	a.describe(&last)
	a.stayOpen(m.rule, b.known.Now)
	b.raised[m.group] = len(b.changes.Raised)
	b.changes.Raised = append(b.changes.Raised, a)
	if a.Type == limits.EventExceeded {
		b.known.Exceeded[m.subject] = true
	}
}

func (b *batch) throttles(r *Rule) []Throttle {
	all := []Throttle{b.rules.Throttle}
	if r.Throttle != nil {
		all = append(all, *r.Throttle)
	}
	return all
}

// report tells of a batch that was kept.
func (b *batch) report(o Observer, events int) {
	fresh := 0
	for _, id := range b.events {
		if b.known.Fresh[id] {
			fresh++
		}
	}
	o.EventsMatched(fresh, len(b.events)-fresh, events-len(b.events))
	for i := range b.changes.Raised {
		o.AlertChanged("raised", b.changes.Raised[i].Rule)
	}
	for _, rule := range b.withheld {
		o.AlertChanged("withheld", rule)
	}
}

// find gives a rule by its name; nil when the file has it no more.
func (r *Rules) find(name string) *Rule {
	i := slices.IndexFunc(r.Rules, func(rule Rule) bool { return rule.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Rules[i]
}
