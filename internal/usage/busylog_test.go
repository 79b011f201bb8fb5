package usage

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed503877ad/limits/internal/engine"
)

// slowLog is a notebook whose writes of requests take a while.
type slowLog struct {
	notebook
	requestsTake time.Duration
}

func (s *slowLog) AddRequests(ctx context.Context, requests []Request) error {
	time.Sleep(s.requestsTake)
	return s.notebook.AddRequests(ctx, requests)
}

// TestABusyLogDoesNotHoldCountsBack: requests may come faster than the store takes them, so that one write of them follows
// the other and each multiple of 5 s passes during one. Counts are written all the same, under their minute.
func TestABusyLogDoesNotHoldCountsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &slowLog{requestsTake: 2 * time.Second}
		r := record(t, Config{Store: s, Queue: 8})
		minute := time.Now().Truncate(time.Minute)
		for at := 100 * time.Millisecond; at < 80*time.Second; at += 100 * time.Millisecond {
			time.Sleep(time.Until(minute.Add(at)))
			r.Log(Request{Key: "k"})
			if at == 40*time.Second || at == 65*time.Second {
				r.Tally(decided(engine.Consume, 2, "a"))
			}
		}
		want := []Count{counted1("a", minute.UnixMilli(), 1, 0, 2), counted1("a", minute.Add(time.Minute).UnixMilli(), 1, 0, 2)}
		if diff := cmp.Diff(want, s.written()); diff != "" {
			t.Errorf("after 80 s: %s", diff)
		}
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestManyRequestsAreWrittenEarly: a busy service logs more requests in 5 s than may wait.
func TestManyRequestsAreWrittenEarly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(notebook)
		r := record(t, Config{Store: s, Queue: 8})
		for range 100 {
			r.Log(Request{Key: "k"})
			synctest.Wait()
		}
		if lost := r.Losses().Requests; lost != 0 || len(s.requests) != 100 {
			t.Errorf("%d are written by now, %d lost", len(s.requests), lost)
		}
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestAFullQueueDoesNotHurryAStoreThatFails: it is tried every 5 s.
func TestAFullQueueDoesNotHurryAStoreThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(notebook)
		s.fail(errors.New("away"))
		r := record(t, Config{Store: s, Queue: 8})
		r.Log(Request{Key: "k"})
		time.Sleep(5 * time.Second)
		synctest.Wait()
		before := s.tries
		for range 100 {
			r.Log(Request{Key: "k"})
			synctest.Wait()
		}
		if s.tries != before {
			t.Errorf("it is tried %d times", s.tries-before)
		}
		if err := r.Close(t.Context()); err == nil {
			t.Error("what was lost is not told")
		}
	})
}
