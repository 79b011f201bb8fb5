package storetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

func silences(t *testing.T, s Store) {
	want := alerts.Silence{ID: "a", Rule: "r'", Policy: "p", Key: "k*", User: "ö😀", Reason: "because", By: "me"}
	got, err := s.AddSilence(within(t), want, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if got.CreatedAt <= 0 || got.ExpiresAt != got.CreatedAt+hour {
		t.Errorf("made at %d, ends at %d", got.CreatedAt, got.ExpiresAt)
	}
	want.CreatedAt, want.ExpiresAt = got.CreatedAt, got.ExpiresAt
	equal(t, "silence", got, want)
	if _, err := s.AddSilence(within(t), alerts.Silence{ID: "over"}, -time.Second); err != nil {
		t.Fatal(err)
	}
	list := func(ended bool, max int) []alerts.Silence {
		t.Helper()
		all, err := s.Silences(within(t), ended, max)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	equal(t, "in force", list(false, 9), []alerts.Silence{want})
	all := list(true, 9)
	if len(all) != 2 || all[0].CreatedAt < all[1].CreatedAt {
		t.Errorf("all: %+v", all)
	}
	equal(t, "one of all", len(list(true, 1)), 1)
	ended, found, err := s.EndSilence(within(t), "a")
	if err != nil || !found || ended.ExpiresAt > want.ExpiresAt-hour/2 || ended.Reason != want.Reason {
		t.Errorf("end: %+v, %t, %v", ended, found, err)
	}
	for _, id := range []string{"a", "over", "nobody"} {
		if _, found, err := s.EndSilence(within(t), id); found || err != nil {
			t.Errorf("end %s: %t, %v", id, found, err)
		}
	}
	equal(t, "none is in force", list(false, 9), nil)
	equal(t, "all of them", len(list(true, 9)), 2)
}

// silencesInOrder has three silences, each of which ends before those made earlier.
func silencesInOrder(t *testing.T, s Store) {
	for i, id := range []string{"1", "2", "3"} {
		if _, err := s.AddSilence(within(t), alerts.Silence{ID: id}, time.Duration(9-i)*time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	for _, ended := range []bool{false, true} {
		all, err := s.Silences(within(t), ended, 2)
		if err != nil || len(all) != 2 || all[0].ID != "3" || all[1].ID != "2" {
			t.Errorf("with those that ended %t: %+v, %v; want the last two", ended, all, err)
		}
	}
}

func alertPages(t *testing.T, s Store) {
	for i, name := range []string{"1", "2", "3", "4", "5", "6"} {
		raise(t, s, func(a *alerts.Alert) {
			a.RaisedAt = []int64{10, 20, 20, 20, 30, 40}[i]
			a.User, a.Policy = []string{"u", "v"}[i%2], []string{"p", "q", "r"}[i%3]
		}, name)
	}
	tell(t, s, alerts.NoticeDecision{Alert: "3", Notice: alerts.Sent}, alerts.NoticeDecision{Alert: "6", Notice: alerts.Sent})
	resolve(t, s, "3", "6")
	for _, c := range []struct {
		filter alerts.AlertFilter
		want   []string
	}{
		{alerts.AlertFilter{Max: 9}, []string{"6", "5", "4", "3", "2", "1"}},
		{alerts.AlertFilter{Max: 3}, []string{"6", "5", "4"}},
		{alerts.AlertFilter{Max: 2, Before: 20, BeforeID: "4"}, []string{"3", "2"}},
		{alerts.AlertFilter{Max: 9, Before: 20, BeforeID: "2"}, []string{"1"}},
		{alerts.AlertFilter{Max: 9, OpenOnly: true}, []string{"5", "4", "2", "1"}},
		{alerts.AlertFilter{Max: 2, OpenOnly: true, Before: 30, BeforeID: "5"}, []string{"4", "2"}},
		{alerts.AlertFilter{Max: 9, User: "u"}, []string{"5", "3", "1"}},
		{alerts.AlertFilter{Max: 1, User: "u", Before: 30, BeforeID: "5"}, []string{"3"}},
		{alerts.AlertFilter{Max: 9, User: "u", OpenOnly: true}, []string{"5", "1"}},
		{alerts.AlertFilter{Max: 9, Policy: "q"}, []string{"5", "2"}},
		{alerts.AlertFilter{Max: 9, Rule: "r", User: "v", Policy: "p"}, []string{"4"}},
		{alerts.AlertFilter{Max: 9, Rule: "q"}, nil},
	} {
		got, err := s.Alerts(within(t), c.filter)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, fmt.Sprintf("%+v", c.filter), alertIDs(got), c.want)
	}
}

// laterThanAll is after everything that was done, even if times are rounded up to a whole hour.
func laterThanAll() time.Time { return time.Now().Add(2 * time.Hour) }

// prune removes everything old, in small parts, and returns how many rows that was.
func prune(t *testing.T, s alerts.Store) (total int) {
	t.Helper()
	for {
		n, err := s.PruneAlerts(within(t), laterThanAll(), 2)
		if err != nil {
			t.Fatal(err)
		}
		if total += n; n == 0 {
			return total
		}
	}
}

func pruneAlerts(t *testing.T, s Store) {
	raise(t, s, nil, "open", "sent", "silenced", "pending")
	hold(t, s, "u", 0, "told")
	digest(t, s, "u", 9, "d")
	hold(t, s, "u", 0, "held")
	tell(t, s, alerts.NoticeDecision{Alert: "open", Notice: alerts.Sent}, alerts.NoticeDecision{Alert: "sent", Notice: alerts.Sent}, alerts.NoticeDecision{Alert: "silenced", Notice: alerts.Silenced})
	resolve(t, s, "sent", "silenced", "told", "held")
	before := time.UnixMilli(alert(t, s, "sent").ResolvedAt)
	if n, err := s.PruneAlerts(within(t), before, 9); n != 0 || err != nil {
		t.Errorf("too early: %d, %v", n, err)
	}
	makeDead(t, s, "d/x")
	n, err := s.PruneAlerts(within(t), laterThanAll(), 2)
	if n != 2+1 || err != nil { // alerts, deliveries
		t.Errorf("the first part: %d, %v", n, err)
	}
	prune(t, s)
	left, err := s.Alerts(within(t), alerts.AlertFilter{Max: 9})
	if err != nil {
		t.Fatal(err)
	}
	ids := alertIDs(left)
	slices.Sort(ids)
	equal(t, "left", ids, []string{"held", "open", "pending"})
	digest(t, s, "u", 9, "d2")
	if n := prune(t, s); n != 1 {
		t.Errorf("after the digest: %d", n)
	}
}

func pruneRest(t *testing.T, s Store) {
	addDeliveries(t, s, "x", "sent", "dead", "waiting")
	makeDead(t, s, "dead/x")
	writeResults(t, s, alerts.DeliveryResult{ID: "sent/x", State: alerts.DeliverySent})
	for id, lasts := range map[string]time.Duration{"short": time.Second, "long": 24 * time.Hour} {
		if _, err := s.AddSilence(within(t), alerts.Silence{ID: id}, lasts); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.KeepPoison(within(t), alerts.Poison{Sequence: 1}); err != nil {
		t.Fatal(err)
	}
	if n, err := s.PruneAlerts(within(t), time.Now().Add(-time.Hour), 9); n != 0 || err != nil {
		t.Errorf("too early: %d, %v", n, err)
	}
	n, err := s.PruneAlerts(within(t), laterThanAll(), 1)
	if n != 3 || err != nil {
		t.Errorf("one of each: %d, %v", n, err)
	}
	equal(t, "and then", prune(t, s), 1)
	equal(t, "left", dueIDs(t, s, "x"), []string{"waiting/x"})
	left, err := s.Silences(within(t), true, 9)
	if err != nil || len(left) != 1 || left[0].ID != "long" {
		t.Errorf("silences left: %+v, %v", left, err)
	}
}

// pruneTaken: the count of a group is kept longer than alerts, because it is not an alert yet and
// may become one.
func pruneTaken(t *testing.T, s Store) {
	groups := []alerts.GroupID{group("a"), {Rule: "q", Key: "open"}, group("open")}
	began := time.Now()
	raise(t, s, nil, "open")
	take(t, s, alerts.TakeQuery{Events: []string{"1", "2", "3"}, Groups: groups}, func(alerts.TakeState) alerts.Changes {
		c := alerts.Changes{States: map[alerts.GroupID]json.RawMessage{}}
		for _, g := range groups {
			c.States[g] = json.RawMessage(`1`)
		}
		return c
	})
	equal(t, "removed with alerts", prune(t, s), 0)
	for i, c := range []struct {
		before              time.Time
		max, events, groups int // there are 4 events, and 2 groups without an open alert
	}{{began, 9, 0, 0}, {laterThanAll(), 1, 1, 1}, {laterThanAll(), 2, 2, 1}, {laterThanAll(), 2, 1, 0}, {laterThanAll(), 2, 0, 0}} {
		if n, err := s.PruneTaken(within(t), c.before, c.max); n != c.events || err != nil {
			t.Errorf("forget events %d: %d, %v; want %d", i, n, err, c.events)
		}
		if n, err := s.PruneGroups(within(t), c.before, c.max); n != c.groups || err != nil {
			t.Errorf("forget groups %d: %d, %v; want %d", i, n, err, c.groups)
		}
	}
	seen := take(t, s, alerts.TakeQuery{Events: []string{"1"}, Groups: groups}, nil)
	equal(t, "states", seen.States, map[alerts.GroupID]json.RawMessage{group("open"): json.RawMessage(`1`)})
	equal(t, "fresh again", seen.Fresh, map[string]bool{"1": true})
}
