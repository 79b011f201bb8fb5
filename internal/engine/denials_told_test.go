package engine_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestDenialsThatAreToldLaterSayWhenTheirCostFits, or that it never does; though less, or all, would fit by then.
func TestDenialsThatAreToldLaterSayWhenTheirCostFits(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		window     string
		used, cost int64
		want       int64
	}{
		"where less fits":           {"1h", 8, 5, 3_600_000 - 11_000},
		"where the counter is full": {"1h", 10, 5, 3_600_000 - 11_000},
		"never":                     {"1h", 10, 11, 0},
		"already":                   {"2s", 10, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := openTap(t)
				e := start(t, engine.Config{Store: store})
				l := per(t, "k", 10, tt.window)
				ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: tt.used})
				for range 3 {
					ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: tt.cost})
				}
				store.events(t)
				time.Sleep(12 * time.Second)
				synctest.Wait()
				got := store.events(t)
				if len(got) != 1 || got[0].Denied != 2 || got[0].RetryAfter < tt.want || got[0].RetryAfter > tt.want*102/100 {
					t.Errorf("%+v; want 2 denials to be tried again after %d ms", got, tt.want)
				}
			})
		})
	}
}

// TestDenialsOfManyCostsAreToldTogether, in as few transactions as those of one cost.
func TestDenialsOfManyCostsAreToldTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		e := start(t, engine.Config{Store: store})
		const keys = 200
		for i := range int64(keys) {
			l := per(t, fmt.Sprint("k", i), 10, "1h")
			ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 10})
			for range 2 {
				ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 1 + i})
			}
		}
		before := store.count()
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := store.count() - before; n > 10 {
			t.Errorf("%d transactions to keep the denials of %d counters", n, keys)
		}
	})
}

// toldOf is how many denials events tell of.
func toldOf(t *testing.T, store *tap) (denied int64) {
	t.Helper()
	for _, event := range store.events(t) {
		denied += event.Denied
	}
	return denied
}

// TestWhatIsToldEarlyIsToldOnce: more of the same counter comes in one batch with a tell that was asked for before the event.
func TestWhatIsToldEarlyIsToldOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		e := start(t, engine.Config{Store: store})
		l := per(t, "k", 1, "1h")
		l.Threshold = -1
		one := engine.Request{Limits: []engine.Limit{l}}
		for range 3 { // 1 allowed, 1 told, 1 remembered
			ask(t, e, one)
		}
		time.Sleep(10*time.Second - time.Millisecond)
		store.hold()
		done := make(chan bool)
		deny := func() { ask(t, e, one); done <- true }
		go deny()
		<-store.enter // it raises the event, and the rest waits for the next batch
		for range 3 {
			go deny()
		}
		time.Sleep(1200 * time.Millisecond)
		synctest.Wait() // what is remembered was asked to be told
		leave := store.leave
		store.release()
		leave <- struct{}{}
		for range 4 {
			<-done
		}
		time.Sleep(40 * time.Second)
		synctest.Wait()
		if got := toldOf(t, store); got != 6 {
			t.Errorf("told of %d denials, there were 6", got)
		}
	})
}

// TestDenialsOfManyWorkersAreToldTogether, not of one worker after the other.
func TestDenialsOfManyWorkersAreToldTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		workers := flock(t, store, 5)
		l := per(t, "k", 1, "1h")
		l.Threshold = -1
		for range 9 {
			for _, w := range workers {
				ask(t, w, engine.Request{Limits: []engine.Limit{l}})
			}
		}
		time.Sleep(23 * time.Second)
		synctest.Wait()
		if got := toldOf(t, store); got != 9*5-1 {
			t.Errorf("told of %d denials within 23 s, want all %d", got, 9*5-1)
		}
		events := store.count()
		time.Sleep(time.Minute)
		if toldOf(t, store); store.count() != events {
			t.Errorf("%d transactions when all is told", store.count()-events)
		}
	})
}

func TestDenialsThatAnotherWorkerHasToldOfWaitForTheirTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		workers := flock(t, store, 2)
		l := per(t, "k", 1, "1h")
		l.Threshold = -1
		ask(t, workers[0], engine.Request{Limits: []engine.Limit{l}})
		for _, w := range workers {
			ask(t, w, engine.Request{Limits: []engine.Limit{l}})
		}
		from := store.count()
		const seconds = 60
		for range seconds * 10 {
			time.Sleep(100 * time.Millisecond)
			for _, w := range workers {
				ask(t, w, engine.Request{Limits: []engine.Limit{l}})
			}
		}
		time.Sleep(21 * time.Second)
		synctest.Wait()
		asked := 0
		for _, b := range store.updates[from:] {
			if len(b.Counters) > 0 {
				asked++
			}
		}
		if asked > 3*seconds/10 {
			t.Errorf("%d transactions about the counter in %d s", asked, seconds)
		}
		if denied, want := toldOf(t, store), int64(2+2*10*seconds); denied != want {
			t.Errorf("events tell of %d denials, want %d", denied, want)
		}
	})
}

func TestDenialsThatAWorkerRemembersOutliveIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		e := start(t, engine.Config{Store: store})
		consume := engine.Request{Limits: []engine.Limit{per(t, "k", 1, "1h")}}
		for range 8 { // 1 allowed, 1 told, 6 remembered
			ask(t, e, consume)
		}
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		store.events(t)
		time.Sleep(11 * time.Second)
		next := start(t, engine.Config{Store: store})
		ask(t, next, consume)
		if got := store.events(t); len(got) != 1 || got[0].Denied != 7 {
			t.Errorf("%+v: want one event for 6 + 1 denials", got)
		}
	})
}
