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
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

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

// TestOtherStoreIsLoggedWhileItLasts: once a minute for each store, and for a bounded number of stores. A while after the last
// announcement this limiter is ready again.
func TestOtherStoreIsLoggedWhileItLasts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, log := eachstore.SQLite(t, nil), newWatcher()
		e, err := engine.New(t.Context(), engine.Config{Store: s, NewID: rand.Text})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = e.Close(context.Background()) }()
		l := &limiter{store: s, engine: e, events: new(nats.Conn), log: slog.New(log), storeID: "own"} // not connected, so it announces nothing
		l.serving.Store(true)
		others := make(chan string)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go l.announceStore(ctx, nil, others)
		for _, step := range []struct {
			after time.Duration
			heard []string
			lines int
			want  error
		}{
			{0, nil, 0, nil},
			{0, []string{"a"}, 1, errOtherStore},
			{30 * time.Second, []string{"a", "b"}, 2, errOtherStore},
			{30 * time.Second, []string{"a", "a"}, 3, errOtherStore},
			{otherStoreTTL - time.Second, nil, 3, errOtherStore},
			{time.Second, nil, 3, nil},
			{0, slices.Collect(numbered(100)), 3 + maxOtherStores, errOtherStore},
		} {
			time.Sleep(step.after)
			for _, id := range step.heard {
				others <- id
			}
			synctest.Wait()
			if n := strings.Count(log.String(), otherStore); n != step.lines {
				t.Errorf("%s later, after %.3q: %d lines, want %d", step.after, step.heard, n, step.lines)
			}
			if err := l.storeHealthy(t.Context()); !errors.Is(err, step.want) {
				t.Errorf("%s later, after %.3q: %v, want %v", step.after, step.heard, err, step.want)
			}
		}
	})
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
