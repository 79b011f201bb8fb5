package overrides_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

func table(t testing.TB, cfg overrides.Config) *overrides.Table {
	t.Helper()
	table, err := overrides.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// id identifies the override of one limit for a subject.
func id(subject string) overrides.ID {
	return overrides.ID{Policy: "p", Name: "n", Subject: subject}
}

func set(t testing.TB, table *overrides.Table, subject string, limit, expiresAt int64) {
	t.Helper()
	if err := table.Put(t.Context(), overrides.Override{ID: id(subject), Limit: limit, ExpiresAt: expiresAt, Reason: "r"}); err != nil {
		t.Fatal(err)
	}
}

func want(t testing.TB, table *overrides.Table, subject string, now, limit int64) {
	t.Helper()
	o, ok := table.Find("p", "n", subject, now)
	if ok != (limit != 0) || o.Limit != limit {
		t.Errorf("%s at %d: limit %d, %t; want %d", subject, now, o.Limit, ok, limit)
	}
}

func TestFindTheMostSpecific(t *testing.T) {
	t.Parallel()
	table := table(t, overrides.Config{Store: eachstore.SQLite(t, nil)})
	if err := table.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, table, "api:user:7", 0, 0) // it knows that there are none
	set(t, table, "*", 1, 0)
	set(t, table, "api:*", 2, 0)
	set(t, table, "api:user:*", 3, 0)
	set(t, table, "api:*:7", 4, 0)
	set(t, table, "api:user:7", 5, 100)
	want(t, table, "api:user:7", 99, 5)  // the exact subject
	want(t, table, "api:user:7", 100, 3) // the exact one has expired: the longest glob
	want(t, table, "api:ip:7", 0, 4)
	want(t, table, "api:ip:8", 0, 2)
	want(t, table, "job", 0, 1)
	if _, ok := table.Find("p", "other", "job", 0); ok {
		t.Error("of another limit")
	}
	if _, ok := table.Find("q", "n", "job", 0); ok {
		t.Error("of another policy")
	}
	set(t, table, "api:user:*", 6, 0) // replaced
	want(t, table, "api:user:8", 0, 6)
	if found, err := table.Delete(t.Context(), id("api:user:*")); !found || err != nil {
		t.Errorf("delete: %t, %v", found, err)
	}
	want(t, table, "api:user:8", 0, 2)
	set(t, table, "api:user:*", 7, 100)
	want(t, table, "api:user:8", 99, 7)
	want(t, table, "api:user:8", 100, 2) // the longest glob has expired: the next
	limit := overrides.LimitID{Policy: "p", Name: "n"}
	for now, n := range map[int64]int{99: 5, 100: 3} {
		if got := table.Limits(now); len(got) != 1 || got[limit] != n {
			t.Errorf("in force at %d: %v; want %d", now, got, n)
		}
	}
}

// TestOverrideThatCameAndWentIsNotMissed by a table that has not seen it: the overrides of that table stay in force.
func TestOverrideThatCameAndWentIsNotMissed(t *testing.T) {
	t.Parallel()
	s := eachstore.SQLite(t, nil)
	here, other := table(t, overrides.Config{Store: s}), table(t, overrides.Config{Store: s})
	refresh := func() {
		t.Helper()
		if err := other.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	comeAndGo := func() {
		t.Helper()
		set(t, here, "gone", 1, 0)
		if found, err := here.Delete(t.Context(), id("gone")); !found || err != nil {
			t.Fatal(found, err)
		}
		refresh()
	}
	refresh()
	comeAndGo() // the only one of its limit
	set(t, here, "a", 2, 0)
	refresh()
	want(t, other, "a", 0, 2)
	comeAndGo() // beside another one
	want(t, other, "a", 0, 2)
	want(t, other, "gone", 0, 0)
}

// TestOverridesBesideThoseReadAtFirst: what is set after the table was read is in force like what was read then.
func TestOverridesBesideThoseReadAtFirst(t *testing.T) {
	t.Parallel()
	s := eachstore.SQLite(t, nil)
	set(t, table(t, overrides.Config{Store: s}), "a", 1, 0)
	later := table(t, overrides.Config{Store: s})
	if err := later.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	set(t, later, "b", 2, 0)
	want(t, later, "a", 0, 1)
	want(t, later, "b", 0, 2)
}

// TestFixed: a table of given overrides needs no store.
func TestFixed(t *testing.T) {
	t.Parallel()
	given := overrides.Override{ID: id("a:*"), Limit: 3}
	table := overrides.Fixed([]overrides.Override{given})
	want(t, table, "a:b", 0, 3)
	want(t, table, "b", 0, 0)
	want(t, overrides.Fixed(nil), "a:b", 0, 0)
}

// TestDefaults: the store is asked for changes twice a second, and keeps 100,000 overrides.
func TestDefaults(t *testing.T) {
	t.Parallel()
	if _, err := overrides.New(overrides.Config{}); err == nil || !strings.Contains(err.Error(), "Store is missing") {
		t.Errorf("without a store: %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := &failing{Store: eachstore.SQLite(t, nil)}
		table, here := table(t, overrides.Config{Store: s}), table(t, overrides.Config{Store: s})
		go table.Run(t.Context())
		synctest.Wait()
		set(t, here, "a", 1, 0)
		time.Sleep(500*time.Millisecond - 1)
		synctest.Wait()
		want(t, table, "a", 0, 0)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		want(t, table, "a", 0, 1)
		if s.most.Load() != 100_000 {
			t.Errorf("%d overrides may be kept", s.most.Load())
		}
	})
}

// TestRunFollowsTheStore has two tables over one store: one is woken by the broadcast, the other one polls.
func TestRunFollowsTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := eachstore.SQLite(t, nil)
		informed := table(t, overrides.Config{Store: s, PollInterval: time.Hour})
		looking := table(t, overrides.Config{Store: s, PollInterval: time.Second})
		for _, table := range []*overrides.Table{informed, looking} {
			go table.Run(t.Context())
		}
		here := table(t, overrides.Config{Store: s, Broadcast: informed.Wake})
		set(t, here, "a", 1, 0)
		want(t, here, "a", 0, 1)
		synctest.Wait()
		want(t, informed, "a", 0, 1)
		want(t, looking, "a", 0, 0)
		time.Sleep(time.Second - 1)
		synctest.Wait()
		want(t, looking, "a", 0, 0)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		want(t, looking, "a", 0, 1)
	})
}

// failing is a store that fails, or hangs, while the test says so.
type failing struct {
	*sqlite.Store
	away, hangs atomic.Bool
	most        atomic.Int64 // of the last put
}

func (f *failing) PutOverride(ctx context.Context, o overrides.Override, max int) error {
	f.most.Store(int64(max))
	return f.Store.PutOverride(ctx, o, max)
}

func (f *failing) OverrideChanges(ctx context.Context, since int64) (overrides.Changes, error) {
	if f.hangs.Load() {
		<-ctx.Done()
		return overrides.Changes{}, ctx.Err()
	}
	if f.away.Load() {
		return overrides.Changes{}, errors.New("the store is away")
	}
	return f.Store.OverrideChanges(ctx, since)
}

// TestTableIsKeptDuringStoreOutage also checks that the outage and its end are logged once each.
func TestTableIsKeptDuringStoreOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &failing{Store: eachstore.SQLite(t, nil)}
		var log strings.Builder
		table := table(t, overrides.Config{Store: s, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		set(t, table, "a", 1, 0)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { table.Run(ctx); close(ended) }()
		s.away.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "out of date") ||
			!strings.Contains(log.String(), "the store is away") {
			t.Errorf("while it is away: %s", &log)
		}
		want(t, table, "a", 0, 1)
		s.away.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if lines := strings.Count(log.String(), "\n"); lines != 2 || !strings.Contains(log.String(), "up to date again") {
			t.Errorf("when it is back: %s", &log)
		}
		cancel()
		<-ended
	})
}

// TestHangingReadIsGivenUp: the next read may succeed.
func TestHangingReadIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &failing{Store: eachstore.SQLite(t, nil)}
		set(t, table(t, overrides.Config{Store: s}), "a", 1, 0)
		s.hangs.Store(true)
		table := table(t, overrides.Config{Store: s})
		go table.Run(t.Context())
		time.Sleep(time.Second)
		s.hangs.Store(false) // but not for the read that has begun
		time.Sleep(time.Minute)
		synctest.Wait()
		want(t, table, "a", 0, 1)
	})
}

// TestStopDuringAReadIsNoOutage: nothing is logged.
func TestStopDuringAReadIsNoOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &failing{Store: eachstore.SQLite(t, nil)}
		s.hangs.Store(true)
		var log strings.Builder
		table := table(t, overrides.Config{Store: s, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { table.Run(ctx); close(ended) }()
		time.Sleep(time.Second) // it reads
		cancel()
		<-ended
		if log.Len() > 0 {
			t.Error(&log)
		}
	})
}

func TestBounds(t *testing.T) {
	t.Parallel()
	table := table(t, overrides.Config{Store: eachstore.SQLite(t, nil), MaxOverrides: 7, MaxGlobs: 5})
	for i := range 5 {
		set(t, table, fmt.Sprintf("%d:*", i), 1, 0)
		set(t, table, "0:*", 1, 0) // replaces, and adds none
	}
	one := overrides.Override{ID: id("one more:*"), Limit: 1, Reason: "r"}
	if err := table.Put(t.Context(), one); !errors.Is(err, overrides.ErrFull) {
		t.Errorf("6 globs: %v", err)
	}
	set(t, table, "3:*", 2, 0)
	set(t, table, "a", 1, 0)
	set(t, table, "b", 1, 0)
	one.Subject = "c"
	if err := table.Put(t.Context(), one); !errors.Is(err, overrides.ErrFull) {
		t.Errorf("8 overrides: %v", err)
	}
	want(t, table, "3:x", 0, 2)
	want(t, table, "c", 0, 0)
	want(t, table, "one more:x", 0, 0)
}

func TestPages(t *testing.T) {
	t.Parallel()
	table := table(t, overrides.Config{Store: eachstore.SQLite(t, nil)})
	for _, subject := range []string{"a", "b", "c"} {
		set(t, table, subject, 1, 0)
	}
	page, more, err := table.List(t.Context(), overrides.Filter{Max: 2})
	if err != nil || !more || len(page) != 2 {
		t.Fatalf("%v, %t, %v", page, more, err)
	}
	page, more, err = table.List(t.Context(), overrides.Filter{Max: 2, After: page[0].ID}) // exactly as many as fit on the page
	if err != nil || more || len(page) != 2 || page[1].Subject != "c" {
		t.Errorf("%v, %t, %v", page, more, err)
	}
}

// unchanging is a store that makes no change.
type unchanging struct{ *sqlite.Store }

func (unchanging) PutOverride(context.Context, overrides.Override, int) error {
	return errors.New("read-only")
}

func (unchanging) DeleteOverride(context.Context, overrides.ID) (bool, error) {
	return false, errors.New("read-only")
}

// TestErrorsOfTheStoreAreReturned: whoever gets none takes the change for made, and a page for all there is.
func TestErrorsOfTheStoreAreReturned(t *testing.T) {
	t.Parallel()
	s := eachstore.SQLite(t, nil)
	set(t, table(t, overrides.Config{Store: s}), "a", 1, 0)
	table := table(t, overrides.Config{Store: unchanging{s}})
	if err := table.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := table.Put(t.Context(), overrides.Override{ID: id("a"), Limit: 2, Reason: "r"}); err == nil {
		t.Error("put: no error")
	}
	if found, err := table.Delete(t.Context(), id("a")); found || err == nil {
		t.Errorf("delete: %t, %v", found, err)
	}
	if page, more, err := table.List(gone, overrides.Filter{Max: 2}); page != nil || more || !errors.Is(err, context.Canceled) {
		t.Errorf("list: %v, %t, %v", page, more, err)
	}
	if err := table.Refresh(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("refresh: %v", err)
	}
	want(t, table, "a", 0, 1)
}

func BenchmarkFind(b *testing.B) {
	table := table(b, overrides.Config{Store: eachstore.SQLite(b, nil)})
	set(b, table, "api:user:7", 1, 0)
	set(b, table, "api:*", 1, 0)
	for b.Loop() {
		table.Find("p", "n", "api:user:8", 0)
	}
}
