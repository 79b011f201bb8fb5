package storetest

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/seed503877ad/limits/internal/alerts"
)

// poison: a message that comes again is one, and a different message that has its sequence number, of a stream that was made
// anew, is another.
func poison(t *testing.T, s Store) {
	long := bytes.Repeat([]byte{0, 0xff}, alerts.MaxPoisonBytes)
	for _, p := range []alerts.Poison{
		{Sequence: 1}, {Sequence: 2, Subject: "s", Reason: "r", Data: long},
		{Sequence: 2, Subject: "s", Reason: "r2", Data: long[:alerts.MaxPoisonBytes]}, // came again
		{Sequence: 3, Subject: "another stream's", Data: []byte("3")}, {Sequence: 3, Data: []byte("3")}, {Sequence: 3, Data: []byte("4")},
		{Sequence: 3, Data: []byte("3")}, {Sequence: 3, Subject: "another stream's", Data: []byte("3")},
	} {
		if err := s.KeepPoison(within(t), p); err != nil {
			t.Fatal(err)
		}
	}
	all, err := s.PoisonMessages(within(t), 4)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if all[i].At <= 0 {
			t.Errorf("kept at %d", all[i].At)
		}
		all[i].At = 0
	}
	equal(t, "poison", all, []alerts.Poison{
		{Sequence: 3, Data: []byte("4")}, {Sequence: 3, Data: []byte("3")}, {Sequence: 3, Subject: "another stream's", Data: []byte("3")},
		{Sequence: 2, Subject: "s", Reason: "r", Data: long[:alerts.MaxPoisonBytes]},
	})
}

// hostileText: texts that come from elsewhere, unchecked, do not prevent them from being stored.
func hostileText(t *testing.T, s Store) {
	const bad = "a\x00b\xffc"
	if err := s.KeepPoison(within(t), alerts.Poison{Sequence: 1, Subject: bad, Reason: bad, Data: []byte(bad)}); err != nil {
		t.Error(err)
	}
	if err := s.DisableChannel(within(t), alerts.Disabled{Channel: "x", Reason: bad}); err != nil {
		t.Error(err)
	}
	raise(t, s, func(a *alerts.Alert) { a.Title, a.Text = bad, bad }, "a")
	tell(t, s, alerts.NoticeDecision{Alert: "a", Notice: alerts.Sent, Reason: bad,
		Deliveries: []alerts.Delivery{alerts.NewDelivery(alerts.Message{ID: "m", Title: bad, Text: bad, Data: json.RawMessage(`""`)}, "x")}})
	writeResults(t, s, alerts.DeliveryResult{ID: "m/x", State: alerts.DeliveryDead, Error: bad})
	equal(t, "alert", alert(t, s, "a").Notice, alerts.Sent)
	all, err := s.DeadDeliveries(within(t), alerts.DeadFilter{Max: 9})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "dead letters", deliveryIDs(all), []string{"m/x"})
}

// poisonBounds keeps more messages than may be kept, with odd sequence numbers, as happens by
// chance among others.
func poisonBounds(t *testing.T, s Store) {
	const n = alerts.MaxPoison + 5*alerts.PoisonTrim
	for i := range n {
		if err := s.KeepPoison(within(t), alerts.Poison{Sequence: uint64(2*i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := s.PoisonMessages(within(t), 2*n)
	if err != nil || len(all) < alerts.MaxPoison || len(all) >= alerts.MaxPoison+alerts.PoisonTrim || all[0].Sequence != 2*n-1 {
		t.Errorf("%d kept, the last of sequence %d; want the last %d or a few more; %v", len(all), all[0].Sequence, alerts.MaxPoison, err)
	}
}

// poisonBoundsOfRepeats repeats a message each time that old ones are to be removed.
func poisonBoundsOfRepeats(t *testing.T, s Store) {
	const n = alerts.MaxPoison + 5*alerts.PoisonTrim
	for i := range n {
		p := alerts.Poison{Sequence: uint64(i)}
		if i%alerts.PoisonTrim == 0 && i > 0 {
			p.Sequence--
		}
		if err := s.KeepPoison(within(t), p); err != nil {
			t.Fatal(err)
		}
	}
	all, err := s.PoisonMessages(within(t), 2*n)
	if err != nil || len(all) >= alerts.MaxPoison+alerts.PoisonTrim {
		t.Errorf("%d kept, want %d or a few more; %v", len(all), alerts.MaxPoison, err)
	}
}

// poisonOfNewStream: after the stream was created again, messages have sequence numbers that other
// messages had, or lower ones.
func poisonOfNewStream(t *testing.T, s Store) {
	keep := func(sequence int, data string) {
		t.Helper()
		if err := s.KeepPoison(within(t), alerts.Poison{Sequence: uint64(sequence), Data: []byte(data)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range alerts.MaxPoison {
		keep(1001+i, "old")
	}
	const n = 2 * alerts.PoisonTrim
	for i := range n {
		keep(1002-n+i, "new")
	}
	all, err := s.PoisonMessages(within(t), 2*alerts.MaxPoison)
	kept := 0
	for _, p := range all {
		if string(p.Data) == "new" {
			kept++
		}
	}
	if err != nil || kept != n || all[0].Sequence != 1001 {
		t.Errorf("%d of the new stream's are kept, want %d, and the last has number %d; %v", kept, n, all[0].Sequence, err)
	}
}
