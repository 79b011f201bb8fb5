package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

func pending(t *testing.T, s alerts.Store, max int, lease time.Duration) []alerts.Alert {
	t.Helper()
	all, now, err := s.PendingAlerts(within(t), max, lease)
	if err != nil || now <= 0 {
		t.Fatalf("pending alerts: %v, at %d", err, now)
	}
	return all
}

// makeDue moves the time at which open alerts are resolved into the past.
func makeDue(t *testing.T, s alerts.Store, keys ...string) {
	t.Helper()
	var taking alerts.TakeQuery
	for _, key := range keys {
		taking.Groups = append(taking.Groups, group(key))
	}
	take(t, s, taking, func(taken alerts.TakeState) (c alerts.Changes) {
		for i, g := range taking.Groups {
			a := taken.Open[g]
			a.ResolveAt = taken.Now - hour + int64(i)
			c.Updated = append(c.Updated, a)
		}
		return c
	})
}

// resolve resolves alerts that are not pending.
func resolve(t *testing.T, s alerts.Store, keys ...string) {
	t.Helper()
	makeDue(t, s, keys...)
	n, err := s.ResolveAlerts(within(t), len(keys), func(alerts.Alert) ([]alerts.Delivery, error) { return nil, nil })
	if err != nil || n != len(keys) {
		t.Fatalf("resolved %d of %q: %v", n, keys, err)
	}
}

func silencedIsUpdated(t *testing.T, s Store) {
	raise(t, s, nil, "a", "b")
	tell(t, s, alerts.NoticeDecision{Alert: "a", Notice: alerts.Silenced, Reason: "quiet"}, alerts.NoticeDecision{Alert: "b", Notice: alerts.Silenced})
	equal(t, "pending", alertIDs(pending(t, s, 9, time.Hour)), nil)
	take(t, s, alerts.TakeQuery{Groups: []alerts.GroupID{group("a"), group("b")}}, func(taken alerts.TakeState) alerts.Changes {
		a, b := taken.Open[group("a")], taken.Open[group("b")]
		a.Notice = alerts.Pending
		return alerts.Changes{Updated: []alerts.Alert{a, b}}
	})
	equal(t, "pending again", alertIDs(pending(t, s, 9, time.Hour)), []string{"a"})
	equal(t, "the other", alert(t, s, "b").Notice, alerts.Silenced)
}

func updateLeaves(t *testing.T, s Store) {
	now := raise(t, s, nil, "a", "b")
	equal(t, "given", alertIDs(pending(t, s, 9, time.Hour)), []string{"a", "b"})
	tell(t, s, alerts.NoticeDecision{Alert: "a", Notice: alerts.Held, Reason: "throttle", HeldUntil: now + hour})
	take(t, s, alerts.TakeQuery{Groups: []alerts.GroupID{group("a"), group("b")}}, func(taken alerts.TakeState) alerts.Changes {
		a, b := taken.Open[group("a")], taken.Open[group("b")]
		a.Notice, a.Reason, a.HeldUntil, a.Digest, a.NoticeAt, a.ResolvedAt = alerts.Pending, "x", 1, "x", 1, 1
		return alerts.Changes{Updated: []alerts.Alert{a, b}}
	})
	a := alert(t, s, "a")
	equal(t, "what was told", fmt.Sprint(a.Notice, a.Reason, a.HeldUntil-now, a.Digest, a.ResolvedAt), fmt.Sprint(alerts.Held, "throttle", hour, "", 0))
	if a.NoticeAt < now {
		t.Errorf("told at %d, raised at %d", a.NoticeAt, now)
	}
	// The other one is claimed.
	equal(t, "pending", alertIDs(pending(t, s, 9, time.Hour)), nil)
}

func pendingAlerts(t *testing.T, s Store) {
	now := raise(t, s, nil, "c")
	for now == raise(t, s, nil, "b") { // in a later millisecond, so that the order is defined
		tell(t, s, alerts.NoticeDecision{Alert: "b", Notice: alerts.Sent})
		resolve(t, s, "b")
		prune(t, s)
	}
	equal(t, "the first", alertIDs(pending(t, s, 1, time.Hour)), []string{"c"})
	equal(t, "the second", alertIDs(pending(t, s, 9, -time.Second)), []string{"b"})
	equal(t, "the second again", alertIDs(pending(t, s, 9, time.Hour)), []string{"b"})
	equal(t, "none is left", alertIDs(pending(t, s, 9, time.Hour)), nil)
}

// pendingAhead has alerts that were claimed while the clock was ahead: no claim is for more than an
// hour.
func pendingAhead(t *testing.T, s Store) {
	raise(t, s, nil, "a", "b")
	ids := alertIDs(pending(t, s, 1, 3*time.Hour))
	ids = append(alertIDs(pending(t, s, 1, 2*time.Hour)), ids...)
	equal(t, "the earliest first", alertIDs(pending(t, s, 9, time.Hour)), ids)
	equal(t, "none is left", alertIDs(pending(t, s, 9, time.Hour)), nil)
}

func claimedAsRaised(t *testing.T, s Store) {
	for name, claim := range map[string]time.Duration{"claimed": time.Hour, "free": 0} {
		take(t, s, alerts.TakeQuery{Events: []string{"e:" + name}, Groups: []alerts.GroupID{group(name)}}, func(taken alerts.TakeState) alerts.Changes {
			return alerts.Changes{Raised: []alerts.Alert{raised(name, name, taken.Now)}, Claim: claim}
		})
	}
	equal(t, "pending", alertIDs(pending(t, s, 9, time.Hour)), []string{"free"})
	equal(t, "told", tell(t, s, alerts.NoticeDecision{Alert: "claimed", Notice: alerts.Held}), []string{"claimed"})
}

func pendingAtOnce(t *testing.T, s Store) {
	const alertsInAll = 60
	var names []string
	for i := range alertsInAll {
		names = append(names, fmt.Sprintf("%02d", i))
	}
	raise(t, s, nil, names...)
	given := make(chan string, 2*alertsInAll)
	concurrently(t, 6, func(int) error {
		for range alertsInAll {
			some, _, err := s.PendingAlerts(within(t), 3, time.Hour)
			if err != nil {
				return err
			}
			for i := range some {
				given <- some[i].ID
			}
		}
		return nil
	})
	equal(t, "given", drain(given), names)
}

// drain returns what was sent, sorted.
func drain(sent chan string) (all []string) {
	for len(sent) > 0 {
		all = append(all, <-sent)
	}
	slices.Sort(all)
	return all
}

func tellOnce(t *testing.T, s Store) {
	now := raise(t, s, nil, "a", "b", "c")
	told := tell(t, s,
		alerts.NoticeDecision{Alert: "b", Notice: alerts.Sent, Deliveries: []alerts.Delivery{delivery("b.raised", "x"), delivery("b.raised", "y")}},
		alerts.NoticeDecision{Alert: "a", Notice: alerts.Held, Reason: "throttle", HeldUntil: now + 5},
		alerts.NoticeDecision{Alert: "a", Notice: alerts.Sent, Deliveries: []alerts.Delivery{delivery("a.second", "x")}},
		alerts.NoticeDecision{Alert: "nobody", Notice: alerts.Sent, Deliveries: []alerts.Delivery{delivery("nobody", "x")}})
	equal(t, "told", told, []string{"a", "b"})
	told = tell(t, s,
		alerts.NoticeDecision{Alert: "b", Notice: alerts.Held, Reason: "no", Deliveries: []alerts.Delivery{delivery("b.again", "x")}},
		alerts.NoticeDecision{Alert: "c", Notice: alerts.Silenced, Reason: "hush", Deliveries: []alerts.Delivery{delivery("b.raised", "x")}})
	equal(t, "told then", told, []string{"c"})
	equal(t, "told nobody", tell(t, s), nil)
	waiting, err := s.WaitingDeliveries(within(t))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "deliveries", waiting, map[string]int64{"x": 1, "y": 1})
	var got []string
	for _, id := range []string{"a", "b", "c"} {
		a := alert(t, s, id)
		got = append(got, fmt.Sprint(a.Notice, " ", a.Reason, " ", max(a.HeldUntil-now, 0), " ", a.NoticeAt >= now))
	}
	equal(t, "notices", got, []string{"held throttle 5 true", "sent  0 true", "silenced hush 0 true"})
}

func tellAtOnce(t *testing.T, s Store) {
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	raise(t, s, nil, names...)
	told := make(chan string, 100)
	concurrently(t, 6, func(w int) error {
		var some []alerts.NoticeDecision
		for i := range names {
			name := names[(i*3+w)%len(names)] // each in a different order
			some = append(some, alerts.NoticeDecision{Alert: name, Notice: alerts.Sent, Deliveries: []alerts.Delivery{delivery(fmt.Sprint(name, ".", w), "x")}})
		}
		ids, err := s.SaveNotices(within(t), some)
		for _, id := range ids {
			told <- id
		}
		return err
	})
	equal(t, "told", drain(told), names)
	waiting, err := s.WaitingDeliveries(within(t))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "deliveries", waiting, map[string]int64{"x": int64(len(names))})
}

func resolveAlerts(t *testing.T, s Store) {
	raise(t, s, nil, "later", "b", "a", "pending")
	for _, id := range []string{"later", "a", "b"} {
		tell(t, s, alerts.NoticeDecision{Alert: id, Notice: alerts.Sent})
	}
	makeDue(t, s, "b", "a", "pending")
	var built []alerts.Alert
	build := func(a alerts.Alert) ([]alerts.Delivery, error) {
		built = append(built, a)
		return []alerts.Delivery{delivery(a.ID+".resolved", "x")}, nil
	}
	for i, want := range []int{1, 1, 0} {
		if n, err := s.ResolveAlerts(within(t), 1, build); n != want || err != nil {
			t.Errorf("resolve %d: %d, %v; want %d", i, n, err, want)
		}
	}
	equal(t, "resolved, the earliest first", alertIDs(built), []string{"b", "a"})
	equal(t, "as it is kept", alert(t, s, "b"), built[0])
	if built[0].ResolvedAt < built[0].RaisedAt {
		t.Errorf("resolved at %d, raised at %d", built[0].ResolvedAt, built[0].RaisedAt)
	}
	deliveries := dueIDs(t, s, "x")
	slices.Sort(deliveries)
	equal(t, "deliveries", deliveries, []string{"a.resolved/x", "b.resolved/x"})
	seen := take(t, s, alerts.TakeQuery{Groups: []alerts.GroupID{group("a"), group("later")}}, func(taken alerts.TakeState) alerts.Changes {
		return alerts.Changes{Raised: []alerts.Alert{raised("a2", "a", taken.Now)}}
	})
	_, open := seen.Open[group("a")]
	equal(t, "open", fmt.Sprint(open, seen.Open[group("later")].ID), "falselater")
	equal(t, "opened again", alert(t, s, "a2").ResolvedAt, 0)
}

// resolveAhead has alerts that were raised while the clock was ahead, and one that waits as long as
// the alerts file allows.
func resolveAhead(t *testing.T, s Store) {
	const day = 24 * hour
	raise(t, s, nil, "late", "later", "legal", "due", "pending")
	for _, id := range []string{"late", "later", "legal", "due"} {
		tell(t, s, alerts.NoticeDecision{Alert: id, Notice: alerts.Sent})
	}
	puts := map[string]int64{"late": 33 * day, "later": 34 * day, "legal": 31 * day, "due": -hour, "pending": 33 * day}
	for id, from := range puts {
		take(t, s, alerts.TakeQuery{Groups: []alerts.GroupID{group(id)}}, func(taken alerts.TakeState) alerts.Changes {
			a := taken.Open[group(id)]
			a.ResolveAt = taken.Now + from
			return alerts.Changes{Updated: []alerts.Alert{a}}
		})
	}
	var resolved []string
	for i, want := range []int{2, 1, 0} {
		n, err := s.ResolveAlerts(within(t), 2, func(a alerts.Alert) ([]alerts.Delivery, error) {
			resolved = append(resolved, a.ID)
			return nil, nil
		})
		if n != want || err != nil {
			t.Errorf("resolve %d: %d, %v; want %d", i, n, err, want)
		}
	}
	equal(t, "resolved", resolved, []string{"due", "late", "later"})
}

func resolveFails(t *testing.T, s Store) {
	raise(t, s, nil, "a", "b")
	tell(t, s, alerts.NoticeDecision{Alert: "a", Notice: alerts.Sent}, alerts.NoticeDecision{Alert: "b", Notice: alerts.Sent})
	makeDue(t, s, "a", "b")
	refuse := errors.New("no")
	n, err := s.ResolveAlerts(within(t), 9, func(a alerts.Alert) ([]alerts.Delivery, error) {
		if a.ID == "b" {
			return nil, refuse
		}
		return []alerts.Delivery{delivery("a.resolved", "x")}, nil
	})
	if n != 0 || !errors.Is(err, refuse) {
		t.Errorf("resolve: %d, %v", n, err)
	}
	equal(t, "resolved at", alert(t, s, "a").ResolvedAt, 0)
	equal(t, "deliveries", dueIDs(t, s, "x"), nil)
}

// resolveAndTake: each denial is counted by an alert that is open, even if alerts are resolved at
// the same time.
func resolveAndTake(t *testing.T, s Store) {
	const takers, rounds = 4, 25
	groups := []alerts.GroupID{group("a"), group("b"), group("c")}
	var taken atomic.Int64
	var mu sync.Mutex
	resolved := map[string]int64{}
	concurrently(t, takers+2, func(w int) error {
		for r := range rounds {
			if w < takers {
				err := s.Take(within(t), alerts.TakeQuery{Events: []string{fmt.Sprint(w, ".", r)}, Groups: groups},
					func(seen alerts.TakeState) (alerts.Changes, error) { return count(seen, groups), nil })
				if err != nil {
					return err
				}
				taken.Add(int64(len(groups)))
				continue
			}
			if err := tellAndResolve(within(t), s, func(a alerts.Alert) {
				mu.Lock()
				defer mu.Unlock()
				resolved[a.ID] = a.Denied
			}); err != nil {
				return err
			}
		}
		return nil
	})
	sum := int64(0)
	list, err := s.Alerts(within(t), alerts.AlertFilter{Max: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		sum += a.Denied
		if n, ok := resolved[a.ID]; ok != (a.ResolvedAt > 0) || ok && n != a.Denied {
			t.Errorf("%s was resolved at %d with %d denials; %t, %d were told", a.ID, a.ResolvedAt, a.Denied, ok, n)
		}
	}
	equal(t, "denials", sum, taken.Load())
}
