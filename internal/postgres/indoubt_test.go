package postgres

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestCommitOutcomeIsResolved has the connection break during a commit, before or after the
// server has received it: a committed transaction is answered as such, another one may run again.
func TestCommitOutcomeIsResolved(t *testing.T) {
	t.Parallel()
	for name, way := range map[string]func(t *testing.T, s *Store) engine.Turn{
		"optimistic": func(*testing.T, *Store) engine.Turn { return nil },
		"in turn": func(_ *testing.T, s *Store) engine.Turn {
			s.optimistic.skips = 1
			return nil
		},
		"in an awaited turn": func(t *testing.T, s *Store) engine.Turn {
			s.optimistic.skips = 1
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
				findOut(t, way, committed)
			})
		}
	}
}

func findOut(t *testing.T, way func(t *testing.T, s *Store) engine.Turn, committed bool) {
	t.Helper()
	direct := testenv.Postgres(t)
	proxy := startProxy(t, direct)
	s := open(t, Config{URL: proxy.url})
	update(t, s, batch("a"), set("before"))
	b, decided := batch("a"), 0
	b.Turn = way(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := s.Update(ctx, b, func(snap engine.Snapshot) engine.Changes {
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
		t.Errorf("the committed transaction: %v", err)
	}
	if !committed {
		want = "before"
		if !errors.Is(err, engine.ErrConflict) || errors.Is(err, engine.ErrCommitUnknown) {
			t.Errorf("the transaction that was not committed: %v", err)
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
}

// TestOutcomeLookupIsRetried has the connections of the polls break, one after the other.
func TestOutcomeLookupIsRetried(t *testing.T) {
	t.Parallel()
	proxy := startProxy(t, testenv.Postgres(t))
	s := open(t, Config{URL: proxy.url})
	update(t, s, batch("a"), set("before"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := s.Update(ctx, batch("a"), func(snap engine.Snapshot) engine.Changes {
		proxy.loseAnswersOfNext(3)
		return set("after")(snap)
	})
	if got := state(t, s, "a"); err != nil || got != "after" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestLostAnswersAreLoggedOnce, while they go on: a network that breaks connections may lose hundreds.
func TestLostAnswersAreLoggedOnce(t *testing.T) {
	t.Parallel()
	proxy := startProxy(t, testenv.Postgres(t))
	var log bytes.Buffer
	s := open(t, Config{URL: proxy.url, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for range 5 {
		update(t, s, batch("a"), set("before"))
		// On a busy machine the server may see that the connection is gone before it has committed, or not say in time
		// what became of the commit.
		if err := s.Update(t.Context(), batch("a"), func(snap engine.Snapshot) engine.Changes {
			proxy.loseAnswers()
			return set("after")(snap)
		}); err != nil && !errors.Is(err, engine.ErrConflict) && !errors.Is(err, engine.ErrCommitUnknown) {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "the answer to a commit was lost"); n != 1 {
		t.Errorf("%d lines about 5 of them:\n%s", n, &log)
	}
}

// TestCommitOutcomeAfterDeadline: a process that was stopped finds its deadline passed and
// the answer lost.
func TestCommitOutcomeAfterDeadline(t *testing.T) {
	t.Parallel()
	direct := testenv.Postgres(t)
	proxy := startProxy(t, direct)
	s := open(t, Config{URL: proxy.url})
	update(t, s, batch("a"), set("before"))
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

// TestHangingServerIsNotAConflict: for the circuit breaker it has to remain a failure, though
// nothing was written.
func TestHangingServerIsNotAConflict(t *testing.T) {
	t.Parallel()
	proxy := startProxy(t, testenv.Postgres(t))
	s := open(t, Config{URL: proxy.url})
	update(t, s, batch("a"), set("before"))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := s.Update(ctx, batch("a"), func(snap engine.Snapshot) engine.Changes {
		proxy.swallow()
		return set("after")(snap)
	})
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, engine.ErrConflict) {
		t.Error(err)
	}
	if got := state(t, s, "a"); got != "before" {
		t.Errorf("the state is %q", got)
	}
}

// TestCommitOutcomeFromJournalRows: if others have folded and deleted the row, the outcome stays
// unknown.
func TestCommitOutcomeFromJournalRows(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	for range 3 {
		update(t, s, batch("a"), set("1"))
	}
	s.foldAll()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lost := commitUnknown("commit", errors.New("cut"))
	for name, c := range map[string]struct {
		doubt inDoubtCommit
		want  error
	}{
		"the row is gone":          {inDoubtCommit{seq: s.firstNeeded - 1, token: 7, deadline: endOfTime}, engine.ErrCommitUnknown},
		"another's row is there":   {inDoubtCommit{seq: s.lastSeq, token: s.lastToken + 1, deadline: endOfTime}, engine.ErrConflict},
		"no row was written there": {inDoubtCommit{seq: s.lastSeq + 1, token: 7, deadline: endOfTime}, engine.ErrConflict},
		"its row is there":         {inDoubtCommit{seq: s.lastSeq, token: s.lastToken, deadline: endOfTime}, nil},
	} {
		s.resetCache()
		s.inDoubt = c.doubt
		err := s.resolveInDoubt(ctx, lost)
		if !errors.Is(err, c.want) || errors.Is(err, engine.ErrCommitUnknown) != (c.want == engine.ErrCommitUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCommitOutcomeIsKnownOnceRowIsRead has the connection of the poll break at every point of the
// answer, and all later ones too: once the row was read, the outcome is known.
func TestCommitOutcomeIsKnownOnceRowIsRead(t *testing.T) {
	t.Parallel()
	direct := testenv.Postgres(t)
	proxy := startProxy(t, direct)
	s, other := open(t, Config{URL: proxy.url}), open(t, Config{URL: direct})
	setFoldPolicy(s, storetest.FoldPolicies[3])
	setFoldPolicy(other, storetest.FoldPolicies[3])
	known := 0
	for heard := 0; heard < 400; heard += 20 {
		state(t, s, "a")
		update(t, other, batch("a"), set("after"))
		s.inDoubt = inDoubtCommit{seq: other.lastSeq, token: other.lastToken, deadline: endOfTime}
		proxy.breakAnswers(heard)
		proxy.setCutting(true)
		err := s.resolveInDoubt(t.Context(), commitUnknown("commit", errors.New("cut")))
		proxy.setCutting(false)
		read := s.lastSeq == other.lastSeq
		if read {
			known++
		}
		if read != (err == nil) || !read && !errors.Is(err, engine.ErrCommitUnknown) {
			t.Errorf("%d bytes of the answer came, the row was read: %v; %v", heard, read, err)
		}
	}
	if known == 0 {
		t.Error("the row was never read")
	}
}

// TestLateCommitIsResolved: an optimistic transaction may arrive after a poll in turn, until its
// deadline.
func TestLateCommitIsResolved(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	setFoldPolicy(s, storetest.FoldPolicies[3])
	update(t, s, batch("a"), set("before"))
	watch := connect(t, s)
	waiting := func(n int) {
		t.Helper()
		for got := -1; got != n; {
			scan(t, watch, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, &got)
		}
	}
	held := begin(t, s, turnSQL)
	s.inDoubt = inDoubtCommit{seq: s.lastSeq + 1, token: 7, deadline: s.clock.now + time.Minute.Milliseconds()}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	fate := make(chan error, 1)
	seq := s.lastSeq + 1
	go func() { fate <- s.resolveInDoubt(ctx, commitUnknown("commit", errors.New("cut"))) }()
	waiting(1)
	late := connect(t, s)
	written := make(chan error, 1)
	go func() {
		var b pgx.Batch // a transaction
		b.Queue(turnSQL)
		b.Queue(`INSERT INTO journal VALUES ($1, 7, '')`, seq)
		written <- late.SendBatch(ctx, &b).Close()
	}()
	waiting(2)
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if err := <-fate; err != nil {
		t.Errorf("it was committed: %v", err)
	}
}

// TestCutConnectionsChargeExactlyWhatWasAllowed sends requests without ids over connections that
// are cut all the time, each in the middle of a transaction: exactly what was allowed is charged,
// and no request is answered without the store.
func TestCutConnectionsChargeExactlyWhatWasAllowed(t *testing.T) {
	t.Parallel()
	direct := testenv.Postgres(t)
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

// TestShortWriteIsNotConfirmed: the row is in the journal, but not everything that was decided was
// written.
func TestShortWriteIsNotConfirmed(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	conn := connect(t, s)
	exec(t, conn, `CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`)
	exec(t, conn, `CREATE TRIGGER skip BEFORE INSERT ON receipts FOR EACH ROW EXECUTE FUNCTION skip()`)
	err := s.Update(t.Context(), batch("a"), func(snap engine.Snapshot) engine.Changes {
		c := set("1")(snap)
		c.Receipts = []engine.Receipt{{ID: "a", ExpiresAt: 1 << 45}}
		return c
	})
	if !errors.Is(err, engine.ErrCommitUnknown) || !errors.Is(err, errRowCount) {
		t.Errorf("0 of 1 receipts were written: %v", err)
	}
}
