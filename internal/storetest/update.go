package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

func absent(t *testing.T, s Store) {
	equal(t, "states", states(t, s, id("a", "1m"), id("b", "1h")), []string{"-", "-"})
	found, _, err := s.Counters(within(t), "a")
	if err != nil || len(found) != 0 {
		t.Errorf("Counters = %v, %v", found, err)
	}
}

func writeThenRead(t *testing.T, s Store) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	// The first is empty, which is not the same as not stored. The last is longer than a page; the one
	// before it begins and ends with zeros.
	want := [][]byte{{}, {1}, every, {0, 0, 7, 0, 0}, bytes.Repeat(every, 64)}
	ids := numbered(len(want))
	update(t, s, batch(ids...), func(snap engine.Snapshot) (c engine.Changes) {
		for i := range want {
			c.Counters = append(c.Counters, engine.CounterChange{Slot: i, State: want[i], Spec: []byte(`{}`)})
		}
		return c
	})
	for range 2 { // the second time as updates
		update(t, s, batch(ids...), func(snap engine.Snapshot) (c engine.Changes) {
			for i := range want {
				if snap.States[i] == nil || !bytes.Equal(snap.States[i], want[i]) {
					t.Errorf("state %d: got %x, want %x", i, snap.States[i], want[i])
				}
				c.Counters = append(c.Counters, engine.CounterChange{Slot: i, State: want[i]})
			}
			return c
		})
	}
}

func specs(t *testing.T, s Store) {
	a := id("a", "1m")
	step := func(spec []byte, expires int64) {
		update(t, s, batch(a), func(engine.Snapshot) engine.Changes {
			c := engine.CounterChange{State: []byte("x"), Spec: spec, ExpiresAt: expires}
			return engine.Changes{Counters: []engine.CounterChange{c}}
		})
	}
	stored := func() string {
		found, _, err := s.Counters(within(t), "a")
		if err != nil || len(found) != 1 {
			t.Fatalf("Counters = %v, %v", found, err)
		}
		return string(found[0].Spec)
	}
	first, second := `{"limit": 1, "zone":"ö\u0000"}`, `{"limit":2}`
	step([]byte(first), 1)
	equal(t, "new spec", stored(), first)
	step(nil, 1)
	equal(t, "spec after a state", stored(), first)
	step([]byte(second), 1)
	equal(t, "changed spec", stored(), second)
	step(nil, 2)
	equal(t, "spec after another expiry", stored(), second)
}

func batchOrder(t *testing.T, s Store) {
	// In the order of bytes, which no language uses.
	ids := []engine.CounterID{
		id("B", "1m"), id("Z", "1h"), id("Z", "1m"), id("a", "1m"), id("a b", "1m"), id("a-b", "1m"), id("ab", "1m"),
		id("ä", "1m"), id("€", "1m"), id("\uffee", "1m"), id("😀", "1m"),
	}
	var want []string
	update(t, s, batch(ids...), func(snap engine.Snapshot) (c engine.Changes) {
		for i := range ids {
			c.Counters = append(c.Counters, change(snap, i, strconv.Itoa(i)))
		}
		return c
	})
	for i := range ids {
		want = append(want, strconv.Itoa(i))
	}
	equal(t, "states", states(t, s, ids...), want)

	// Some of them are changed, some left alone, and new ones are between them.
	some := []engine.CounterID{ids[0], id("C", "1m"), ids[3], ids[8], ids[10]}
	update(t, s, batch(some...), func(snap engine.Snapshot) engine.Changes {
		return engine.Changes{Counters: []engine.CounterChange{
			change(snap, 1, "new"), change(snap, 2, "changed"), change(snap, 4, "last"),
		}}
	})
	equal(t, "states", states(t, s, some...), []string{"0", "new", "changed", "8", "last"})
}

func largeBatch(t *testing.T, s Store) {
	ids := numbered(3000)
	for round := range 3 {
		update(t, s, batch(ids...), func(snap engine.Snapshot) (c engine.Changes) {
			for i := range ids {
				if want := fmt.Sprint(i, " ", round-1); round > 0 && string(snap.States[i]) != want {
					t.Fatalf("round %d: state %d is %q, want %q", round, i, snap.States[i], want)
				}
				c.Counters = append(c.Counters, change(snap, i, fmt.Sprint(i, " ", round)))
			}
			return c
		})
	}
}

func emptyBatch(t *testing.T, s Store) {
	var now int64
	update(t, s, engine.Batch{}, func(snap engine.Snapshot) engine.Changes {
		now = snap.Now
		return engine.Changes{}
	})
	checkClock(t, now)
}

func noChange(t *testing.T, s Store) {
	a := id("a", "1m")
	update(t, s, batch(a), write("1"))
	for range 50 { // more often than there are connections
		update(t, s, batch(a), nothing)
	}
	update(t, s, batch(a), write("2"))
	equal(t, "state", states(t, s, a), []string{"2"})
}

func checkClock(t *testing.T, now int64) {
	t.Helper()
	if off := time.Since(time.UnixMilli(now)); off.Abs() > time.Minute {
		t.Errorf("the store's clock is %v off", off)
	}
}

func clock(t *testing.T, s Store) {
	a := id("a", "1m")
	const workers, each = 4, 25
	update(t, s, batch(a), write("0"))
	var times [workers*each + 1]int64 // by the value that the counter was set to, which is the order of the transactions
	concurrently(t, workers, func(int) error {
		for range each {
			var at int64
			var n int
			err := retry(within(t), s, batch(a), func(snap engine.Snapshot) engine.Changes {
				n, _ = strconv.Atoi(string(snap.States[0]))
				n, at = n+1, snap.Now
				return write(strconv.Itoa(n))(snap)
			})
			if err != nil {
				return err
			}
			times[n] = at
		}
		return nil
	})
	for n := 2; n < len(times); n++ {
		if times[n] < times[n-1] {
			t.Errorf("update %d was at %d, and the one before at %d", n, times[n], times[n-1])
		}
	}
	last := times[len(times)-1]
	checkClock(t, last)
	_, now, err := s.Counters(within(t), "a")
	if err != nil || now < last {
		t.Errorf("Counters at %d, %v; the last update was at %d", now, err, last)
	}
}

func badChanges(t *testing.T, s Store) {
	a, b := id("a", "1m"), id("b", "1m")
	for name, bad := range map[string]engine.CounterChange{
		"slot":         {Slot: 2, State: []byte("x"), Spec: []byte(`{}`)},
		"missing spec": {Slot: 1, State: []byte("x")},
	} {
		err := s.Update(within(t), batch(a, b), func(snap engine.Snapshot) engine.Changes {
			return engine.Changes{Counters: []engine.CounterChange{change(snap, 0, "x"), bad}}
		})
		if err == nil || errors.Is(err, engine.ErrConflict) || errors.Is(err, engine.ErrCommitUnknown) {
			t.Errorf("%s: %v", name, err)
		}
		equal(t, name, states(t, s, a, b), []string{"-", "-"})
	}
}

func canceled(t *testing.T, s Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := s.Update(ctx, batch(id("a", "1m")), write("1"))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("update: %v", err)
	}
	equal(t, "state", states(t, s, id("a", "1m")), []string{"-"})
}

func canceledInside(t *testing.T, s Store) {
	ctx, cancel := context.WithCancel(t.Context())
	err := s.Update(ctx, batch(id("a", "1m")), func(snap engine.Snapshot) engine.Changes {
		cancel()
		return write("1")(snap)
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, engine.ErrCommitUnknown) {
		t.Errorf("update: %v", err)
	}
	equal(t, "state", states(t, s, id("a", "1m")), []string{"-"})
}

func panics(t *testing.T, s Store) {
	a := id("a", "1m")
	update(t, s, batch(a), write("1"))
	for range 20 { // more often than there are connections
		err := func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("panic: %v", p)
				}
			}()
			return s.Update(within(t), batch(a), func(engine.Snapshot) engine.Changes { panic("boom") })
		}()
		if err == nil || !strings.Contains(err.Error(), "boom") {
			t.Fatalf("update: %v", err)
		}
	}
	update(t, s, batch(a), write("2"))
	equal(t, "state", states(t, s, a), []string{"2"})
}

func receipt(id string) engine.Receipt {
	r := engine.Receipt{ID: id, Answer: []byte("\x00answer of " + id), ExpiresAt: 4_000_000_000_001}
	copy(r.Fingerprint[:], "\x00\xfffingerprint of "+id)
	return r
}

func receipts(t *testing.T, s Store) {
	a, c := receipt("a"), receipt("c")
	c.Answer = []byte{}
	ids := engine.Batch{IDs: []string{"a", "b", "c"}}
	update(t, s, ids, func(snap engine.Snapshot) engine.Changes {
		equal(t, "receipts before", snap.Receipts, []*engine.Receipt{nil, nil, nil})
		return engine.Changes{Receipts: []engine.Receipt{a, c}}
	})
	var got []*engine.Receipt
	update(t, s, ids, func(snap engine.Snapshot) engine.Changes {
		got = append(got, snap.Receipts...)
		return engine.Changes{}
	})
	equal(t, "receipts", got, []*engine.Receipt{&a, nil, &c})
	b := receipt("b")
	a.Answer, a.ExpiresAt = []byte("another"), a.ExpiresAt+1
	update(t, s, ids, func(engine.Snapshot) engine.Changes {
		return engine.Changes{Receipts: []engine.Receipt{a, b}, Stale: []string{"a"}}
	})
	update(t, s, ids, func(snap engine.Snapshot) engine.Changes {
		equal(t, "receipts, one of them stale", snap.Receipts, []*engine.Receipt{&a, &b, &c})
		return engine.Changes{}
	})
	of := engine.Batch{IDs: []string{"b"}, ConsumeIDs: []string{"a", "none", "c"}}
	update(t, s, of, func(snap engine.Snapshot) engine.Changes {
		equal(t, "receipts beside those of consumes", snap.Receipts, []*engine.Receipt{&b})
		equal(t, "receipts of consumes", snap.ConsumeReceipts, []*engine.Receipt{&a, nil, &c})
		return engine.Changes{}
	})
	read, err := s.Receipts(within(t), []string{"c", "none", "a", "c"})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "receipts that are only read", read, []*engine.Receipt{&c, nil, &a, &c})
}

func receiptTaken(t *testing.T, s Store) {
	update(t, s, engine.Batch{}, func(engine.Snapshot) engine.Changes {
		return engine.Changes{Receipts: []engine.Receipt{receipt("a")}}
	})
	x := id("x", "1m")
	err := s.Update(within(t), batch(x), func(snap engine.Snapshot) engine.Changes {
		c := write("1")(snap)
		c.Receipts = []engine.Receipt{receipt("a")}
		c.Events = []engine.Event{event("1")}
		return c
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Errorf("update: %v", err)
	}
	equal(t, "state", states(t, s, x), []string{"-"})
	backlog(t, s, 0)
}
