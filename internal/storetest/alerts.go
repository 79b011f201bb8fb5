package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

var alertTests = []test{
	{"an alert keeps all its fields", alertFields},
	{"an event is fresh once", eventsAreFreshOnce},
	{"groups have states and open alerts", takeKnows},
	{"a warning's subject has an open exceeded alert", takeExceeded},
	{"a batch of events resolves an alert and raises the next one of its group", takeResolves},
	{"an error, a panic or a canceled context writes nothing", takeRollsBack},
	{"concurrent overlapping takes never deadlock and lose no count", takesAtOnce},
	{"an event taken concurrently is fresh for one taker", freshAtOnce},
	{"a silenced alert that is updated may be pending again", silencedIsUpdated},
	{"an update keeps what others wrote", updateLeaves},
	{"pending alerts are leased, the oldest first", pendingAlerts},
	{"pending alerts claimed by a clock that was ahead are given again", pendingAhead},
	{"concurrent claims share no pending alert", pendingAtOnce},
	{"the notice of an alert is stored once", tellOnce},
	{"concurrent notices of an alert", tellAtOnce},
	{"alerts are resolved when due", resolveAlerts},
	{"alerts raised by a clock that was ahead are resolved", resolveAhead},
	{"an error while resolving writes nothing", resolveFails},
	{"concurrent resolve and take", resolveAndTake},
	{"users with held alerts, page by page", heldUsers},
	{"a digest takes held alerts whose hold is over", digestAlerts},
	{"a digest takes alerts held by a clock that was ahead", digestAhead},
	{"alerts that a digest postpones wait for the next", digestPostponed},
	{"alerts claimed when raised are not given to others", claimedAsRaised},
	{"an error while digesting writes nothing", digestFails},
	{"concurrent digests of a user share no alert", digestsAtOnce},
	{"disabled channels", disabledChannels},
	{"alerts by filter, page by page", alertPages},
	{"silences", silences},
	{"silences, the last created first", silencesInOrder},
	{"poison", poison},
	{"poison messages are bounded", poisonBounds},
	{"poison messages are bounded when one is repeated", poisonBoundsOfRepeats},
	{"poison messages of a recreated stream are kept", poisonOfNewStream},
	{"untrusted text is stored", hostileText},
	{"old alerts are removed, except open, pending and held ones", pruneAlerts},
	{"old deliveries, silences and poison are removed", pruneRest},
	{"old event ids are removed, and groups without an open alert", pruneTaken},
	{"no method writes with a canceled context", canceledAlerts},
}

var deliveryTests = []test{
	{"a delivery keeps all its fields and is added once", deliveryFields},
	{"due deliveries are leased, the earliest first", dueDeliveries},
	{"a resolved message is not due before the raised one", dueInOrder},
	{"concurrent claims share no delivery", dueAtOnce},
	{"delivery results", deliver},
	{"deliveries of removed channels", otherDeliveries},
	{"deliveries that channels of others may have claimed", otherDeliveriesInHand},
	{"deliveries made by a clock that was ahead are recalled", recallDeliveries},
	{"deliveries that wait for a next try are brought forward", advanceDeliveries},
	{"dead letters, page by page, and replayed", deadLetters},
	{"deliveries end by age", oldDeliveries},
	{"a replay restarts the age of a delivery", oldAfterReplay},
	{"a resolved message does not end by age before the raised one", oldInOrder},
	{"each delivery that ends by age is returned once", oldAtOnce},
	{"deliveries of an alert", deliveriesOf},
}

func group(key string) alerts.GroupID { return alerts.GroupID{Rule: "r", Key: key} }

// raised returns a new alert of a group, with the group's name.
func raised(id, key string, now int64) alerts.Alert {
	return alerts.Alert{ID: id, GroupID: group(key), Severity: alerts.Warning, Type: "limits.exceeded", Subject: "s:" + key, Key: "k:" + key,
		Name: "1m", Window: "1m", User: "u:" + key, Policy: "p", Limit: 5, Denied: 1, Events: 1, EventID: "e:" + id,
		RaisedAt: now, ResolveAt: now + hour, Notice: alerts.Pending}
}

func take(t *testing.T, s alerts.Store, taking alerts.TakeQuery, decide func(alerts.TakeState) alerts.Changes) (seen alerts.TakeState) {
	t.Helper()
	err := s.Take(within(t), taking, func(taken alerts.TakeState) (alerts.Changes, error) {
		seen = taken
		if decide == nil {
			return alerts.Changes{}, nil
		}
		return decide(taken), nil
	})
	if err != nil {
		t.Fatalf("take: %v", err)
	}
	return seen
}

// raise opens one alert for each name, which is also its group and its id.
func raise(t *testing.T, s alerts.Store, change func(*alerts.Alert), names ...string) (now int64) {
	t.Helper()
	var taking alerts.TakeQuery
	for _, name := range names {
		taking.Groups = append(taking.Groups, group(name))
		taking.Events = append(taking.Events, "e:"+name)
	}
	seen := take(t, s, taking, func(taken alerts.TakeState) alerts.Changes {
		c := alerts.Changes{States: map[alerts.GroupID]json.RawMessage{}}
		for _, name := range names {
			c.States[group(name)] = json.RawMessage(`0`)
			a := raised(name, name, taken.Now)
			if change != nil {
				change(&a)
			}
			c.Raised = append(c.Raised, a)
		}
		return c
	})
	return seen.Now
}

func tell(t *testing.T, s alerts.Store, told ...alerts.NoticeDecision) []string {
	t.Helper()
	ids, err := s.SaveNotices(within(t), told)
	if err != nil {
		t.Fatalf("tell: %v", err)
	}
	slices.Sort(ids)
	return ids
}

func alert(t *testing.T, s alerts.Store, id string) alerts.Alert {
	t.Helper()
	a, found, err := s.Alert(within(t), id)
	if err != nil || !found {
		t.Fatalf("alert %s: %t, %v", id, found, err)
	}
	return a
}

func alertIDs(all []alerts.Alert) (ids []string) {
	for i := range all {
		ids = append(ids, all[i].ID)
	}
	return ids
}

func alertFields(t *testing.T, s Store) {
	want := alerts.Alert{ID: "i'", GroupID: alerts.GroupID{Rule: "r\"", Key: "g%ö😀"}, Severity: alerts.Critical, Type: "limits.warning", Subject: "s",
		Key: "k", Name: "n", Policy: "p", Window: "1m", User: "u", Limit: 2, Denied: 3, Events: 4, FirstAt: 5, LastAt: 6, EventID: "e",
		Throttles: []alerts.Throttle{{Name: "t", Limit: 7, Window: "1h"}}, Channels: []string{"a", "b"}, Title: "t\x00\n", Text: "x",
		RaisedAt: 8, ResolveAt: 9, Notice: alerts.Pending}
	take(t, s, alerts.TakeQuery{Events: []string{"e"}, Groups: []alerts.GroupID{want.GroupID}}, func(alerts.TakeState) alerts.Changes {
		return alerts.Changes{Raised: []alerts.Alert{want}}
	})
	equal(t, "alert", alert(t, s, "i'"), want)
	equal(t, "open", take(t, s, alerts.TakeQuery{Groups: []alerts.GroupID{want.GroupID}}, nil).Open, map[alerts.GroupID]alerts.Alert{want.GroupID: want})
	if _, found, err := s.Alert(within(t), "i"); found || err != nil {
		t.Errorf("an alert that is not there: %t, %v", found, err)
	}
}

func eventsAreFreshOnce(t *testing.T, s Store) {
	before := take(t, s, alerts.TakeQuery{Events: []string{"b", "a", "b"}}, nil)
	equal(t, "fresh", before.Fresh, map[string]bool{"a": true, "b": true})
	after := take(t, s, alerts.TakeQuery{Events: []string{"c", "b", "a"}}, nil)
	equal(t, "fresh again", after.Fresh, map[string]bool{"c": true})
	if before.Now <= 0 || after.Now < before.Now {
		t.Errorf("the clock said %d, then %d", before.Now, after.Now)
	}
}

func takeKnows(t *testing.T, s Store) {
	a, b, c := group("a"), group("b"), alerts.GroupID{Rule: "q", Key: "a"}
	all := alerts.TakeQuery{Groups: []alerts.GroupID{b, a, c}}
	seen := take(t, s, all, func(taken alerts.TakeState) alerts.Changes {
		return alerts.Changes{States: map[alerts.GroupID]json.RawMessage{a: json.RawMessage(`{"n":1}`), c: json.RawMessage(`[2]`)},
			Raised: []alerts.Alert{raised("1", "a", taken.Now)}}
	})
	equal(t, "states at first", seen.States, map[alerts.GroupID]json.RawMessage{})
	equal(t, "open at first", seen.Open, map[alerts.GroupID]alerts.Alert{})
	seen = take(t, s, all, func(taken alerts.TakeState) alerts.Changes {
		one := taken.Open[a]
		one.Denied, one.ResolveAt, one.Title = 9, one.ResolveAt+1, "more"
		return alerts.Changes{States: map[alerts.GroupID]json.RawMessage{a: json.RawMessage(`3`)}, Updated: []alerts.Alert{one}}
	})
	equal(t, "states", seen.States, map[alerts.GroupID]json.RawMessage{a: json.RawMessage(`{"n":1}`), c: json.RawMessage(`[2]`)})
	want := seen.Open[a]
	equal(t, "open", seen.Open, map[alerts.GroupID]alerts.Alert{a: want})
	want.Denied, want.ResolveAt, want.Title = 9, want.ResolveAt+1, "more"
	seen = take(t, s, alerts.TakeQuery{Groups: []alerts.GroupID{a}}, nil)
	equal(t, "state that changed", seen.States, map[alerts.GroupID]json.RawMessage{a: json.RawMessage(`3`)})
	equal(t, "alert that changed", seen.Open, map[alerts.GroupID]alerts.Alert{a: want})
}

func takeExceeded(t *testing.T, s Store) {
	raise(t, s, nil, "a", "b")
	raise(t, s, func(a *alerts.Alert) { a.Type = "limits.warning" }, "c")
	tell(t, s, alerts.NoticeDecision{Alert: "b", Notice: alerts.Sent})
	resolve(t, s, "b")
	seen := take(t, s, alerts.TakeQuery{Subjects: []string{"s:c", "s:a", "s:b", "s:d", "s:a"}}, nil)
	equal(t, "exceeded", seen.Exceeded, map[string]int64{"s:a": alert(t, s, "a").ResolveAt})
	take(t, s, alerts.TakeQuery{Groups: []alerts.GroupID{group("e")}}, func(taken alerts.TakeState) alerts.Changes {
		later := raised("e", "e", taken.Now)
		later.Subject, later.ResolveAt = "s:a", later.ResolveAt+hour
		return alerts.Changes{Raised: []alerts.Alert{later}}
	})
	seen = take(t, s, alerts.TakeQuery{Subjects: []string{"s:a"}}, nil)
	equal(t, "the last to end", seen.Exceeded, map[string]int64{"s:a": alert(t, s, "e").ResolveAt})
}

func takeResolves(t *testing.T, s Store) {
	raise(t, s, nil, "a", "b")
	all := alerts.TakeQuery{Groups: []alerts.GroupID{group("a"), group("b")}}
	seen := take(t, s, all, func(taken alerts.TakeState) alerts.Changes {
		return alerts.Changes{Resolved: []alerts.Alert{taken.Open[group("a")]}, Raised: []alerts.Alert{raised("next", "a", taken.Now)},
			Deliveries: []alerts.Delivery{delivery("a.resolved", "x")}}
	})
	equal(t, "when it was resolved", alert(t, s, "a").ResolvedAt, seen.Now)
	open := take(t, s, all, nil).Open
	equal(t, "open", []string{open[group("a")].ID, open[group("b")].ID}, []string{"next", "b"})
	told, err := s.DeliveriesOf(within(t), "a", 9)
	if err != nil || len(told) != 1 || told[0].ID != "a.resolved/x" {
		t.Errorf("deliveries %+v, %v", told, err)
	}
}

func takeRollsBack(t *testing.T, s Store) {
	taking := alerts.TakeQuery{Events: []string{"e"}, Groups: []alerts.GroupID{group("a")}}
	refuse := errors.New("no")
	changes := func(taken alerts.TakeState) alerts.Changes {
		return alerts.Changes{States: map[alerts.GroupID]json.RawMessage{group("a"): json.RawMessage(`1`)}, Raised: []alerts.Alert{raised("1", "a", taken.Now)}}
	}
	err := s.Take(within(t), taking, func(taken alerts.TakeState) (alerts.Changes, error) { return changes(taken), refuse })
	if !errors.Is(err, refuse) {
		t.Errorf("an error of decide: %v", err)
	}
	func() {
		defer func() { equal(t, "panic", recover(), any("help")) }()
		_ = s.Take(within(t), taking, func(alerts.TakeState) (alerts.Changes, error) { panic("help") })
	}()
	ctx, cancel := context.WithCancel(t.Context())
	err = s.Take(ctx, taking, func(taken alerts.TakeState) (alerts.Changes, error) {
		cancel()
		return changes(taken), nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("canceled while deciding: %v", err)
	}
	seen := take(t, s, taking, nil)
	equal(t, "fresh", seen.Fresh, map[string]bool{"e": true})
	equal(t, "states and alerts", len(seen.States)+len(seen.Open), 0)
}

// count adds one to the state of every group and to the denials of its alert. It raises an alert if
// there is none.
func count(taken alerts.TakeState, groups []alerts.GroupID) alerts.Changes {
	c := alerts.Changes{States: map[alerts.GroupID]json.RawMessage{}}
	for _, g := range groups {
		n, _ := strconv.Atoi(string(taken.States[g]))
		c.States[g] = json.RawMessage(strconv.Itoa(n + 1))
		a, open := taken.Open[g]
		if !open {
			c.Raised = append(c.Raised, raised(fmt.Sprint(g.Key, ".", n), g.Key, taken.Now))
			continue
		}
		a.Denied++
		a.ResolveAt = taken.Now - 1
		c.Updated = append(c.Updated, a)
	}
	return c
}

// takesAtOnce takes batches concurrently that share groups in different orders.
func takesAtOnce(t *testing.T, s Store) {
	const workers, rounds, size, groups = 6, 10, 20, 50
	concurrently(t, workers, func(w int) error {
		for r := range rounds {
			var some []alerts.GroupID
			for i := range size {
				some = append(some, group(fmt.Sprint((w*37+r*13+i*7)%groups)))
			}
			taking := alerts.TakeQuery{Events: []string{fmt.Sprint("e", w, ".", r)}, Groups: some}
			err := s.Take(within(t), taking, func(taken alerts.TakeState) (alerts.Changes, error) { return count(taken, some), nil })
			if err != nil {
				return fmt.Errorf("worker %d: %w", w, err)
			}
		}
		return nil
	})
	var ids []alerts.GroupID
	for i := range groups {
		ids = append(ids, group(strconv.Itoa(i)))
	}
	seen := take(t, s, alerts.TakeQuery{Groups: ids}, nil)
	states, denied := 0, int64(0)
	for _, g := range ids {
		n, _ := strconv.Atoi(string(seen.States[g]))
		states += n
		denied += seen.Open[g].Denied
	}
	equal(t, "counted in states", states, workers*rounds*size)
	equal(t, "counted in alerts", denied, int64(workers*rounds*size))
}

func freshAtOnce(t *testing.T, s Store) {
	const workers, rounds = 6, 10
	fresh := make(chan string, workers*rounds)
	for r := range rounds {
		ids := []string{fmt.Sprint("a", r), fmt.Sprint("b", r)}
		concurrently(t, workers, func(w int) error {
			mine := slices.Clone(ids)
			if w%2 == 1 {
				slices.Reverse(mine)
			}
			var last alerts.TakeState
			err := s.Take(within(t), alerts.TakeQuery{Events: mine}, func(taken alerts.TakeState) (alerts.Changes, error) {
				last = taken
				return alerts.Changes{}, nil
			})
			if err == nil && len(last.Fresh) > 0 {
				fresh <- fmt.Sprint(len(last.Fresh))
			}
			return err
		})
	}
	equal(t, "batches with fresh events", len(fresh), rounds)
	for range rounds {
		equal(t, "fresh together", <-fresh, "2")
	}
}

// canceledAlerts calls every method that writes with a context that has ended.
func canceledAlerts(t *testing.T, s Store) {
	raise(t, s, nil, "a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, pendingErr := s.PendingAlerts(ctx, 9, time.Hour)
	_, tellErr := s.SaveNotices(ctx, []alerts.NoticeDecision{{Alert: "a", Notice: alerts.Sent}})
	_, addErr := s.AddSilence(ctx, alerts.Silence{ID: "s"}, time.Hour)
	for what, err := range map[string]error{
		"take":    s.Take(ctx, alerts.TakeQuery{Events: []string{"x"}}, func(alerts.TakeState) (alerts.Changes, error) { return alerts.Changes{}, nil }),
		"pending": pendingErr, "tell": tellErr, "add a silence": addErr,
		"add a delivery": s.AddDelivery(ctx, delivery("m", "c")),
		"poison":         s.KeepPoison(ctx, alerts.Poison{Sequence: 1}),
		"disable":        s.DisableChannel(ctx, alerts.Disabled{Channel: "c"}),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
	equal(t, "fresh", take(t, s, alerts.TakeQuery{Events: []string{"x"}}, nil).Fresh, map[string]bool{"x": true})
	equal(t, "pending", alertIDs(pending(t, s, 9, time.Hour)), []string{"a"})
	waiting, err := s.WaitingDeliveries(within(t))
	equal(t, "deliveries", waiting, map[string]int64{})
	gone, goneErr := s.DisabledChannels(within(t))
	kept, keptErr := s.PoisonMessages(within(t), 9)
	made, madeErr := s.Silences(within(t), true, 9)
	if err := errors.Join(err, goneErr, keptErr, madeErr); err != nil || len(gone)+len(kept)+len(made) > 0 {
		t.Errorf("written: %v, %v, %v, %v", gone, kept, made, err)
	}
}
