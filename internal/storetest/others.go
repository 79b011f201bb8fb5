package storetest

import (
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// takeOthers returns what others changed since the last decision, as the next one learns it; decide
// may be called twice.
func takeOthers(t *testing.T, s Store) (others engine.Others) {
	t.Helper()
	update(t, s, batch(id("else", "1m")), func(snap engine.Snapshot) engine.Changes {
		others.All, others.IDs = others.All || snap.Others.All, append(others.IDs, snap.Others.IDs...)
		return write("x")(snap)
	})
	return others
}

func resetIsReported(t *testing.T, s Store) {
	a, b, c := id("a", "1m"), id("b", "1m"), id("c", "1m")
	update(t, s, batch(a, b, c), write("1"))
	takeOthers(t, s)
	equal(t, "told of own changes", takeOthers(t, s), engine.Others{})
	for _, key := range []string{"a", "b"} {
		if _, err := s.Reset(within(t), engine.Selection{Key: key}, false); err != nil {
			t.Fatal(err)
		}
	}
	failUpdate(t, s)
	equal(t, "told after resets", takeOthers(t, s), engine.Others{IDs: []engine.CounterID{a, b}})
	equal(t, "told again", takeOthers(t, s), engine.Others{})
}

// failUpdate runs a transaction that panics before it has decided.
func failUpdate(t *testing.T, s Store) {
	t.Helper()
	func() {
		defer func() { _ = recover() }()
		_ = s.Update(within(t), batch(id("else", "1m")), func(engine.Snapshot) engine.Changes { panic("no decision") })
	}()
}

// OtherProcess checks what a store reports of changes by another process. here and there are stores
// on one database.
func OtherProcess(t *testing.T, open func(t *testing.T) (here, there Store)) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, here, there Store)
	}{
		{"writes of another process are reported once, to a decision", otherProcessChanges},
		{"a refund that nobody broadcasts is seen with the next transaction", func(t *testing.T, here, there Store) {
			lostBroadcast(t, here, there, true)
		}},
		{"a refund that nobody broadcasts is seen by a worker that only denies", func(t *testing.T, here, there Store) {
			lostBroadcast(t, here, there, false)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			here, there := open(t)
			c.test(t, here, there)
		})
	}
}

func otherProcessChanges(t *testing.T, here, there Store) {
	a, b := id("a", "1m"), id("b", "1m")
	takeOthers(t, here) // it has read the journal
	update(t, there, batch(a, b), write("1"))
	if _, err := there.Reset(within(t), engine.Selection{Key: "a"}, false); err != nil {
		t.Fatal(err)
	}
	// Neither a read nor a failed transaction uses the report up.
	if _, _, err := here.Counters(within(t), "a"); err != nil {
		t.Fatal(err)
	}
	update(t, there, batch(b), write("2"))
	failUpdate(t, here)
	equal(t, "told", takeOthers(t, here), engine.Others{IDs: []engine.CounterID{a, b, a, b}})
	equal(t, "told again", takeOthers(t, here), engine.Others{})
}

// lostBroadcast has one worker cache that a counter is exhausted, and another refund it without a
// broadcast.
func lostBroadcast(t *testing.T, here, there Store, asksMore bool) {
	one, two := startEngine(t, here), startEngine(t, there)
	l := limit(t, "a", 10)
	denied := func() bool { return !ask(t, one, engine.Consume, 1, "", l).Allowed }
	for range 3 { // more than once
		for !denied() {
		}
		ask(t, two, engine.Refund, 1, "", l)
		if asksMore {
			ask(t, one, engine.Consume, 1, "", limit(t, "b", 10))
			equal(t, "denied", denied(), false)
			continue
		}
		for since := time.Now(); denied(); {
			if time.Since(since) > 8*time.Second { // after 10 s the event of the denials would end it too
				t.Fatal("a worker goes on denying what another gave back")
			}
		}
	}
}
