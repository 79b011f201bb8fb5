package alerts

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"pgregory.net/rapid"
)

// oneRule is the rule of most tests: 5 denials in 10 minutes, like the built-in one.
func oneRule(change ...func(*Rule)) *Rules {
	r := Rule{
		Name: "denials", Match: Match{Types: []string{limits.EventExceeded}}, Threshold: 5, Within: 10 * time.Minute,
		Severity: Warning, GroupBy: defaultGroupBy, Dedup: 10 * time.Minute, ResolveAfter: 10 * time.Minute, Channels: []string{"nats", "log"},
	}
	for _, c := range change {
		c(&r)
	}
	return &Rules{Rules: []Rule{r}, Throttle: Throttle{Limit: 20, Window: "1h"}}
}

const minute = int64(60_000)

// start is the time of the first events, a full hour.
const start = int64(1_800_000_000_000)

// denial is a denial of user 7 under a policy.
func denial(n int, at int64, denied int64) Event {
	return Event{ID: strconv.Itoa(n), Type: limits.EventExceeded, Time: start + at, Key: "api:user:7", Name: "1m", Policy: "api",
		Window: "1m", User: "7", Limit: 100, Denied: denied}
}

// preview runs rules over events.
func preview(t *testing.T, r *Rules, events ...Event) Preview {
	t.Helper()
	p, err := NewPreview(r, slices.Values(events))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDenialsWithinWindowReachThreshold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events []Event
		raised int
		denied int64
	}{
		"four":                           {[]Event{denial(1, 0, 4)}, 0, 0},
		"five at once":                   {[]Event{denial(1, 0, 5)}, 1, 5},
		"five in parts":                  {[]Event{denial(1, 0, 2), denial(2, minute, 3)}, 1, 5},
		"five, the last 9 min later":     {[]Event{denial(1, 0, 4), denial(2, 9*minute, 1)}, 1, 5},
		"the first has left":             {[]Event{denial(1, 0, 4), denial(2, 10*minute, 1)}, 0, 0},
		"the first of a part is too old": {[]Event{denial(1, 0, 1), denial(2, 9900, 3), denial(3, 603_000, 2)}, 1, 6},
		"a part has left":                {[]Event{denial(1, 0, 1), denial(2, 9900, 3), denial(3, 609_900, 2)}, 0, 0},
		"one comes late":                 {[]Event{denial(1, 5*minute, 4), denial(2, 0, 1)}, 1, 5},
		"one comes too late":             {[]Event{denial(1, 15*minute, 4), denial(2, 0, 1)}, 0, 0},
		"the first is dated tomorrow":    {[]Event{denial(1, 24*60*minute, 4), denial(2, 0, 5)}, 1, 5},
		"what follows updates the open":  {[]Event{denial(1, 0, 5), denial(2, minute, 7), denial(3, 2*minute, 1)}, 1, 13},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := preview(t, oneRule(), c.events...)
			if len(p.Alerts) != c.raised {
				t.Fatalf("raised %+v", p.Alerts)
			}
			if c.raised == 1 && p.Alerts[0].Denied != c.denied {
				t.Errorf("denied %d, want %d", p.Alerts[0].Denied, c.denied)
			}
		})
	}
}

func strconvID() func() string {
	n := 0
	return func() string { n++; return strconv.Itoa(n) }
}

func TestAlertFieldsComeFromItsEvents(t *testing.T) {
	t.Parallel()
	last := denial(3, 3*minute, 2)
	last.Key, last.Limit = "api:user:7:b", 50
	a := preview(t, oneRule(), denial(1, 0, 3), denial(2, minute, 4), last).Alerts[0]
	if a.FirstAt != start || a.LastAt != start+3*minute || a.RaisedAt != start+minute || a.Events != 3 || a.Denied != 9 {
		t.Errorf("times and counts: %+v", a)
	}
	if a.Key != "api:user:7:b" || a.Limit != 50 || a.User != "7" || a.Policy != "api" || a.Window != "1m" {
		t.Errorf("what it is of: %+v", a)
	}
	if a.EventID != "2" {
		t.Errorf("raised by event %s, want 2, which reached the threshold", a.EventID)
	}
}

// TestAlertShowsItsUserAndPolicy: whatever the rule groups by, key, name, window and limit are those of the user and the policy
// that the alert names, and it has them although the event that raised it comes late.
func TestAlertShowsItsUserAndPolicy(t *testing.T) {
	t.Parallel()
	of := func(n int, at int64, user, policy string) Event {
		e := denial(n, at, 5)
		e.User, e.Policy, e.Key = user, policy, user+policy
		return e
	}
	byWindow := oneRule(func(r *Rule) { r.GroupBy = []string{"window"} })
	for name, c := range map[string]struct {
		events []Event
		want   string
	}{
		"another policy follows": {[]Event{of(1, 0, "7", "a"), of(2, 1, "7", "b")}, "7a"},
		"another user follows":   {[]Event{of(1, 0, "7", "a"), of(2, 1, "8", "a")}, "7a"},
		"both, then its own":     {[]Event{of(1, 0, "7", "a"), of(2, 1, "8", "b"), of(3, 2, "7", "a")}, "7a"},
		"it comes late":          {[]Event{denial(1, 5*minute, 4), of(2, 0, "8", "b")}, "8b"},
	} {
		p := preview(t, byWindow, c.events...)
		if len(p.Alerts) != 1 || p.Alerts[0].Key != c.want || p.Alerts[0].User+p.Alerts[0].Policy != c.want {
			t.Errorf("%s: %+v, want one of %s", name, p.Alerts, c.want)
		}
	}
}

// TestCountBeginsAnewAfterAnAlert: denials that raised one alert raise no other.
func TestCountBeginsAnewAfterAnAlert(t *testing.T) {
	t.Parallel()
	brief := oneRule(func(r *Rule) { r.Dedup, r.ResolveAfter = time.Second, 30*time.Second })
	if p := preview(t, brief, denial(1, 0, 5), denial(2, minute, 4)); len(p.Alerts) != 1 || p.Alerts[0].Denied != 5 {
		t.Errorf("four more denials raised %+v", p.Alerts)
	}
	if p := preview(t, brief, denial(1, 0, 5), denial(2, minute, 4), denial(3, 2*minute, 1)); len(p.Alerts) != 2 || p.Alerts[1].Denied != 5 {
		t.Errorf("five more denials raised %+v", p.Alerts)
	}
}

// TestTakeAsksForEachGroupOnce, and for the subjects of warnings only.
func TestTakeAsksForEachGroupOnce(t *testing.T) {
	t.Parallel()
	warning := func(n int) Event { e := denial(n, 0, 1); e.Type = limits.EventWarning; return e }
	b := newBatch(oneRule(func(r *Rule) { r.Match.Types = append(r.Match.Types, limits.EventWarning) }),
		[]Event{denial(1, 0, 1), denial(2, 0, 1), warning(3), warning(4), denial(5, 0, 1)}, strconvID())
	got := b.taking()
	if subject := b.matches[0].subject; len(got.Groups) != 2 || !slices.Equal(got.Subjects, []string{subject}) || !slices.Equal(got.Events, []string{"1", "2", "3", "4", "5"}) {
		t.Errorf("%+v", got)
	}
	denials := newBatch(oneRule(), []Event{denial(1, 0, 1)}, strconvID())
	if got := denials.taking(); len(got.Subjects) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestAlertGrouping(t *testing.T) {
	t.Parallel()
	change := func(f func(*Event)) []Event {
		a, b := denial(1, 0, 5), denial(2, 0, 5)
		f(&b)
		return []Event{a, b}
	}
	inline := func(keys ...string) (all []Event) {
		for i, key := range keys {
			e := denial(i, 0, 5)
			e.Policy, e.Key = "", key
			all = append(all, e)
		}
		return all
	}
	for name, c := range map[string]struct {
		events []Event
		raised int
	}{
		"another key of a policy is the same": {change(func(e *Event) { e.Key = "other" }), 1},
		"another name is the same":            {change(func(e *Event) { e.Name = "other" }), 1},
		"another user is not":                 {change(func(e *Event) { e.User = "8" }), 2},
		"another policy is not":               {change(func(e *Event) { e.Policy = "p" }), 2},
		"another window is not":               {change(func(e *Event) { e.Window = "1h" }), 2},
		"inline limits differ by key":         {inline("a", "b", "b"), 2},
		"an inline limit is no policy":        {append(inline("api"), denial(9, 0, 5)), 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if p := preview(t, oneRule(), c.events...); len(p.Alerts) != c.raised {
				t.Errorf("%d alerts, want %d: %+v", len(p.Alerts), c.raised, p.Alerts)
			}
		})
	}
	byKey := oneRule(func(r *Rule) { r.GroupBy = []string{"user", "key"} })
	if p := preview(t, byKey, change(func(e *Event) { e.Key = "other" })...); len(p.Alerts) != 2 {
		t.Errorf("grouped by key: %+v", p.Alerts)
	}
}

func TestGroupNamesAreUnique(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-c:| ]{0,4}`)
		draw := func(name string) Event {
			return Event{User: text.Draw(t, name+" user"), Policy: text.Draw(t, name+" policy"), Key: text.Draw(t, name+" key"), Window: text.Draw(t, name+" window")}
		}
		a, b := draw("a"), draw("b")
		same := a.User == b.User && a.Window == b.Window && a.Policy == b.Policy && (a.Policy != "" || a.Key == b.Key)
		if (a.join(defaultGroupBy) == b.join(defaultGroupBy)) != same {
			t.Fatalf("%+v and %+v", a, b)
		}
	})
}

func TestAnAlertResolvesWhenDenialsStop(t *testing.T) {
	t.Parallel()
	p := preview(t, oneRule(), denial(1, 0, 5), denial(2, 9*minute, 1), denial(3, 18*minute, 1), denial(4, 29*minute, 5))
	if len(p.Alerts) != 2 || p.Alerts[0].ResolvedAt != start+28*minute || p.Alerts[0].Denied != 7 || p.Alerts[1].ResolvedAt != 0 {
		t.Errorf("%+v", p.Alerts)
	}
	late := oneRule(func(r *Rule) { r.ResolveAfter = time.Minute })
	if p := preview(t, late, denial(1, 0, 5), denial(2, 9*minute, 1), denial(3, 9*minute+59_999, 5)); len(p.Alerts) != 1 {
		t.Errorf("within the dedup window there is a second: %+v", p.Alerts)
	}
	if p := preview(t, late, denial(1, 0, 5), denial(2, 10*minute, 5)); len(p.Alerts) != 2 {
		t.Errorf("after the dedup window there is no second: %+v", p.Alerts)
	}
}

func TestWarningIsWithheldWhileExceededAlertIsOpen(t *testing.T) {
	t.Parallel()
	r := oneRule()
	w := r.Rules[0]
	w.Name, w.Match.Types, w.Threshold = "warnings", []string{limits.EventWarning}, 1
	r.Rules = append(r.Rules, w)
	warning := func(n int, at int64) Event {
		e := denial(n, at, 1)
		e.Type = limits.EventWarning
		return e
	}
	p := preview(t, r, warning(1, 0), denial(2, minute, 5), warning(3, 2*minute), warning(4, 40*minute))
	rules := []string{}
	for _, a := range p.Alerts {
		rules = append(rules, a.Rule)
	}
	// The second warning updates the first one's alert, which was open before, so it is not withheld.
	if !slices.Equal(rules, []string{"warnings", "denials", "warnings"}) || p.Withheld != 0 {
		t.Errorf("%v, %d withheld", rules, p.Withheld)
	}
	p = preview(t, r, denial(2, minute, 5), warning(3, 2*minute), warning(4, 40*minute))
	if len(p.Alerts) != 2 || p.Withheld != 1 || p.Alerts[1].EventID != "4" {
		t.Errorf("%+v, %d withheld", p.Alerts, p.Withheld)
	}
}

func TestWarningAlertDoesNotHideExceeded(t *testing.T) {
	t.Parallel()
	both := oneRule(func(r *Rule) {
		r.Match.Types, r.Threshold = []string{limits.EventWarning, limits.EventExceeded}, 1
	})
	warning := denial(1, 0, 1)
	warning.Type = limits.EventWarning
	p := preview(t, both, warning, denial(2, minute, 5))
	if len(p.Alerts) != 2 || p.Alerts[1].Type != limits.EventExceeded {
		t.Errorf("%+v", p.Alerts)
	}
	warning.ID, warning.Time = "3", start+2*minute
	if p := preview(t, both, denial(2, minute, 5), warning); len(p.Alerts) != 1 || p.Withheld != 1 {
		t.Errorf("%+v, %d withheld", p.Alerts, p.Withheld)
	}
}

func TestEachAlertOfAnEventIsChargedSeparately(t *testing.T) {
	t.Parallel()
	r := oneRule()
	second := r.Rules[0]
	second.Name, second.Throttle = "second", &Throttle{Name: "second", Limit: 3, Window: "1h"}
	r.Rules = append(r.Rules, second)
	p := preview(t, r, denial(1, 0, 5))
	if len(p.Alerts) != 2 || p.Alerts[0].EventID != "1" || p.Alerts[1].EventID != "1:second" {
		t.Fatalf("%+v", p.Alerts)
	}
	if len(p.Alerts[0].Throttles) != 1 || !slices.Equal(p.Alerts[1].Throttles, []Throttle{r.Throttle, *second.Throttle}) {
		t.Errorf("throttles %+v and %+v", p.Alerts[0].Throttles, p.Alerts[1].Throttles)
	}
}

func TestABulkImportGivesTwentyAlerts(t *testing.T) {
	t.Parallel()
	var events []Event
	for i := range 300 {
		e := denial(i, int64(i), 5)
		e.Policy = fmt.Sprint("import-", i)
		events = append(events, e)
	}
	if p := preview(t, oneRule(), events...); p.Sent != 20 || p.Held != 280 {
		t.Errorf("%d sent, %d held", p.Sent, p.Held)
	}
}

// TestAWarningIsWithheldByTheLongerOfTwoAlerts: of two alerts about the exceeded limit, the one raised last is resolved already.
func TestAWarningIsWithheldByTheLongerOfTwoAlerts(t *testing.T) {
	t.Parallel()
	r := oneRule(func(r *Rule) { r.Name, r.Threshold, r.ResolveAfter = "long", 1, time.Hour })
	short, warning := r.Rules[0], r.Rules[0]
	short.Name, short.GroupBy, short.Dedup, short.ResolveAfter = "short", []string{"user"}, time.Second, 30*time.Second
	warning.Name, warning.Match = "warning", Match{Types: []string{limits.EventWarning}}
	r.Rules = append(r.Rules, short, warning)
	e := denial(2, 5*minute, 1)
	e.Type = limits.EventWarning
	p := preview(t, r, denial(1, 0, 1), e)
	if len(p.Alerts) != 2 || p.Withheld != 1 {
		t.Errorf("%d alerts and %d withheld, want 2 and 1: %+v", len(p.Alerts), p.Withheld, p.Alerts)
	}
}

func TestThrottleEventsRaiseNoAlert(t *testing.T) {
	t.Parallel()
	e := denial(1, 0, 100)
	e.Key, e.Policy = throttleKey("7"), ""
	if p := preview(t, oneRule(), e); p.Matched != 0 || len(p.Alerts) != 0 {
		t.Errorf("%+v", p)
	}
}

// TestNoAttributeHidesAUserFromAlerts: the key of a policy may begin with an attribute, so a caller can make it one of the
// throttle's.
func TestNoAttributeHidesAUserFromAlerts(t *testing.T) {
	t.Parallel()
	e := denial(1, 0, 5)
	e.Key = throttleKey("eve")
	if p := preview(t, oneRule(), e); p.Matched != 1 || len(p.Alerts) != 1 {
		t.Errorf("%+v, want an alert", p)
	}
}

// TestThrottleHoldsInAnyHour checks the preview. Other tests check the service on real stores.
func TestThrottleHoldsInAnyHour(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		at, events := int64(0), []Event{}
		for i := range rapid.IntRange(1, 200).Draw(t, "events") {
			at += rapid.Int64Range(0, 10*minute).Draw(t, "pause")
			e := denial(i, at, rapid.Int64Range(1, 9).Draw(t, "denied"))
			e.User, e.Policy = strconv.Itoa(rapid.IntRange(1, 2).Draw(t, "user")), strconv.Itoa(rapid.IntRange(1, 50).Draw(t, "policy"))
			events = append(events, e)
		}
		r := oneRule(func(r *Rule) { r.Dedup, r.ResolveAfter = time.Minute, time.Minute })
		r.Throttle.Limit = rapid.Int64Range(1, 20).Draw(t, "limit")
		p, err := NewPreview(r, slices.Values(events))
		if err != nil {
			t.Fatal(err)
		}
		sent := map[string][]int64{}
		for _, a := range p.Alerts {
			if a.Notice == Sent {
				sent[a.User] = append(sent[a.User], a.RaisedAt)
			}
		}
		for user, times := range sent {
			for i := int(r.Throttle.Limit); i < len(times); i++ {
				if times[i]-times[i-int(r.Throttle.Limit)] < 60*minute {
					t.Fatalf("user %s is sent %d alerts within %d ms", user, r.Throttle.Limit+1, times[i]-times[i-int(r.Throttle.Limit)])
				}
			}
		}
	})
}

// TestCountsDoNotDependOnTheOrder of the events within the time of the threshold: workers publish concurrently.
func TestCountsDoNotDependOnTheOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var events []Event
		for i := range rapid.IntRange(1, 40).Draw(t, "events") {
			events = append(events, denial(i, rapid.Int64Range(0, 10*minute-1).Draw(t, "at"), rapid.Int64Range(1, 3).Draw(t, "denied")))
		}
		total := func() part {
			var c count
			var sum part
			for i := range events {
				sum = c.add(&events[i], 10*time.Minute, start+10*minute, lateKept)
			}
			if len(c.Parts) > countParts+1 {
				t.Fatalf("%d parts", len(c.Parts))
			}
			return sum
		}
		before := total()
		seed := rapid.Uint64().Draw(t, "seed")
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		if after := total(); after != before {
			t.Fatalf("%+v, then %+v", before, after)
		}
	})
}

// eventCounts keeps what was last reported of a batch.
type eventCounts struct {
	noObserver
	fresh, repeated, unmatched int
}

func (c *eventCounts) EventsMatched(fresh, repeated, unmatched int) {
	c.fresh, c.repeated, c.unmatched = fresh, repeated, unmatched
}

func TestDecideIsRepeatable(t *testing.T) {
	t.Parallel()
	b := newBatch(oneRule(), []Event{denial(1, 0, 5), denial(2, 0, 1)}, strconvID())
	known := TakeState{Now: start, Fresh: map[string]bool{"1": true, "2": true}}
	for range 2 {
		c, err := b.decide(known)
		if err != nil || len(c.Raised) != 1 || c.Raised[0].Denied != 6 || len(c.Updated) != 0 {
			t.Fatalf("%+v, %v", c, err)
		}
	}
	b = newBatch(oneRule(), []Event{denial(1, 0, 4), denial(1, 0, 4)}, strconvID())
	if c, err := b.decide(TakeState{Now: start, Fresh: map[string]bool{"1": true}}); err != nil || len(c.Raised) != 0 {
		t.Errorf("an event twice in a batch counts twice: %+v, %v", c, err)
	}
	var counted eventCounts
	b.report(&counted)
	if counted != (eventCounts{fresh: 1, repeated: 1}) {
		t.Errorf("an event twice in a batch is reported as %+v", counted)
	}
	c, err := b.decide(TakeState{Now: start, Fresh: map[string]bool{}})
	if err != nil || len(c.Raised)+len(c.Updated)+len(c.States) != 0 {
		t.Errorf("events that were taken change %+v, %v", c, err)
	}
}

// openAlert is what a store knows a minute after start: a is open for another minute, and event 2 is new.
func openAlert(g GroupID, a Alert) TakeState {
	a.ResolveAt = start + 2*minute
	return TakeState{Now: start + minute, Fresh: map[string]bool{"2": true}, Open: map[GroupID]Alert{g: a}}
}

func TestSilencedAlertCanBecomePending(t *testing.T) {
	t.Parallel()
	b := newBatch(oneRule(), []Event{denial(2, minute, 1)}, strconvID())
	g := b.matches[0].group
	for notice, want := range map[Notice]Notice{Silenced: Pending, Sent: Sent, Held: Held, Pending: Pending} {
		if c, err := b.decide(openAlert(g, Alert{ID: "a", GroupID: g, Notice: notice, RaisedAt: start})); err != nil || len(c.Updated) != 1 || c.Updated[0].Notice != want {
			t.Errorf("%s: %+v, %v", notice, c.Updated, err)
		}
	}
}

// TestWordsStayAsTheyWereSent: the end of an alert has the title that was sent. What is pending may be on its way; one that
// becomes pending again, after a silence, has new words.
func TestWordsStayAsTheyWereSent(t *testing.T) {
	t.Parallel()
	b := newBatch(oneRule(), []Event{denial(2, minute, 1)}, strconvID())
	g := b.matches[0].group
	for notice, want := range map[Notice]string{Sent: "old", Held: "old", Pending: "old", Silenced: "user 7 was denied 6 times by policy api (limit 100 per 1m)"} {
		known := openAlert(g, Alert{ID: "a", GroupID: GroupID{Rule: "denials", Key: g.Key}, Notice: notice, RaisedAt: start, Title: "old",
			User: "7", Policy: "api", Denied: 5})
		if c, err := b.decide(known); err != nil || len(c.Updated) != 1 || c.Updated[0].Title != want {
			t.Errorf("%s: %+v, %v", notice, c.Updated, err)
		}
	}
}

// TestAlertRaisedByAClockAheadEndsInTime: once the clock is right, it stays open as long as any other.
func TestAlertRaisedByAClockAheadEndsInTime(t *testing.T) {
	t.Parallel()
	b := newBatch(oneRule(), []Event{denial(2, minute, 1)}, strconvID())
	g := b.matches[0].group
	for raised, want := range map[int64]int64{start: start + 11*minute, start + 24*60*minute: start + 11*minute} {
		if c, err := b.decide(openAlert(g, Alert{ID: "a", GroupID: g, Notice: Sent, RaisedAt: raised})); err != nil || len(c.Updated) != 1 || c.Updated[0].ResolveAt != want {
			t.Errorf("raised at %d: %+v, %v; want it to end at %d", raised, c.Updated, err, want)
		}
	}
}

// TestThrottleKeysAreDistinct: no user's name makes the key of no user, or the key of a hashed
// name.
func TestThrottleKeysAreDistinct(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("u", 300)
	fits := strings.Repeat("u", limits.MaxKeyBytes-len(throttlePrefix))
	if got := throttleKey(fits); got != throttlePrefix+fits {
		t.Errorf("a user whose key is as long as it may be is hashed: %s", got)
	}
	users := []string{"", "none", "7", long, fits + "u", strings.TrimPrefix(throttleKey(long), throttlePrefix)}
	seen := map[string]string{}
	for _, user := range users {
		key := throttleKey(user)
		if other, taken := seen[key]; taken || len(key) > 256 {
			t.Errorf("users %q and %q share %q", other, user, key)
		}
		seen[key] = user
	}
}
