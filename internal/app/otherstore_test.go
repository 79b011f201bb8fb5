package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
	"github.com/seed503877ad/limits/internal/testenv"
)

const otherStore = "uses a different store"

// serving runs a limiter on a NATS server, and returns its log when it is ready.
func serving(t *testing.T, natsURL, databaseURL string) *watcher {
	t.Helper()
	o := options(t)
	o.NATSURL, o.DatabaseURL = natsURL, databaseURL
	return running(t, Run, o).log
}

// readiness returns a limiter's answer to /readyz.
func readiness(t *testing.T, log *watcher) (ready bool, why string) {
	t.Helper()
	status, body := get(t, "http://"+log.at["http"]+"/readyz")
	return status == http.StatusOK, body
}

func TestLimitersWithDifferentStoresAreNotReady(t *testing.T) {
	t.Parallel()
	natsURL, databaseURL := testenv.NATS(t).ClientURL(), testenv.Postgres(t)
	first, second := serving(t, natsURL, databaseURL), serving(t, natsURL, databaseURL)
	for _, log := range []*watcher{first, second} {
		if text := log.String(); strings.Contains(text, otherStore) {
			t.Errorf("two on one database:\n%s", text)
		}
	}
	for _, log := range []*watcher{first, second} {
		if ready, why := readiness(t, log); !ready {
			t.Errorf("two on one database: %s", why)
		}
	}
	third, began := serving(t, natsURL, ""), time.Now()
	for _, log := range []*watcher{first, second, third} {
		log.await(t, otherStore)
		if took := time.Since(began); took > announceEvery/2 { // those that run already answer a new one
			t.Errorf("it took %s", took)
		}
		if ready, why := readiness(t, log); ready || !strings.Contains(why, otherStore) {
			t.Errorf("beside another store: %s", why)
		}
	}
	copied := serving(t, natsURL, testenv.Postgres(t))
	copied.await(t, otherStore)
}

// TestWorkersFollowADatabaseThatMoves: one that starts after the move finds those that run already on its own store, and
// stands by for them.
func TestWorkersFollowADatabaseThatMoves(t *testing.T) {
	t.Parallel()
	natsURL, databaseURL := testenv.NATS(t).ClientURL(), testenv.Postgres(t)
	all := []*watcher{serving(t, natsURL, databaseURL), serving(t, natsURL, databaseURL)}
	swap(t, databaseURL, testenv.Postgres(t))
	all = append(all, serving(t, natsURL, databaseURL))
	for _, log := range all[:2] {
		log.await(t, "lead to another database")
	}
	all[2].await(t, "this worker now stands by")
	for i, log := range all {
		if text := log.String(); strings.Contains(text, otherStore) {
			t.Errorf("worker %d:\n%s", i, text)
		}
		if ready, why := readiness(t, log); !ready && strings.Contains(why, otherStore) {
			t.Errorf("worker %d: %s", i, why)
		}
	}
}

// swap gives each of two databases the name of the other, and ends their connections, so that clients find another
// database when they connect again.
func swap(t *testing.T, a, b string) {
	t.Helper()
	cfg, err := pgx.ParseConfig(a)
	if err != nil {
		t.Fatal(err)
	}
	first := cfg.Database
	other, err := pgx.ParseConfig(b)
	if err != nil {
		t.Fatal(err)
	}
	second := other.Database
	cfg.Database = "postgres"
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for _, query := range []string{
		"ALTER DATABASE " + first + " ALLOW_CONNECTIONS false",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname IN ('" + first + "', '" + second + "')",
		"ALTER DATABASE " + first + " RENAME TO " + first + "_moved",
		"ALTER DATABASE " + second + " RENAME TO " + first,
		"ALTER DATABASE " + first + "_moved RENAME TO " + second,
		"ALTER DATABASE " + second + " ALLOW_CONNECTIONS true",
	} {
		if _, err := conn.Exec(t.Context(), query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
}

// movable is a store that may be moved, and may not answer.
type movable struct {
	store
	id    atomic.Value // a string; empty while it does not answer
	asked atomic.Int64
	// The last row of its journal; without a token it has none.
	seq, token atomic.Int64
}

func (m *movable) Identity(context.Context) (string, error) {
	m.asked.Add(1)
	if id := m.id.Load().(string); id != "" {
		return "sqlite " + id, nil
	}
	return "", errors.New("the store is away")
}

func (m *movable) LastJournalRow(context.Context) (seq, token int64, err error) {
	return m.seq.Load(), m.token.Load(), nil
}

func (m *movable) OtherJournal(_ context.Context, seqs, tokens []int64) (other bool, err error) {
	for i, seq := range seqs {
		other = other || seq > m.seq.Load() || seq == m.seq.Load() && tokens[i] != m.token.Load()
	}
	return other, nil
}

// watching is a limiter that watches for other stores.
type watching struct {
	*limiter
	store *movable
	lines *watcher
	heard chan bus.StoreState
}

func newWatching(t *testing.T, id string) watching {
	s, log := &movable{store: eachstore.SQLite(t, nil)}, newWatcher()
	s.id.Store(id)
	e, err := engine.New(t.Context(), engine.Config{Store: s, NewID: rand.Text})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close(context.Background()) })
	l := &limiter{store: s, engine: e, log: slog.New(log)}
	l.serving.Store(true)
	if _, err := l.identifyStore(t.Context()); err != nil {
		t.Fatal(err)
	}
	return watching{l, s, log, make(chan bus.StoreState, maxOtherStores)}
}

// start starts it; what it announces goes to all.
func (w watching) start(t *testing.T, all ...watching) {
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		w.announceStore(ctx, func(s bus.StoreState) {
			for _, other := range all {
				other.heardStore(s, other.heard)
			}
		}, w.heard)
	})
	t.Cleanup(func() { cancel(); done.Wait() })
}

// TestStoreIsIdentifiedAgain with each announcement, and before another one counts as different.
func TestStoreIsIdentifiedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := []watching{newWatching(t, "first"), newWatching(t, "first")}
		for _, w := range all {
			w.start(t, all...)
		}
		for _, step := range []struct {
			what      string
			ids       [2]string
			after     time.Duration
			different bool
		}{
			{"at the start", [2]string{"first", "first"}, 0, false},
			{"both moved", [2]string{"second", "second"}, 5 * announceEvery, false},
			{"one cannot tell", [2]string{"third", ""}, 5 * announceEvery, false},
			{"it has moved, too", [2]string{"third", "third"}, 5 * announceEvery, false},
			{"only one moved", [2]string{"third", "copy"}, announceEvery + 2*checkPause, true},
			{"it still does", [2]string{"third", "copy"}, 5 * announceEvery, true},
			{"it moved back", [2]string{"third", "third"}, announceEvery + otherStoreTTL, false},
		} {
			for i, w := range all {
				w.store.id.Store(step.ids[i])
			}
			time.Sleep(step.after)
			synctest.Wait()
			for i, w := range all {
				if err := w.storeHealthy(t.Context()); errors.Is(err, errOtherStore) != step.different {
					t.Errorf("%s: limiter %d: %v", step.what, i, err)
				}
			}
		}
	})
}

// TestManyAnnouncementsAskTheStoreOnceASecond: anybody who may publish there can send them.
func TestManyAnnouncementsAskTheStoreOnceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatching(t, "own")
		w.start(t)
		before := w.store.asked.Load()
		for range 10_000 {
			w.heardStore(bus.StoreState{ID: "postgres other"}, w.heard)
			time.Sleep(time.Millisecond)
		}
		if n := w.store.asked.Load() - before; n > 11 {
			t.Errorf("asked %d times in 10 s", n)
		}
	})
}

// TestWhatNamesNoStoreIsNotHeard, such as an answer to $SRV.PING that goes to the subject of announcements: it has an id.
func TestWhatNamesNoStoreIsNotHeard(t *testing.T) {
	t.Parallel()
	w := newWatching(t, "own")
	for _, id := range []string{"", "7JbZ6QjT11Gy31GspYvWys", "limits", "own"} {
		w.heardStore(bus.StoreState{ID: id, Token: 1}, w.heard)
	}
	w.heardStore(bus.StoreState{ID: "sqlite own"}, w.heard)
	if n := len(w.heard); n > 0 {
		t.Errorf("%d were heard, the first %+v", n, <-w.heard)
	}
	w.heardStore(bus.StoreState{ID: "postgres other"}, w.heard)
	w.heardStore(bus.StoreState{ID: "sqlite own", Token: 1}, w.heard)
	if n := len(w.heard); n != 2 {
		t.Errorf("%d were heard, want 2", n)
	}
}

// TestOtherStoreIsLoggedWhileItLasts: once a minute for each store, and for a bounded number of stores. A while after the last
// announcement this limiter is ready again.
func TestOtherStoreIsLoggedWhileItLasts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatching(t, "own")
		w.start(t)
		for _, step := range []struct {
			after time.Duration
			heard []string
			lines int
			want  error
		}{
			{0, nil, 0, nil},
			{0, []string{"a"}, 1, errOtherStore},
			{30 * time.Second, []string{"a"}, 1, errOtherStore},
			{checkPause, []string{"b"}, 2, errOtherStore},
			{30 * time.Second, []string{"a"}, 3, errOtherStore},
			{otherStoreTTL - time.Second, nil, 3, errOtherStore},
			{time.Second, nil, 3, nil},
			{0, slices.Collect(numbered(100)), 3 + maxOtherStores, errOtherStore},
		} {
			time.Sleep(step.after)
			for _, id := range step.heard {
				w.heard <- bus.StoreState{ID: id}
			}
			synctest.Wait()
			if n := strings.Count(w.lines.String(), otherStore); n != step.lines {
				t.Errorf("%s later, after %.3q: %d lines, want %d", step.after, step.heard, n, step.lines)
			}
			if err := w.storeHealthy(t.Context()); !errors.Is(err, step.want) {
				t.Errorf("%s later, after %.3q: %v, want %v", step.after, step.heard, err, step.want)
			}
		}
	})
}

// TestOtherStoreIsForgottenByTheMonotonicClock: if the clock is set back, the limiter must not be unready for as long.
func TestOtherStoreIsForgottenByTheMonotonicClock(t *testing.T) {
	t.Parallel()
	w := newWatching(t, "own")
	w.judge(t.Context(), []bus.StoreState{{ID: "other"}}, &otherStores{logged: map[string]time.Time{}})
	if at := *w.otherStoreSeen.Load(); at == at.Round(0) {
		t.Errorf("%s has no monotonic clock", at)
	}
}

// numbered yields n names.
func numbered(n int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range n {
			if !yield(fmt.Sprint("store ", i)) {
				return
			}
		}
	}
}

// TestCopyOfAStoreIsNoticed by the limiter whose journal has fewer rows, or another row of that number. A journal that has
// lost its last rows is no copy.
func TestCopyOfAStoreIsNoticed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := []watching{newWatching(t, "store"), newWatching(t, "store")}
		for _, w := range all {
			w.start(t, all...)
		}
		for _, step := range []struct {
			what         string
			seqs, tokens [2]int64
			after        time.Duration
			noticed      [2]bool
		}{
			{"one store", [2]int64{10, 10}, [2]int64{1, 1}, 5 * announceEvery, [2]bool{}},
			{"a backup of it was restored", [2]int64{5, 5}, [2]int64{2, 2}, 2 * checkPause, [2]bool{}},
			{"it goes on", [2]int64{6, 6}, [2]int64{2, 2}, 2 * announceEvery, [2]bool{}},
			{"a copy that stays behind, at first", [2]int64{7, 6}, [2]int64{3, 4}, announceEvery, [2]bool{}},
			{"a copy that stays behind", [2]int64{8, 6}, [2]int64{5, 4}, 3 * announceEvery, [2]bool{false, true}},
			{"it is gone", [2]int64{8, 8}, [2]int64{5, 5}, announceEvery + otherStoreTTL, [2]bool{}},
			{"a copy that is as long", [2]int64{9, 9}, [2]int64{6, 7}, 3 * announceEvery, [2]bool{true, true}},
		} {
			late := all[0].storeState(t.Context())
			for i, w := range all {
				w.store.seq.Store(step.seqs[i])
				w.store.token.Store(step.tokens[i])
			}
			if late.Seq > step.seqs[1] { // it was on its way
				all[1].heardStore(late, all[1].heard)
			}
			time.Sleep(step.after)
			synctest.Wait()
			for i, w := range all {
				if err := w.storeHealthy(t.Context()); errors.Is(err, errOtherStore) != step.noticed[i] {
					t.Errorf("%s: limiter %d: %v", step.what, i, err)
				}
			}
		}
	})
}
