package alerts

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// taker takes batches of events as the service does with a store, without resolving alerts.
type taker struct {
	now    int64
	states map[GroupID]json.RawMessage
	open   map[GroupID]Alert
}

func (k *taker) take(tb rapid.TB, r *Rules, events ...Event) {
	tb.Helper()
	if k.states == nil {
		k.states, k.open = map[GroupID]json.RawMessage{}, map[GroupID]Alert{}
	}
	fresh := map[string]bool{}
	for i := range events {
		fresh[events[i].ID] = true
	}
	c, err := newBatch(r, events, strconvID()).decide(TakeState{Now: k.now, Fresh: fresh, States: k.states, Open: k.open})
	if err != nil {
		tb.Fatal(err)
	}
	for g, state := range c.States {
		k.states[g] = state
	}
	for _, a := range append(c.Raised, c.Updated...) {
		k.open[a.GroupID] = a
	}
}

// denied returns how many denials the open alert of a user has; 0 if there is none.
func (k *taker) denied(user string) int64 {
	for _, a := range k.open {
		if a.User == user {
			return a.Denied
		}
	}
	return 0
}

// TestDenialsThatComeLateRaiseAnAlert: an alerter that catches up, and then is given again what another had when it was
// killed, takes events long after newer ones of their group.
func TestDenialsThatComeLateRaiseAnAlert(t *testing.T) {
	t.Parallel()
	const hour = 60 * minute
	newer := denial(0, 3*hour, 1)
	for name, c := range map[string]struct {
		late   []Event
		pause  time.Duration // before the last of them is taken
		denied int64
	}{
		"one is enough":                   {[]Event{denial(1, 0, 1000)}, 0, 1000},
		"two together":                    {[]Event{denial(1, 0, 3), denial(2, minute, 2)}, 4 * time.Minute, 5},
		"the newer of two first":          {[]Event{denial(1, minute, 3), denial(2, 0, 2)}, 4 * time.Minute, 5},
		"two that are too far apart":      {[]Event{denial(1, 0, 3), denial(2, 11*minute, 2)}, 0, 0},
		"not enough, with the newer's":    {[]Event{denial(1, 0, 4)}, 0, 0},
		"each in a window, none together": {[]Event{denial(1, 0, 2), denial(2, 9*minute, 2), denial(3, 18*minute, 2)}, 0, 0},
		"the last joins what was apart":   {[]Event{denial(1, 0, 2), denial(2, 9*minute, 2), denial(3, 5*minute, 1)}, 0, 5},
	} {
		k := taker{now: start + 5*hour}
		k.take(t, oneRule(), newer)
		for i, e := range c.late {
			if i == len(c.late)-1 {
				k.now += c.pause.Milliseconds()
			}
			k.take(t, oneRule(), e)
		}
		if got := k.denied("7"); got != c.denied {
			t.Errorf("%s: an alert of %d denials, want %d", name, got, c.denied)
		}
	}
}

// TestLateDenialsAreKeptForTheLastOfThem: those of one time may come one after another, with newer ones between them.
func TestLateDenialsAreKeptForTheLastOfThem(t *testing.T) {
	t.Parallel()
	k := taker{now: start + 300*minute}
	for i, e := range []Event{denial(0, 180*minute, 1), denial(1, 0, 2), denial(2, 1, 2), denial(3, 200*minute, 1), denial(4, 2, 1)} {
		k.take(t, oneRule(), e)
		if got := k.denied("7"); got > 0 != (i == 4) {
			t.Errorf("after %d events an alert of %d denials", i+1, got)
		}
		k.now += lateKept.Milliseconds() - minute
	}
}

// TestABacklogRaisesTheSameAlertsInAnyOrder of its batches: for each user with that many denials within that time, and for
// none who never had them, give or take two parts of that time.
func TestABacklogRaisesTheSameAlertsInAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var events []Event
		for i := range rapid.IntRange(1, 60).Draw(t, "events") {
			e := denial(i, rapid.Int64Range(0, 90*minute).Draw(t, "at"), rapid.Int64Range(1, 3).Draw(t, "denied"))
			e.User = strconv.Itoa(rapid.IntRange(1, 3).Draw(t, "user"))
			events = append(events, e)
		}
		seed := rapid.Uint64().Draw(t, "seed")
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		r, k := oneRule(), taker{now: start + 24*60*minute}
		for rest := events; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "batch")
			k.take(t, r, rest[:n]...)
			rest = rest[n:]
			k.now += rapid.Int64Range(0, lateKept.Milliseconds()/60-1).Draw(t, "pause")
		}
		const within = 10 * minute
		for _, user := range []string{"1", "2", "3"} {
			raised := k.denied(user) > 0
			if must := mostWithin(events, user, within) >= 5; must && !raised {
				t.Fatalf("no alert of user %s", user)
			}
			if may := mostWithin(events, user, within+2*within/countParts) >= 5; raised && !may {
				t.Fatalf("an alert of user %s", user)
			}
		}
	})
}

// mostWithin returns the most denials that a user has within a time.
func mostWithin(events []Event, user string, within int64) (most int64) {
	for i := range events {
		sum := int64(0)
		for j := range events {
			if after := events[j].Time - events[i].Time; events[j].User == user && after >= 0 && after < within {
				sum += events[j].Denied
			}
		}
		most = max(most, sum)
	}
	return most
}

// TestCountsAreSmall: each event writes the whole count of its group. Live denials that raise no alert leave no more than the
// time of the threshold needs, and nothing leaves more than maxParts.
func TestCountsAreSmall(t *testing.T) {
	t.Parallel()
	const within = 10 * time.Minute
	var live, backlog count
	for i := range 1000 {
		at := int64(i) * 30_000
		e := denial(i, at, 1)
		live.add(&e, within, start+at+500, lateKept)
		backlog.add(&e, within, start+24*60*minute, lateKept)
	}
	if len(live.Parts) != 20 || live.Parts[0].KeptUntil != 0 {
		t.Errorf("live: %d parts, the first %+v", len(live.Parts), live.Parts[0])
	}
	if len(backlog.Parts) != maxParts {
		t.Errorf("a backlog: %d parts, want %d", len(backlog.Parts), maxParts)
	}
	// What was added last is not what is dropped: a redelivered batch comes after all others.
	for i := range 2 {
		e := denial(i, int64(i), 2)
		if got := backlog.add(&e, within, start+24*60*minute+1, lateKept); got.Denied != int64(2*i+2) || len(backlog.Parts) != maxParts {
			t.Errorf("%d late denials counted, %d parts", got.Denied, len(backlog.Parts))
		}
	}
	e := denial(1000, 1000*30_000, 1)
	if backlog.add(&e, within, start+24*60*minute+lateKept.Milliseconds()+1, lateKept); len(backlog.Parts) != 20 {
		t.Errorf("%d parts are left when no more may come late, want 20", len(backlog.Parts))
	}
}

// TestPreviewCountsWhatCameLate, as a stream has it after an outage in which two limiters kept their events.
func TestPreviewCountsWhatCameLate(t *testing.T) {
	t.Parallel()
	for late, want := range map[int64]string{45: "5", 70: "none"} {
		p, got := preview(t, oneRule(), denial(1, 0, 3), denial(2, late*minute, 1), denial(3, 1, 2)), "none"
		if len(p.Alerts) > 0 {
			got = fmt.Sprint(p.Alerts[0].Denied)
		}
		if got != want {
			t.Errorf("%d minutes late: an alert of %s, want %s", late, got, want)
		}
	}
	if p := preview(t, oneRule(), denial(1, 180*minute, 1), denial(2, 0, 1000)); len(p.Alerts) != 1 {
		t.Errorf("enough, three hours late: %+v", p.Alerts)
	}
}
