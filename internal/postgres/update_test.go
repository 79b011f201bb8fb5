package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// decideCounter decides as set does, and counts its optimistic calls and those in turn.
type decideCounter struct {
	optimistic, inTurn int
	saw                string
}

func (w *decideCounter) set(state string) func(engine.Snapshot) engine.Changes {
	return func(snap engine.Snapshot) engine.Changes {
		if snap.Until > 0 {
			w.optimistic++
		} else {
			w.inTurn++
		}
		w.saw = string(snap.States[0])
		return set(state)(snap)
	}
}

func (w *decideCounter) String() string {
	return fmt.Sprintf("decided %d times optimistically, %d times in turn, saw %q", w.optimistic, w.inTurn, w.saw)
}

func write(t *testing.T, s *Store, state string) string {
	t.Helper()
	var w decideCounter
	update(t, s, batch("a", "b"), w.set(state))
	return w.String()
}

const (
	optimistic      = "decided 1 times optimistically, 0 times in turn, saw %q"
	inTurn          = "decided 0 times optimistically, 1 times in turn, saw %q"
	staleThenInTurn = "decided 1 times optimistically, 1 times in turn, saw %q"
)

// undisturbed plays a scenario until all that it expects is so, five times at most: if the process is held up between two
// transactions, the clock has moved on by more than was estimated, and what was decided before the turn is decided again.
func undisturbed(t *testing.T, scenario func(expect func(what, got, want, saw string))) {
	t.Helper()
	var wrong []string
	for range 5 {
		wrong = nil
		scenario(func(what, got, want, saw string) {
			if want = fmt.Sprintf(want, saw); got != want {
				wrong = append(wrong, fmt.Sprintf("%s: %s; want %s", what, got, want))
			}
		})
		if len(wrong) == 0 {
			return
		}
	}
	t.Error(strings.Join(wrong, "\n"))
}

// twoStores opens two stores of one database, as two workers do.
func twoStores(t *testing.T) (a, b *Store) {
	t.Helper()
	a = open(t, Config{})
	return a, open(t, Config{URL: a.pool.Config().ConnString()})
}

func TestSoleWriterDecidesOptimistically(t *testing.T) {
	undisturbed(t, func(expect func(what, got, want, saw string)) {
		s := open(t, Config{})
		expect("new rows", write(t, s, "1"), inTurn, "")
		expect("after that", write(t, s, "2"), optimistic, "1")
		expect("and again", write(t, s, "3"), optimistic, "2")
		if got := state(t, s, "b"); got != "3" {
			t.Errorf("state %q", got)
		}
	})
}

func TestWritesOfOtherWorkersAreReadInTurn(t *testing.T) {
	undisturbed(t, func(expect func(what, got, want, saw string)) {
		s, other := twoStores(t)
		write(t, s, "1")
		update(t, other, batch("b"), set("other"))
		expect("one row of two changed", write(t, s, "2"), staleThenInTurn, "1")
		if a, b := state(t, other, "a"), state(t, other, "b"); a != "2" || b != "2" {
			t.Errorf("states %q and %q", a, b)
		}
		// The next one takes its turn at once, since another worker writes; the one after it is
		// optimistic again.
		expect("after a failure", write(t, s, "3"), inTurn, "2")
		expect("then", write(t, s, "4"), optimistic, "3")
		// That one succeeded, so a further failure costs no more than the first.
		update(t, other, batch("b"), set("other"))
		expect("another row changed", write(t, s, "5"), staleThenInTurn, "4")
		expect("after another failure", write(t, s, "6"), inTurn, "5")
		expect("then", write(t, s, "7"), optimistic, "6")
	})
}

// once decides as set does and writes a receipt for each id, if none is stored.
func (w *decideCounter) once(ids []string, state string) func(engine.Snapshot) engine.Changes {
	decide := w.set(state)
	return func(snap engine.Snapshot) (c engine.Changes) {
		for _, known := range snap.Receipts {
			if known != nil {
				w.saw = "a receipt"
				w.inTurn++
				return c
			}
		}
		c = decide(snap)
		for _, id := range ids {
			c.Receipts = append(c.Receipts, engine.Receipt{ID: id, Answer: []byte("{}"), ExpiresAt: 1 << 45})
		}
		return c
	}
}

// TestNewIDsAreDecidedOptimistically: that their receipts can be inserted proves that the ids are new. One that is not costs one
// attempt, after which some more batches with ids take their turn.
func TestNewIDsAreDecidedOptimistically(t *testing.T) {
	undisturbed(t, func(expect func(what, got, want, saw string)) {
		s := open(t, Config{})
		var consumes []string
		once := func(state string, ids ...string) string {
			var w decideCounter
			b := batch("a", "b")
			b.IDs, b.ConsumeIDs = ids, consumes
			update(t, s, b, w.once(ids, state))
			return w.String()
		}
		write(t, s, "1")
		expect("new ids", once("2", "x", "y"), optimistic, "1")
		expect("one of them again", once("3", "w", "y"), staleThenInTurn, "a receipt")
		if got := state(t, s, "a"); got != "2" {
			t.Errorf("state %q after a repeat; want %q", got, "2")
		}
		expect("another id after that", once("4", "w"), inTurn, "2")
		expect("no id", write(t, s, "5"), optimistic, "4")
		expect("then", once("6", "z"), optimistic, "5")
		consumes = []string{"x", "y"}
		expect("a settle", once("7", "settle x", "settle y"), optimistic, "6")
	})
}

// TestIDWithoutReceiptIsReadInTurn: nothing would prove that such an id is new.
func TestIDWithoutReceiptIsReadInTurn(t *testing.T) {
	undisturbed(t, func(expect func(what, got, want, saw string)) {
		s := open(t, Config{})
		write(t, s, "1")
		var w decideCounter
		b := batch("a", "b")
		b.IDs = []string{"x", "y"}
		update(t, s, b, w.once([]string{"x"}, "2"))
		expect("one receipt of two", w.String(), staleThenInTurn, "1")
	})
}

// TestOnlyWhatIsDecidedIsBroadcast: a refund is decided twice, the first time as though its id were new. Other workers hear of it
// once, and nothing of one that is repeated.
func TestOnlyWhatIsDecidedIsBroadcast(t *testing.T) {
	t.Parallel()
	told := 0
	e, err := engine.New(t.Context(), engine.Config{
		Store: open(t, Config{}), NewID: rand.Text, Deadline: time.Minute, Broadcast: func(engine.Forget) { told++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	window, err := engine.ParseWindow("1h")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(verb engine.Verb, id string) {
		t.Helper()
		limit := engine.Limit{CounterID: engine.CounterID{Key: "a", Name: "1h"}, Limit: 100, Window: window}
		if d, err := e.Do(t.Context(), &engine.Request{Verb: verb, ID: id, Cost: 1, Limits: []engine.Limit{limit}}); err != nil || d.Degraded {
			t.Fatal(d, err)
		}
	}
	for i := range 5 {
		ask(engine.Consume, fmt.Sprint("consume ", i))
	}
	for i := range 3 {
		for range 3 {
			ask(engine.Refund, fmt.Sprint("refund ", i))
		}
	}
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if told != 3 {
		t.Errorf("told of %d refunds; want 3", told)
	}
}

// TestCanceledDecisionIsNotInDoubt: nothing was sent, so the journal is not searched for it.
func TestCanceledDecisionIsNotInDoubt(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	s := open(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	stopFoldLoop(s)
	write(t, s, "1")
	for name, skips := range map[string]int{"optimistic": 0, "in turn": 1} {
		s.optimistic.skips = skips
		ctx, cancel := context.WithCancel(t.Context())
		err := s.Update(ctx, batch("a", "b"), func(snap engine.Snapshot) engine.Changes {
			cancel()
			return set("2")(snap)
		})
		if !errors.Is(err, context.Canceled) || log.Len() > 0 {
			t.Errorf("%s: %v; logged %q", name, err, log.String())
		}
	}
}

func TestOptimisticDecisionIsStaleIfClockIsOff(t *testing.T) {
	undisturbed(t, func(expect func(what, got, want, saw string)) {
		s := open(t, Config{})
		for _, off := range []int64{-60_000, 60_000} {
			write(t, s, "1")
			s.optimistic.skips = 0
			write(t, s, "1")
			s.clock.now += off
			expect(fmt.Sprintf("a clock %d ms off", off), write(t, s, "2"), staleThenInTurn, "1")
		}
	})
}

func TestOptimisticDecisionStoresEvents(t *testing.T) {
	s := open(t, Config{})
	write(t, s, "1")
	update(t, s, batch("a", "b"), func(snap engine.Snapshot) engine.Changes {
		c := set("2")(snap)
		c.Events = []engine.Event{{ID: "e", Type: engine.EventWarning, Key: "a"}}
		if snap.Until == 0 {
			t.Error("asked in turn")
		}
		return c
	})
	n, err := s.Relay(t.Context(), 10, func(_ context.Context, events []engine.Event) ([]string, error) {
		return []string{events[0].ID}, nil
	})
	if n != 1 || err != nil {
		t.Errorf("relayed %d, %v", n, err)
	}
}

// A decision that another worker has overtaken writes nothing, and above all no events.
func TestStaleDecisionStoresNoEvents(t *testing.T) {
	s, other := twoStores(t)
	write(t, s, "1")
	write(t, other, "2")
	asked := 0
	err := s.Update(t.Context(), batch("a", "b"), func(snap engine.Snapshot) engine.Changes {
		asked++
		c := set("3")(snap)
		c.Events = []engine.Event{{ID: fmt.Sprint(asked), Type: engine.EventWarning, Key: "a"}}
		return c
	})
	if n, countErr := s.Backlog(t.Context()); err != nil || countErr != nil || asked != 2 || n != 1 {
		t.Errorf("asked %d times, %d events, %v, %v; want 2 and 1", asked, n, err, countErr)
	}
}

func TestUnsureDecisionIsRepeatedInTurn(t *testing.T) {
	s := open(t, Config{})
	write(t, s, "1")
	var w decideCounter
	update(t, s, batch("a", "b"), func(snap engine.Snapshot) engine.Changes {
		c := w.set("2")(snap)
		c.Unsure = snap.Until > 0
		return c
	})
	if got, want := w.String(), fmt.Sprintf(staleThenInTurn, "1"); got != want {
		t.Errorf("%s; want %s", got, want)
	}
}

// TestDecisionIsWrittenAsLongAsItHolds: if that is too short for an attempt, or over before the attempt
// reaches the server, it is repeated in turn.
func TestDecisionIsWrittenAsLongAsItHolds(t *testing.T) {
	s := open(t, Config{})
	undisturbed(t, func(expect func(what, got, want, saw string)) {
		write(t, s, "1")
		briefly := func(what string, margin int64, wait time.Duration, want string) {
			var w decideCounter
			update(t, s, batch("a", "b"), func(snap engine.Snapshot) engine.Changes {
				c := w.set("1")(snap)
				if snap.Until > 0 {
					c.Until = snap.Latest + margin
					time.Sleep(wait)
				}
				return c
			})
			expect(what, w.String(), want, "1")
		}
		briefly("nearly as long as any", clockMargin-1, 0, optimistic)
		briefly("for a moment", leastMargin-1, 0, staleThenInTurn)
		briefly("until it is written", leastMargin, 2*leastMargin*time.Millisecond, staleThenInTurn)
	})
}

// A slow reading of the clock is imprecise: what is lent by it must certainly end within its
// window.
func TestOptimisticDecisionKnowsClockRange(t *testing.T) {
	s := open(t, Config{})
	write(t, s, "1")
	sent := time.Now()
	var clock int64
	scan(t, connect(t, s), `SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint`, &clock)
	s.clock.record(clock-20, sent.Add(-21*time.Millisecond), sent)
	var asked engine.Snapshot
	if err := s.Update(t.Context(), batch("a", "b"), func(snap engine.Snapshot) engine.Changes {
		if snap.Until > 0 { // on a busy machine it may be too late, and decide is called again
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

// awaitTurn returns a turn that was taken before the batch is known, as a worker does while others
// write.
func awaitTurn(t *testing.T, s *Store) engine.Turn {
	t.Helper()
	s.optimistic.skips = 1
	turn := s.Await(t.Context())
	if turn == nil {
		t.Fatal("no turn")
	}
	return turn
}

func TestAwaitedTurnExcludesOtherWriters(t *testing.T) {
	s, other := twoStores(t)
	write(t, s, "1")
	b := batch("a", "b", "new")
	b.Turn = awaitTurn(t, s)
	done := make(chan error, 1)
	go func() { done <- other.Update(t.Context(), batch("a"), set("other")) }()
	waitForLock(t, s)
	update(t, s, b, set("2"))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"a": "other", "b": "2", "new": "2"} {
		if got := state(t, s, key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	awaitTurn(t, s).End()
	if err := other.Update(t.Context(), batch("a"), set("3")); err != nil {
		t.Errorf("update after a turn that was given back: %v", err)
	}
}

// Requests that gather in a turn may have arrived after the clock was read. So a decision has a
// range of time, and is made again at an exact time if that matters.
func TestAwaitedTurnDecidesAfterRequestsArrive(t *testing.T) {
	s := open(t, Config{})
	write(t, s, "1")
	for _, unsure := range []bool{false, true} {
		b := batch("a", "b")
		b.Turn = awaitTurn(t, s)
		var clock int64 // when the requests arrive
		scan(t, connect(t, s), `SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint`, &clock)
		var asked []engine.Snapshot
		if err := s.Update(t.Context(), b, func(snap engine.Snapshot) engine.Changes {
			asked = append(asked, snap)
			c := set("2")(snap)
			c.Unsure = unsure && snap.Until > 0
			return c
		}); err != nil {
			t.Fatal(err)
		}
		first, last := asked[0], asked[len(asked)-1]
		if first.Latest < clock || first.Until < first.Latest || first.Now > first.Latest {
			t.Errorf("at %d or later: decided at %d to %d, for a write until %d", clock, first.Now, first.Latest, first.Until)
		}
		if unsure && (len(asked) != 2 || last.Until != 0 || last.Now < clock) {
			t.Errorf("at %d or later: decided again %d times, at %d", clock, len(asked)-1, last.Now)
		}
	}
}

// TestLostTurnIsNoticed, also by a batch that only reads the clock: another worker may have written
// since.
func TestLostTurnIsNoticed(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	write(t, s, "1")
	var b engine.Batch
	b.Turn = awaitTurn(t, s)
	terminate(t, connect(t, s), "state = 'idle in transaction'")
	err := s.Update(t.Context(), b, func(engine.Snapshot) engine.Changes {
		t.Error("a decision was made")
		return engine.Changes{}
	})
	if err == nil {
		t.Error("no error")
	}
}

// A statement sees the journal as of its turn: the row that it expects to be the last may be gone
// by then, together with later ones.
func TestJournalRowIsNotAppendedToDeletedRows(t *testing.T) {
	s := open(t, Config{lockTimeout: 10 * time.Second})
	stopFoldLoop(s)
	write(t, s, "1")
	write(t, s, "2")
	s.clock.record(s.clock.now, time.Now().Add(-5*time.Second), time.Now()) // so that the decision may be late
	other := begin(t, s, turnSQL)
	asked := make(chan string)
	go func() { asked <- write(t, s, "3") }()
	waitForLock(t, s)
	for _, sql := range []string{
		`INSERT INTO journal SELECT max(seq) + n, n, '' FROM journal, generate_series(1, 2) n GROUP BY n`,
		`DELETE FROM journal WHERE seq < (SELECT max(seq) FROM journal)`,
	} {
		exec(t, other, sql)
	}
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-asked; !strings.HasPrefix(got, "decided 1 times optimistically, 1 times in turn") {
		t.Error(got)
	}
}

// TestSessionsOverrideDatabaseDefaults has a database whose defaults would break single statements
// outside of a transaction.
func TestSessionsOverrideDatabaseDefaults(t *testing.T) {
	s := open(t, Config{})
	for _, name := range []string{"default_transaction_read_only = on", "default_transaction_isolation = serializable"} {
		exec(t, connect(t, s), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET `+name+`', current_database()); END $$`)
		behind := open(t, Config{URL: s.pool.Config().ConnString()})
		for _, state := range []string{"1", "2"} {
			if err := behind.Update(t.Context(), batch("a"), set(state)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		var isolation string
		if err := behind.pool.QueryRow(t.Context(), `SHOW transaction_isolation`).Scan(&isolation); err != nil || isolation != "read committed" {
			t.Errorf("%s: %s, %v", name, isolation, err)
		}
		exec(t, behind.pool, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET ALL', current_database()); END $$`)
	}
}

// TestDamagedReceiptIsAnError: with a part of its fingerprint, another request could be taken for
// the first one with its id.
func TestDamagedReceiptIsAnError(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	update(t, s, engine.Batch{}, func(engine.Snapshot) engine.Changes {
		return engine.Changes{Receipts: []engine.Receipt{{ID: "a", ExpiresAt: 1 << 45}}}
	})
	exec(t, connect(t, s), `UPDATE receipts SET fingerprint = '\x00'`)
	err := s.Update(t.Context(), engine.Batch{IDs: []string{"a"}}, func(engine.Snapshot) engine.Changes {
		t.Error("a decision was made over it")
		return engine.Changes{}
	})
	if err == nil || !strings.Contains(err.Error(), `receipt "a" has a fingerprint of 1 bytes`) {
		t.Error(err)
	}
}
