package overrides_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

var errLost = errors.New("the connection broke")

// losing is a store that commits changes, and loses the answers to the next lose of them.
type losing struct {
	*sqlite.Store
	lose int
}

func (l *losing) lost() error {
	if l.lose--; l.lose >= 0 {
		return errLost
	}
	return nil
}

func (l *losing) PutOverride(ctx context.Context, o overrides.Override, max int) error {
	if err := l.Store.PutOverride(ctx, o, max); err != nil {
		return err
	}
	return l.lost()
}

func (l *losing) DeleteOverride(ctx context.Context, id overrides.ID) (bool, error) {
	found, err := l.Store.DeleteOverride(ctx, id)
	if err == nil {
		err = l.lost()
	}
	return found && err == nil, err
}

// TestChangeWithLostAnswerIsMadeAgain: the caller hears that it holds, and whether there was something to delete.
func TestChangeWithLostAnswerIsMadeAgain(t *testing.T) {
	t.Parallel()
	s := &losing{Store: eachstore.SQLite(t, nil), lose: 1}
	table := table(t, overrides.Config{Store: s, MaxOverrides: 1})
	set(t, table, "a", 5, 0)
	want(t, table, "a", 0, 5)
	for _, was := range []bool{true, false} {
		s.lose = 1
		if found, err := table.Delete(t.Context(), id("a")); found != was || err != nil {
			t.Errorf("delete: found %t, %v; want %t", found, err, was)
		}
		want(t, table, "a", 0, 0)
	}
}

// TestChangeWithoutAnswerIsAnError: it may hold, and then it does at once.
func TestChangeWithoutAnswerIsAnError(t *testing.T) {
	t.Parallel()
	s, told := &losing{Store: eachstore.SQLite(t, nil), lose: 2}, 0
	table := table(t, overrides.Config{Store: s, Broadcast: func() { told++ }})
	o := overrides.Override{ID: id("a"), Limit: 5, Reason: "r"}
	if err := table.Put(t.Context(), o); !errors.Is(err, errLost) {
		t.Errorf("put: %v", err)
	}
	want(t, table, "a", 0, 5)
	s.lose = 2
	if found, err := table.Delete(t.Context(), o.ID); found || !errors.Is(err, errLost) {
		t.Errorf("delete: %t, %v", found, err)
	}
	want(t, table, "a", 0, 0)
	if told != 2 {
		t.Errorf("other workers were told %d times", told)
	}
}

// TestChangeThatCannotBeReadIsNoError: it holds, and this worker reads it when it can.
func TestChangeThatCannotBeReadIsNoError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &failing{Store: eachstore.SQLite(t, nil)}
		table := table(t, overrides.Config{Store: s})
		go table.Run(t.Context())
		s.away.Store(true)
		set(t, table, "a", 5, 0)
		want(t, table, "a", 0, 0)
		s.away.Store(false)
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, table, "a", 0, 5)
		s.away.Store(true)
		if found, err := table.Delete(t.Context(), id("a")); !found || err != nil {
			t.Errorf("delete: %t, %v", found, err)
		}
	})
}
