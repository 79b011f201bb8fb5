package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// watched calls set and counts what it was asked: over what is remembered, and under lock.
type watched struct {
	remembered, locked int
	saw                string
}

func (w *watched) set(state string) func(engine.Snapshot) engine.Changes {
	return func(snap engine.Snapshot) engine.Changes {
		if snap.Until > 0 {
			w.remembered++
		} else {
			w.locked++
		}
		w.saw = string(snap.States[0])
		return set(state)(snap)
	}
}

func (w *watched) String() string {
	return fmt.Sprintf("asked %d times over what is remembered, %d times under lock, saw %q", w.remembered, w.locked, w.saw)
}

func write(t *testing.T, s *Store, state string) string {
	t.Helper()
	var w watched
	if err := s.Update(t.Context(), batch("a", "b"), w.set(state)); err != nil {
		t.Fatal(err)
	}
	return w.String()
}

const (
	rewrote = "asked 1 times over what is remembered, 0 times under lock, saw %q"
	locked  = "asked 0 times over what is remembered, 1 times under lock, saw %q"
	stale   = "asked 1 times over what is remembered, 1 times under lock, saw %q"
)

func expect(t *testing.T, what, got, want, saw string) {
	t.Helper()
	if want = fmt.Sprintf(want, saw); got != want {
		t.Errorf("%s: %s; want %s", what, got, want)
	}
}

func TestWhatAWorkerWroteLastIsNotReadAgain(t *testing.T) {
	s := open(t, Config{})
	expect(t, "new rows", write(t, s, "1"), locked, "")
	expect(t, "after inserts", write(t, s, "2"), rewrote, "1")
	expect(t, "after a rewrite", write(t, s, "3"), rewrote, "2")
	if got := state(t, s, "b"); got != "3" {
		t.Errorf("state %q", got)
	}
}

func TestWhatAnotherWorkerWroteIsReadUnderLock(t *testing.T) {
	s := open(t, Config{})
	write(t, s, "1")
	if _, err := connect(t, s).Exec(t.Context(), `UPDATE counters SET state = 'other' WHERE key = 'b'`); err != nil {
		t.Fatal(err)
	}
	expect(t, "one row of two changed", write(t, s, "2"), stale, "1")
	if a, b := state(t, s, "a"), state(t, s, "b"); a != "2" || b != "2" {
		t.Errorf("states %q and %q", a, b)
	}
	// The next one locks at once, since another worker is at it; the one behind tries again.
	expect(t, "after a failure", write(t, s, "3"), locked, "2")
	expect(t, "then", write(t, s, "4"), rewrote, "3")
}

func TestNothingIsRememberedAcrossARewriteOfTheTable(t *testing.T) {
	s := open(t, Config{})
	write(t, s, "1")
	if _, err := connect(t, s).Exec(t.Context(), `VACUUM FULL counters`); err != nil {
		t.Fatal(err)
	}
	expect(t, "after VACUUM FULL", write(t, s, "2"), stale, "1")
}

func TestARewriteHoldsOnlyWhileTheClockIsWhereItWasTakenToBe(t *testing.T) {
	s := open(t, Config{})
	for _, off := range []int64{-60_000, 60_000} {
		write(t, s, "1")
		s.versions.skip = 0
		write(t, s, "1")
		s.versions.now += off
		expect(t, fmt.Sprintf("a clock %d ms off", off), write(t, s, "2"), stale, "1")
	}
}

func TestARewriteStoresItsEvents(t *testing.T) {
	s := open(t, Config{})
	write(t, s, "1")
	err := s.Update(t.Context(), batch("a", "b"), func(snap engine.Snapshot) engine.Changes {
		c := set("2")(snap)
		c.Events = []engine.Event{{ID: "e", Type: engine.EventWarning, Key: "a"}}
		if snap.Until == 0 {
			t.Error("asked under lock")
		}
		return c
	})
	if err != nil {
		t.Fatal(err)
	}
	n, err := s.Relay(t.Context(), 10, func(_ context.Context, events []engine.Event) ([]string, error) {
		return []string{events[0].ID}, nil
	})
	if n != 1 || err != nil {
		t.Errorf("relayed %d, %v", n, err)
	}
}

func TestAnUnsureDecisionIsMadeAgainUnderLock(t *testing.T) {
	s := open(t, Config{})
	write(t, s, "1")
	var w watched
	err := s.Update(t.Context(), batch("a", "b"), func(snap engine.Snapshot) engine.Changes {
		c := w.set("2")(snap)
		c.Unsure = snap.Until > 0
		return c
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "unsure", w.String(), stale, "1")
}

// TestRewritesStayInTheirPage: without pruning, the thousand versions of two rows would fill a page every hundred.
func TestRewritesStayInTheirPage(t *testing.T) {
	s := open(t, Config{})
	big := strings.Repeat("x", 100)
	for range 500 {
		write(t, s, big)
	}
	var pages int
	err := connect(t, s).QueryRow(t.Context(), `SELECT pg_relation_size('counters') / 8192`).Scan(&pages)
	if pages > 2 || err != nil {
		t.Errorf("%d pages, %v; want 2 at most", pages, err)
	}
}

func TestTheVersionsRememberedAreBounded(t *testing.T) {
	v := newVersions()
	numbered := func(i int) engine.CounterID { return engine.CounterID{Key: fmt.Sprint(i)} }
	for i := range 3 * versionsMost {
		v.remember(numbered(i), tid{}, [4]byte{}, nil)
		if v.recent.get(numbered(0)) == nil {
			t.Fatalf("what is used all the time was dropped after %d", i)
		}
	}
	if n := len(v.recent.byID); n > versionsMost || len(v.recent.ring) > versionsMost {
		t.Errorf("%d of %d, want at most %d", n, len(v.recent.ring), versionsMost)
	}
	v.forget([]engine.CounterID{numbered(0)})
	if v.recent.get(numbered(0)) != nil {
		t.Error("what was forgotten is remembered")
	}
}

// A reading that took long says little of the clock now: what is lent by it must end for sure within its window.
func TestARewriteKnowsWhatTheClockMayBe(t *testing.T) {
	s := open(t, Config{})
	write(t, s, "1")
	sent := time.Now()
	var clock int64
	if err := connect(t, s).QueryRow(t.Context(), `SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint`).Scan(&clock); err != nil {
		t.Fatal(err)
	}
	s.versions.tell(clock-20, s.versions.file, sent.Add(-21*time.Millisecond), sent)
	var asked engine.Snapshot
	if err := s.Update(t.Context(), batch("a", "b"), func(snap engine.Snapshot) engine.Changes {
		if snap.Until > 0 { // on a busy machine it may be too late for that, and is asked again
			asked = snap
		}
		return set("2")(snap)
	}); err != nil {
		t.Fatal(err)
	}
	if asked.Until == 0 || asked.Now > asked.Latest || asked.Latest < clock || asked.Until < asked.Latest {
		t.Errorf("at %d or later: decided at %d to %d, for a write until %d", clock, asked.Now, asked.Latest, asked.Until)
	}
}
