package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestTheFateOfACommitIsFoundOut has the connection go while a transaction is committed, before or after the server has heard of it:
// one that stands is answered as such, and one that does not may be run again.
func TestTheFateOfACommitIsFoundOut(t *testing.T) {
	t.Parallel()
	for name, way := range map[string]func(t *testing.T, s *Store) engine.Turn{
		"over what is remembered": func(*testing.T, *Store) engine.Turn { return nil },
		"in turn": func(_ *testing.T, s *Store) engine.Turn {
			s.skip = 1
			return nil
		},
		"in a turn that was waited for": func(t *testing.T, s *Store) engine.Turn {
			s.skip = 1
			turn := s.Await(t.Context())
			if turn == nil {
				t.Fatal("no turn was given")
			}
			return turn
		},
	} {
		for _, committed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, committed %v", name, committed), func(t *testing.T) {
				t.Parallel()
				direct := testenv.Postgres(t, Migrate)
				proxy := startProxy(t, direct)
				s := open(t, Config{URL: proxy.url})
				if err := s.Update(t.Context(), batch("a"), set("before")); err != nil {
					t.Fatal(err)
				}
				b, decided := batch("a"), 0
				b.Turn = way(t, s)
				err := s.Update(t.Context(), b, func(snap engine.Snapshot) engine.Changes {
					decided++
					if committed {
						proxy.loseAnswers()
					} else {
						proxy.loseRequests()
					}
					return set("after")(snap)
				})
				want := "after"
				if committed && err != nil {
					t.Errorf("the transaction that stands: %v", err)
				}
				if !committed {
					want = "before"
					if !errors.Is(err, engine.ErrConflict) || errors.Is(err, engine.ErrCommitUnknown) {
						t.Errorf("the transaction that does not: %v", err)
					}
				}
				if decided != 1 {
					t.Errorf("decided %d times", decided)
				}
				for where, other := range map[string]*Store{"this worker": s, "another": open(t, Config{URL: direct})} {
					if got := state(t, other, "a"); got != want {
						t.Errorf("to %s the state is %q, want %q", where, got, want)
					}
				}
				err = s.Update(t.Context(), batch("a"), func(snap engine.Snapshot) engine.Changes {
					return set(string(snap.States[0]) + ", then")(snap)
				})
				if got := state(t, s, "a"); err != nil || got != want+", then" {
					t.Errorf("the next decision: %q, %v", got, err)
				}
			})
		}
	}
}

// TestTheFateOfACommitBehindItsDeadline: a process that was stopped meanwhile finds that it has no time left, and its answer lost.
func TestTheFateOfACommitBehindItsDeadline(t *testing.T) {
	t.Parallel()
	direct := testenv.Postgres(t, Migrate)
	proxy := startProxy(t, direct)
	s := open(t, Config{URL: proxy.url})
	if err := s.Update(t.Context(), batch("a"), set("before")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := s.Update(ctx, batch("a"), func(snap engine.Snapshot) engine.Changes {
		proxy.onAnswer(cancel)
		return set("after")(snap)
	})
	if got := state(t, s, "a"); err != nil || got != "after" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestAFateThatTheJournalTellsNoMore: what others have folded is not there any more.
func TestAFateThatTheJournalTellsNoMore(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	for range 3 {
		if err := s.Update(t.Context(), batch("a"), set("1")); err != nil {
			t.Fatal(err)
		}
	}
	s.foldAll()
	lost := unknown("commit", errors.New("cut"))
	for name, c := range map[string]struct {
		doubt doubt
		want  error
	}{
		"the row is gone":          {doubt{seq: s.first - 1, token: 7, until: endOfTime}, engine.ErrCommitUnknown},
		"another's row is there":   {doubt{seq: s.seq, token: s.token + 1, until: endOfTime}, engine.ErrConflict},
		"no row was written there": {doubt{seq: s.seq + 1, token: 7, until: endOfTime}, engine.ErrConflict},
		"its row is there":         {doubt{seq: s.seq, token: s.token, until: endOfTime}, nil},
	} {
		s.forgetAll()
		s.doubt = c.doubt
		err := s.fate(t.Context(), lost)
		if !errors.Is(err, c.want) || errors.Is(err, engine.ErrCommitUnknown) != (c.want == engine.ErrCommitUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNothingIsInDoubtForLong asks without ids over connections that are cut all the time, each time in the middle of a transaction:
// what is charged is what was allowed, and nobody is answered without the store.
func TestNothingIsInDoubtForLong(t *testing.T) {
	t.Parallel()
	direct := testenv.Postgres(t, Migrate)
	proxy := startProxy(t, direct)
	e, err := engine.New(t.Context(), engine.Config{Store: open(t, Config{URL: proxy.url}), NewID: rand.Text, Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	window, err := engine.ParseWindow("1h")
	if err != nil {
		t.Fatal(err)
	}
	limit := engine.Limit{CounterID: engine.CounterID{Key: "a", Name: "1h"}, Limit: 1_000_000, Window: window}
	const askers, each, cutEvery = 8, 100, 20
	var answered, degraded atomic.Int64
	var all sync.WaitGroup
	for range askers {
		all.Go(func() {
			for range each {
				d, err := e.Do(t.Context(), &engine.Request{Verb: engine.Consume, Cost: 1, Limits: []engine.Limit{limit}})
				if err != nil || !d.Allowed || d.Degraded {
					degraded.Add(1)
				}
				switch n := answered.Add(1); n % (2 * cutEvery) {
				case 0:
					proxy.loseAnswers()
				case cutEvery:
					proxy.loseRequests()
				}
			}
		})
	}
	all.Wait()
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	other, err := engine.New(t.Context(), engine.Config{Store: open(t, Config{URL: direct}), NewID: rand.Text})
	if err != nil {
		t.Fatal(err)
	}
	counters, err := other.Status(t.Context(), "a")
	if err != nil || len(counters) != 1 || counters[0].Used != askers*each || degraded.Load() > 0 {
		t.Errorf("%+v, %v; want %d used, and %d were answered without the store", counters, err, askers*each, degraded.Load())
	}
	if err := other.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
