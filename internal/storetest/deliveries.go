package storetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

// delivery returns a new delivery of a message.
func delivery(message, channel string) alerts.Delivery {
	return alerts.NewDelivery(alerts.Message{ID: message, Kind: alerts.KindRaised, Data: json.RawMessage(`{}`)}, channel)
}

func addDeliveries(t *testing.T, s alerts.Store, channel string, messages ...string) {
	t.Helper()
	for _, m := range messages {
		if err := s.AddDelivery(within(t), delivery(m, channel)); err != nil {
			t.Fatal(err)
		}
	}
}

func claimDeliveries(t *testing.T, s alerts.Store, channel string, max int, lease time.Duration) []alerts.Delivery {
	t.Helper()
	all, err := s.DueDeliveries(within(t), channel, max, lease)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func deliveryIDs(all []alerts.Delivery) (ids []string) {
	for i := range all {
		ids = append(ids, all[i].ID)
	}
	return ids
}

// sortedIDs is for deliveries of which some may have the same time.
func sortedIDs(all []alerts.Delivery) []string { return slices.Sorted(slices.Values(deliveryIDs(all))) }

// dueIDs claims all deliveries that are due, for an hour.
func dueIDs(t *testing.T, s alerts.Store, channel string) []string {
	t.Helper()
	return deliveryIDs(claimDeliveries(t, s, channel, 100, time.Hour))
}

func writeResults(t *testing.T, s alerts.Store, all ...alerts.DeliveryResult) {
	t.Helper()
	if err := s.SaveResults(within(t), all); err != nil {
		t.Fatal(err)
	}
}

// makeDead turns deliveries into dead letters.
func makeDead(t *testing.T, s alerts.Store, ids ...string) {
	t.Helper()
	for _, id := range ids {
		writeResults(t, s, alerts.DeliveryResult{ID: id, State: alerts.DeliveryDead, Error: "gone", Counts: true})
	}
}

func deliveryFields(t *testing.T, s Store) {
	m := alerts.Message{ID: "m'", Kind: alerts.KindDigest, Time: 1, Severity: alerts.Critical, User: "u\"", Title: "ö😀\x00", Text: "%\n",
		Data: json.RawMessage(`{"a":[1,"b"]}`)}
	for _, again := range []alerts.Message{m, {ID: m.ID, Title: "another", Data: json.RawMessage(`1`)}} {
		if err := s.AddDelivery(within(t), alerts.NewDelivery(again, "c")); err != nil {
			t.Fatal(err)
		}
	}
	all := claimDeliveries(t, s, "c", 9, time.Hour)
	if len(all) != 1 {
		t.Fatalf("due: %+v", all)
	}
	d := all[0]
	if d.CreatedAt <= 0 || d.DueAt < d.CreatedAt+hour {
		t.Errorf("made at %d, due at %d", d.CreatedAt, d.DueAt)
	}
	d.CreatedAt, d.DueAt = 0, 0
	equal(t, "delivery", d, alerts.Delivery{ID: "m'/c", Channel: "c", Message: m, State: alerts.DeliveryWaiting})
}

func dueDeliveries(t *testing.T, s Store) {
	addDeliveries(t, s, "x", "c", "a", "b")
	addDeliveries(t, s, "y", "a")
	past := claimDeliveries(t, s, "x", 9, -time.Hour)[0].DueAt
	writeResults(t, s, alerts.DeliveryResult{ID: "c/x", State: alerts.DeliveryWaiting, DueAt: past - 1}, alerts.DeliveryResult{ID: "b/x", State: alerts.DeliveryWaiting, DueAt: past - 2},
		alerts.DeliveryResult{ID: "a/x", State: alerts.DeliveryWaiting, DueAt: past})
	equal(t, "the first", deliveryIDs(claimDeliveries(t, s, "x", 2, time.Hour)), []string{"b/x", "c/x"})
	equal(t, "the next", deliveryIDs(claimDeliveries(t, s, "x", 9, -time.Hour)), []string{"a/x"})
	equal(t, "the next again", deliveryIDs(claimDeliveries(t, s, "x", 9, time.Hour)), []string{"a/x"})
	equal(t, "none is left", deliveryIDs(claimDeliveries(t, s, "x", 9, time.Hour)), nil)
	equal(t, "of the other channel", dueIDs(t, s, "y"), []string{"a/y"})
	equal(t, "of no channel", dueIDs(t, s, "z"), nil)
}

// dueInOrder has three alerts that two channels are told of. One waits for its first delivery on
// one of them; the first deliveries of the others were sent or given up. The first delivery of a
// fourth alert was pruned.
func dueInOrder(t *testing.T, s Store) {
	for _, channel := range []string{"x", "y"} {
		addDeliveries(t, s, channel, "a.raised", "b.raised", "c.raised")
		at := claimDeliveries(t, s, channel, 9, time.Hour)[0].DueAt
		writeResults(t, s, alerts.DeliveryResult{ID: "b.raised/" + channel, State: alerts.DeliverySent})
		makeDead(t, s, "c.raised/"+channel)
		if channel == "x" {
			writeResults(t, s, alerts.DeliveryResult{ID: "a.raised/x", State: alerts.DeliveryWaiting, DueAt: at + hour})
		}
		addDeliveries(t, s, channel, "a.resolved", "b.resolved", "c.resolved", "d.resolved")
	}
	writeResults(t, s, alerts.DeliveryResult{ID: "a.raised/y", State: alerts.DeliverySent})
	due := func(what, channel string, want ...string) {
		t.Helper()
		equal(t, what, sortedIDs(claimDeliveries(t, s, channel, 100, time.Hour)), want)
	}
	due("where it waits", "x", "b.resolved/x", "c.resolved/x", "d.resolved/x")
	due("where it was sent", "y", "a.resolved/y", "b.resolved/y", "c.resolved/y", "d.resolved/y")
	writeResults(t, s, alerts.DeliveryResult{ID: "a.raised/x", State: alerts.DeliveryWaiting, DueAt: 1})
	due("when it is due", "x", "a.raised/x")
	writeResults(t, s, alerts.DeliveryResult{ID: "a.raised/x", State: alerts.DeliverySent})
	due("when it was sent", "x", "a.resolved/x")
}

func dueAtOnce(t *testing.T, s Store) {
	sharedAtOnce(t, s, func() ([]alerts.Delivery, error) { return s.DueDeliveries(within(t), "x", 3, time.Hour) })
}

// sharedAtOnce has several workers take deliveries, a few at a time: each delivery goes to one of
// them.
func sharedAtOnce(t *testing.T, s alerts.Store, take func() ([]alerts.Delivery, error)) {
	t.Helper()
	var names []string
	for i := range 40 {
		names = append(names, fmt.Sprintf("%02d/x", i))
		addDeliveries(t, s, "x", fmt.Sprintf("%02d", i))
	}
	given := make(chan string, 100)
	concurrently(t, 6, func(int) error {
		for range len(names) {
			some, err := take()
			if err != nil {
				return err
			}
			for _, id := range deliveryIDs(some) {
				given <- id
			}
		}
		return nil
	})
	equal(t, "given", drain(given), names)
}

func deliver(t *testing.T, s Store) {
	addDeliveries(t, s, "x", "again", "off", "sent", "dead")
	at := claimDeliveries(t, s, "x", 9, time.Hour)[0].DueAt
	writeResults(t, s,
		alerts.DeliveryResult{ID: "sent/x", State: alerts.DeliverySent, Counts: true},
		alerts.DeliveryResult{ID: "again/x", State: alerts.DeliveryWaiting, DueAt: at + 1, Error: "500", Counts: true},
		alerts.DeliveryResult{ID: "off/x", State: alerts.DeliveryWaiting, DueAt: at + 2, Error: "open"},
		alerts.DeliveryResult{ID: "dead/x", State: alerts.DeliveryDead, Error: "404", Counts: true},
		alerts.DeliveryResult{ID: "nobody/x", State: alerts.DeliverySent})
	writeResults(t, s, alerts.DeliveryResult{ID: "again/x", State: alerts.DeliveryWaiting, DueAt: at + 3, Error: "503", Counts: true})
	for _, id := range []string{"sent/x", "dead/x"} { // too late
		writeResults(t, s, alerts.DeliveryResult{ID: id, State: alerts.DeliveryWaiting, DueAt: 1, Error: "late", Counts: true})
	}
	var got []string
	for _, m := range []string{"again", "off", "sent", "dead"} {
		all, err := s.DeliveriesOf(within(t), m, 9)
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: %+v, %v", m, all, err)
		}
		d := all[0]
		got = append(got, fmt.Sprint(d.State, " ", d.Attempts, " ", d.Error, " ", d.DueAt-at, " ", d.EndedAt >= d.CreatedAt))
	}
	equal(t, "deliveries", got, []string{"waiting 2 503 3 false", "waiting 0 open 2 false", "sent 1  0 true", "dead 1 404 0 true"})
	waiting, err := s.WaitingDeliveries(within(t))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "waiting", waiting, map[string]int64{"x": 2})
	writeResults(t, s)
}

func otherDeliveries(t *testing.T, s Store) {
	for _, channel := range []string{"a", "b", "c", "d"} {
		addDeliveries(t, s, channel, "1", "2", "3")
	}
	makeDead(t, s, "1/b", "1/d", "2/d", "3/d")
	for _, c := range []struct {
		channels []string
		max      int
		want     []string
	}{
		{[]string{"a", "c"}, 9, []string{"2/b", "3/b"}},
		{[]string{"b"}, 4, []string{"1/a", "2/a", "3/a", "1/c"}},
		{nil, 1, []string{"1/a"}},
		{[]string{"c", "b", "a", "z"}, 9, nil},
	} {
		got, err := s.OtherDeliveries(within(t), c.channels, 0, c.max)
		if err != nil {
			t.Fatal(err)
		}
		ids := map[string]bool{}
		for _, d := range got { // in no order, if they were made in the same millisecond
			ids[d.Channel] = true
		}
		want := map[string]bool{}
		for _, id := range c.want {
			want[id[2:]] = true
		}
		equal(t, fmt.Sprintf("channels other than %q", c.channels), ids, want)
		equal(t, fmt.Sprintf("how many other than %q", c.channels), len(got), len(c.want))
	}
}

// otherDeliveriesInHand has deliveries that OtherDeliveries leaves out: those that are claimed, and
// those that will be claimed when they are due.
func otherDeliveriesInHand(t *testing.T, s Store) {
	addDeliveries(t, s, "x", "claimed", "later", "due", "overdue")
	now := claimDeliveries(t, s, "x", 9, time.Hour)[0].DueAt - hour
	for id, due := range map[string]int64{"later": now + hour, "due": now - hour/2, "overdue": now - 2*hour} {
		writeResults(t, s, alerts.DeliveryResult{ID: id + "/x", State: alerts.DeliveryWaiting, DueAt: due})
	}
	addDeliveries(t, s, "x", "a.raised", "a.resolved")
	writeResults(t, s, alerts.DeliveryResult{ID: "a.raised/x", State: alerts.DeliveryWaiting, DueAt: now + hour},
		alerts.DeliveryResult{ID: "a.resolved/x", State: alerts.DeliveryWaiting, DueAt: now - 5*hour})
	for due, want := range map[time.Duration][]string{0: {"due/x", "overdue/x"}, time.Hour: {"overdue/x"}, 3 * time.Hour: nil} {
		got, err := s.OtherDeliveries(within(t), []string{"y"}, due, 9)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "due for "+due.String(), sortedIDs(got), want)
	}
}

// recallDeliveries has some deliveries that are due in more than a day, and others that wait as
// long as any may.
func recallDeliveries(t *testing.T, s Store) {
	const day = 24 * time.Hour
	recall := func(lease time.Duration, max, want int) {
		t.Helper()
		if n, err := s.RecallDeliveries(within(t), day, lease, max); n != want || err != nil {
			t.Errorf("recalled %d, %v; want %d", n, err, want)
		}
	}
	recall(time.Hour, 9, 0)
	for _, channel := range []string{"x", "y", "z"} {
		addDeliveries(t, s, channel, "1", "2", "now", "near", "dead")
		now := claimDeliveries(t, s, channel, 9, time.Hour)[0].DueAt - hour
		makeDead(t, s, "dead/"+channel)
		for id, due := range map[string]int64{"now": now, "near": now + 23*hour, "1": now + 25*hour, "2": now + 9000*hour} {
			writeResults(t, s, alerts.DeliveryResult{ID: id + "/" + channel, State: alerts.DeliveryWaiting, DueAt: due, Error: "500", Counts: true})
		}
	}
	recall(-time.Hour, 4, 4)
	recall(-time.Hour, 9, 2)
	recall(-time.Hour, 9, 0)
	for _, channel := range []string{"x", "y", "z"} {
		all := claimDeliveries(t, s, channel, 9, 48*time.Hour)
		equal(t, "due", sortedIDs(all), []string{"1/" + channel, "2/" + channel, "now/" + channel})
		equal(t, "as it was", fmt.Sprint(all[0].Attempts, " ", all[0].Error), "1 500")
	}
	recall(time.Hour, 99, 9)
	equal(t, "within the lease", dueIDs(t, s, "x"), nil)
}

// advanceDeliveries has a channel with deliveries that are claimed, that are due, that wait for their next try, and that are
// over; and another channel, whose deliveries stay as they are.
func advanceDeliveries(t *testing.T, s Store) {
	advance := func(max, want int) {
		t.Helper()
		if n, err := s.AdvanceDeliveries(within(t), "x", time.Minute, max); n != want || err != nil {
			t.Errorf("brought %d forward, %v; want %d", n, err, want)
		}
	}
	advance(9, 0)
	for _, channel := range []string{"x", "y"} {
		addDeliveries(t, s, channel, "claimed", "late", "later", "latest.raised", "sent", "dead")
		now := claimDeliveries(t, s, channel, 9, time.Minute)[0].DueAt - time.Minute.Milliseconds()
		makeDead(t, s, "dead/"+channel)
		writeResults(t, s, alerts.DeliveryResult{ID: "sent/" + channel, State: alerts.DeliverySent})
		for id, due := range map[string]int64{"late": now + hour, "later": now + 2*hour, "latest.raised": now + 3*hour} {
			writeResults(t, s, alerts.DeliveryResult{ID: id + "/" + channel, State: alerts.DeliveryWaiting, DueAt: due, Error: "500", Counts: true})
		}
		addDeliveries(t, s, channel, "latest.resolved", "new")
	}
	advance(1, 1)
	equal(t, "with the next one, while the beginning of an alert waits", sortedIDs(claimDeliveries(t, s, "x", 9, time.Minute)),
		[]string{"late/x", "new/x"})
	advance(9, 2)
	advance(9, 0)
	rest := claimDeliveries(t, s, "x", 9, time.Minute)
	equal(t, "with the others", sortedIDs(rest), []string{"later/x", "latest.raised/x"})
	equal(t, "as it was", fmt.Sprint(rest[0].Attempts, " ", rest[0].Error), "1 500")
	advance(9, 0) // they are claimed
	equal(t, "of the other channel", dueIDs(t, s, "y"), []string{"new/y"})
}

func deadLetters(t *testing.T, s Store) {
	addDeliveries(t, s, "x", "1", "2", "3", "4")
	addDeliveries(t, s, "y", "1", "2")
	makeDead(t, s, "3/x", "1/x", "2/x", "2/y")
	dead := func(f alerts.DeadFilter) []string {
		t.Helper()
		all, err := s.DeadDeliveries(within(t), f)
		if err != nil {
			t.Fatal(err)
		}
		return deliveryIDs(all)
	}
	equal(t, "a page", dead(alerts.DeadFilter{Max: 3}), []string{"1/x", "2/x", "2/y"})
	equal(t, "the next", dead(alerts.DeadFilter{Max: 3, After: "2/y"}), []string{"3/x"})
	equal(t, "of a channel", dead(alerts.DeadFilter{Channel: "x", Max: 2, After: "1/x"}), []string{"2/x", "3/x"})
	equal(t, "one", dead(alerts.DeadFilter{ID: "2/y", Max: 9}), []string{"2/y"})
	equal(t, "one that waits", dead(alerts.DeadFilter{ID: "4/x", Max: 9}), nil)
	equal(t, "one of another channel", dead(alerts.DeadFilter{ID: "2/y", Channel: "x", Max: 9}), nil)
	replay := func(f alerts.DeadFilter, want int) {
		t.Helper()
		if n, err := s.ReplayDeliveries(within(t), f); n != want || err != nil {
			t.Errorf("replay %+v: %d, %v; want %d", f, n, err, want)
		}
	}
	dueIDs(t, s, "x")
	dueIDs(t, s, "y")
	replay(alerts.DeadFilter{ID: "4/x", Max: 9}, 0)
	replay(alerts.DeadFilter{ID: "2/y", Max: 9}, 1)
	replay(alerts.DeadFilter{Channel: "x", Max: 2}, 2)
	equal(t, "left", dead(alerts.DeadFilter{Max: 9}), []string{"3/x"})
	equal(t, "due at once", dueIDs(t, s, "y"), []string{"2/y"})
	again := claimDeliveries(t, s, "x", 9, -time.Hour)
	equal(t, "and of the other channel", len(again), 2)
	for _, d := range again {
		equal(t, "a second life", fmt.Sprint(d.State, " ", d.Attempts, " ", d.EndedAt, " ", d.Error), "waiting 0 0 gone")
	}
	replay(alerts.DeadFilter{Max: 9}, 1)
}

func deliveriesOf(t *testing.T, s Store) {
	addDeliveries(t, s, "x", "a.raised", "a.resolved", "ab.raised", "a", "a-", "b.raised")
	addDeliveries(t, s, "y", "a.raised")
	for max, want := range map[int][]string{
		9: {"a.raised/x", "a.raised/y", "a.resolved/x", "a/x"},
		2: {"a.raised/x", "a.raised/y"},
	} {
		all, err := s.DeliveriesOf(within(t), "a", max)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "deliveries", deliveryIDs(all), want)
	}
}

func disabledChannels(t *testing.T, s Store) {
	disable := func(channel, target, reason string) {
		t.Helper()
		if err := s.DisableChannel(within(t), alerts.Disabled{Channel: channel, Target: target, Reason: reason}); err != nil {
			t.Fatal(err)
		}
	}
	list := func() (all []string) {
		t.Helper()
		gone, err := s.DisabledChannels(within(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range gone {
			if d.At <= 0 {
				t.Errorf("%s at %d", d.Channel, d.At)
			}
			all = append(all, d.Channel+" "+d.Target+" "+d.Reason)
		}
		return all
	}
	equal(t, "at first", list(), nil)
	disable("b", "1", "410")
	disable("a", "2", "410")
	disable("b", "3", "gone")
	equal(t, "gone", list(), []string{"a 2 410", "b 3 gone"})
	for _, want := range []bool{true, false} {
		if found, err := s.EnableChannel(within(t), "b"); found != want || err != nil {
			t.Errorf("enable: %t, %v; want %t", found, err, want)
		}
	}
	equal(t, "left", list(), []string{"a 2 410"})
}
