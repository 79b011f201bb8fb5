package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

func tellAndResolve(ctx context.Context, s alerts.Store, resolved func(alerts.Alert)) error {
	some, _, err := s.PendingAlerts(ctx, 9, time.Hour)
	if err != nil {
		return err
	}
	var told []alerts.NoticeDecision
	for i := range some {
		told = append(told, alerts.NoticeDecision{Alert: some[i].ID, Notice: alerts.Sent})
	}
	if _, err := s.SaveNotices(ctx, told); err != nil {
		return err
	}
	var last alerts.Alert // build may be called again
	n, err := s.ResolveAlerts(ctx, 1, func(a alerts.Alert) ([]alerts.Delivery, error) {
		last = a
		return nil, nil
	})
	if n > 0 {
		resolved(last)
	}
	return err
}

// hold raises alerts of a user that are held for so long.
func hold(t *testing.T, s alerts.Store, user string, forMillis int64, names ...string) {
	t.Helper()
	now := raise(t, s, func(a *alerts.Alert) { a.User = user }, names...)
	var told []alerts.NoticeDecision
	for _, name := range names {
		told = append(told, alerts.NoticeDecision{Alert: name, Notice: alerts.Held, Reason: "throttle", HeldUntil: now + forMillis})
	}
	tell(t, s, told...)
}

func usersHeld(t *testing.T, s alerts.Store, after string, max int) []string {
	t.Helper()
	users, err := s.HeldUsers(within(t), after, max)
	if err != nil {
		t.Fatal(err)
	}
	return users
}

func heldUsers(t *testing.T, s Store) {
	hold(t, s, "b", 0, "1", "2")
	hold(t, s, "a", alerts.DigestLead.Milliseconds()-1, "3") // for an alerter whose clock is ahead
	hold(t, s, "c", hour, "4")
	hold(t, s, "d", hour, "5")
	hold(t, s, "d", 0, "6")
	hold(t, s, "e", 0, "7")
	hold(t, s, "", 0, "8")
	raise(t, s, func(a *alerts.Alert) { a.User = "f" }, "9")
	digest(t, s, "e", 9, "done")
	equal(t, "the first", usersHeld(t, s, "", 2), []string{"", "a"})
	equal(t, "the next", usersHeld(t, s, "a", 1), []string{"b"})
	equal(t, "the last", usersHeld(t, s, "b", 9), []string{"d"})
	equal(t, "a digest for an alerter whose clock is ahead", digest(t, s, "a", 9, "ahead"), []string{"3"})
}

// digest writes a digest, and returns the ids of its alerts.
func digest(t *testing.T, s alerts.Store, user string, max int, name string) (ids []string) {
	t.Helper()
	n, err := s.DigestAlerts(within(t), user, max, func(held []alerts.Alert, now int64) (alerts.DigestDecision, error) {
		ids = alertIDs(held)
		if now < held[0].RaisedAt {
			t.Errorf("at %d, raised at %d", now, held[0].RaisedAt)
		}
		return alerts.DigestDecision{Name: name, Deliveries: []alerts.Delivery{delivery(name, "x")}}, nil
	})
	if err != nil || n != len(ids) {
		t.Fatalf("digest: %d of %q, %v", n, ids, err)
	}
	return ids
}

func digestAlerts(t *testing.T, s Store) {
	now := raise(t, s, func(a *alerts.Alert) { a.User, a.RaisedAt = "u", a.RaisedAt-int64(a.ID[0]) }, "3", "2", "1")
	for _, id := range []string{"1", "2", "3"} {
		tell(t, s, alerts.NoticeDecision{Alert: id, Notice: alerts.Held, HeldUntil: now})
	}
	hold(t, s, "u", hour, "4")
	hold(t, s, "v", 0, "5")
	raise(t, s, func(a *alerts.Alert) { a.User = "u" }, "6")
	equal(t, "the oldest", digest(t, s, "u", 2, "d1"), []string{"3", "2"})
	equal(t, "the rest", digest(t, s, "u", 9, "d2"), []string{"1"})
	equal(t, "no more", digest(t, s, "u", 9, "d3"), nil)
	equal(t, "of nobody", digest(t, s, "w", 9, "d4"), nil)
	var digests []string
	for _, id := range []string{"1", "2", "3", "4", "5", "6"} {
		digests = append(digests, alert(t, s, id).Digest)
	}
	equal(t, "digests", digests, []string{"d2", "d1", "d1", "", "", ""})
	equal(t, "deliveries", dueIDs(t, s, "x"), []string{"d1/x", "d2/x"})
}

// digestAhead has alerts that were held while the clock was ahead, and one that waits for the next
// digest.
func digestAhead(t *testing.T, s Store) {
	hold(t, s, "", 3*hour, "1")
	hold(t, s, "u", 2*hour-1000, "2")
	hold(t, s, "v", 24*hour, "3")
	hold(t, s, "v", hour, "4")
	equal(t, "whose", usersHeld(t, s, "", 9), []string{"", "v"})
	equal(t, "behind the first", usersHeld(t, s, "a", 9), []string{"v"})
	equal(t, "of nobody", digest(t, s, "", 9, "d1"), []string{"1"})
	equal(t, "of one", digest(t, s, "v", 9, "d2"), []string{"3"})
	equal(t, "no more", usersHeld(t, s, "", 9), nil)
}

// digestPostponed has a digest that puts some alerts off, and one that puts all off.
func digestPostponed(t *testing.T, s Store) {
	hold(t, s, "u", 0, "1", "2", "3")
	var at int64
	leave := func(name string, want int, ids ...string) {
		t.Helper()
		n, err := s.DigestAlerts(within(t), "u", 9, func(_ []alerts.Alert, now int64) (alerts.DigestDecision, error) {
			at = now + hour
			d := alerts.DigestDecision{Name: name, Postponed: map[string]int64{}}
			for _, id := range ids {
				d.Postponed[id] = at
			}
			return d, nil
		})
		if err != nil || n != want {
			t.Errorf("digest %q: %d, %v; want %d", name, n, err, want)
		}
	}
	leave("d", 3, "2", "3")
	leave("", 0)
	equal(t, "who waits", usersHeld(t, s, "", 9), nil)
	for _, id := range []string{"2", "3"} {
		a := alert(t, s, id)
		equal(t, id, fmt.Sprint(a.Notice, " ", a.Reason, " ", a.Digest, " ", a.HeldUntil-at), "held throttle  0")
	}
	hold(t, s, "u", 0, "4")
	leave("", 1, "4", "1", "nobody")
	equal(t, "no more", digest(t, s, "u", 9, "d2"), nil)
	var digests []string
	for _, id := range []string{"1", "2", "3", "4"} {
		digests = append(digests, alert(t, s, id).Digest)
	}
	equal(t, "digests", digests, []string{"d", "", "", ""})
}

func digestFails(t *testing.T, s Store) {
	hold(t, s, "u", 0, "1")
	refuse := errors.New("no")
	for _, c := range []struct {
		name string
		err  error
	}{{"d", refuse}, {"", nil}} {
		n, err := s.DigestAlerts(within(t), "u", 9, func([]alerts.Alert, int64) (alerts.DigestDecision, error) {
			return alerts.DigestDecision{Name: c.name, Deliveries: []alerts.Delivery{delivery("d", "x")}}, c.err
		})
		if n != 0 || err == nil || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("digest %q: %d, %v", c.name, n, err)
		}
	}
	equal(t, "deliveries", dueIDs(t, s, "x"), nil)
	equal(t, "then", digest(t, s, "u", 9, "d"), []string{"1"})
}

func digestsAtOnce(t *testing.T, s Store) {
	var names []string
	for i := range 40 {
		names = append(names, fmt.Sprintf("%02d", i))
	}
	hold(t, s, "u", 0, names...)
	told := make(chan string, 100)
	concurrently(t, 6, func(w int) error {
		for r := range len(names) {
			var ids []string
			n, err := s.DigestAlerts(within(t), "u", 3, func(held []alerts.Alert, _ int64) (alerts.DigestDecision, error) {
				ids = alertIDs(held)
				return alerts.DigestDecision{Name: fmt.Sprint("d", w, ".", r)}, nil
			})
			if err != nil {
				return err
			}
			for _, id := range ids[:n] {
				told <- id
			}
		}
		return nil
	})
	equal(t, "told", drain(told), names)
}
