package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

// endOld ends deliveries by age, and returns their ids, sorted.
func endOld(t *testing.T, s alerts.Store, o alerts.Overdue) []string {
	t.Helper()
	all, err := s.EndDeliveries(within(t), o, func(d *alerts.Delivery) string { return "too old: " + d.Error })
	if err != nil {
		t.Fatal(err)
	}
	return sortedIDs(all)
}

func oldDeliveries(t *testing.T, s Store) {
	old := func(max int) []string { return endOld(t, s, alerts.Overdue{Lease: time.Hour, Max: max}) }
	addDeliveries(t, s, "x", "claimed", "later", "sent", "dead", "new")
	addDeliveries(t, s, "y", "new")
	addDeliveries(t, s, "z", "1", "2")
	at := claimDeliveries(t, s, "x", 9, time.Hour)[0].DueAt
	writeResults(t, s, alerts.DeliveryResult{ID: "sent/x", State: alerts.DeliverySent}, alerts.DeliveryResult{ID: "dead/x", State: alerts.DeliveryDead, Error: "404"},
		alerts.DeliveryResult{ID: "new/x", State: alerts.DeliveryWaiting, DueAt: 1},
		alerts.DeliveryResult{ID: "later/x", State: alerts.DeliveryWaiting, DueAt: at + hour, Error: "500", Counts: true})
	equal(t, "none is old", endOld(t, s, alerts.Overdue{Age: time.Hour, Lease: time.Hour, Max: 9}), nil)
	equal(t, "of two at most", len(old(2)), 2)
	equal(t, "of the others", len(old(9)), 3)
	equal(t, "of none", old(9), nil)
	dead, err := s.DeadDeliveries(within(t), alerts.DeadFilter{Max: 9})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range dead {
		d := &dead[i]
		got = append(got, fmt.Sprint(d.ID, " ", d.Attempts, " ", d.Error, " ", d.EndedAt >= d.CreatedAt))
	}
	equal(t, "dead letters", got, []string{"1/z 0 too old:  true", "2/z 0 too old:  true", "dead/x 0 404 true",
		"later/x 1 too old: 500 true", "new/x 0 too old:  true", "new/y 0 too old:  true"})
}

// oldAfterReplay: the delivery that was made first is replayed, so it is the younger one.
func oldAfterReplay(t *testing.T, s Store) {
	addDeliveries(t, s, "x", "a", "b")
	makeDead(t, s, "a/x")
	time.Sleep(2 * time.Millisecond) // times are kept in milliseconds
	if n, err := s.ReplayDeliveries(within(t), alerts.DeadFilter{Max: 9}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	for _, want := range []string{"b/x", "a/x"} {
		equal(t, "the oldest", endOld(t, s, alerts.Overdue{Max: 1}), []string{want})
	}
}

func oldInOrder(t *testing.T, s Store) {
	addDeliveries(t, s, "x", "a.raised", "a.resolved", "b.resolved")
	for _, d := range claimDeliveries(t, s, "x", 9, time.Minute) {
		if d.ID == "b.resolved/x" { // waits for no other delivery
			writeResults(t, s, alerts.DeliveryResult{ID: d.ID, State: alerts.DeliveryWaiting, DueAt: 1})
		}
	}
	old := func(lease time.Duration) []string { return endOld(t, s, alerts.Overdue{Lease: lease, Max: 9}) }
	equal(t, "while the beginning is tried", old(time.Hour), []string{"b.resolved/x"})
	equal(t, "the beginning", old(0), []string{"a.raised/x"})
	equal(t, "then the end", old(0), []string{"a.resolved/x"})
}

func oldAtOnce(t *testing.T, s Store) {
	sharedAtOnce(t, s, func() ([]alerts.Delivery, error) {
		return s.EndDeliveries(within(t), alerts.Overdue{Max: 3}, func(*alerts.Delivery) string { return "old" })
	})
}
