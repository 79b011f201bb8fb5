package engine_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestLateReportSaysWhenCostFits, or that it never does, even if less or all of it
// fits by then, and what remains by then.
func TestLateReportSaysWhenCostFits(t *testing.T) {
	t.Parallel()
	const hour, fixed = 3_600_000, engine.FixedWindow
	for name, tt := range map[string]struct {
		algorithm             engine.Algorithm
		window                string
		used, cost, refunded  int64
		retryAfter, remaining int64
	}{
		"less fits":                 {window: "1h", used: 8, cost: 5, retryAfter: hour - 11_000, remaining: 2},
		"counter is full":           {window: "1h", used: 10, cost: 5, retryAfter: hour - 11_000},
		"never fits":                {window: "1h", used: 10, cost: 11},
		"already fits":              {window: "2s", used: 10, cost: 1, retryAfter: 1, remaining: 10},
		"fits in the next window":   {fixed, "2s", 10, 1, 0, 1, 10},
		"just fits in the same one": {fixed, "1h", 10, 5, 5, 1, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
				l := per(t, "k", 10, tt.window)
				l.Algorithm = tt.algorithm
				ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: tt.used})
				for range 3 {
					ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: tt.cost})
				}
				if tt.refunded > 0 {
					ask(t, e, engine.Request{Verb: engine.Refund, Limits: []engine.Limit{l}, Cost: tt.refunded})
				}
				store.events(t)
				time.Sleep(12 * time.Second)
				synctest.Wait()
				got := store.events(t)
				if len(got) != 1 || got[0].Denied != 2 || got[0].RetryAfter < tt.retryAfter || got[0].RetryAfter > tt.retryAfter*102/100 || got[0].Remaining != tt.remaining {
					t.Errorf("%+v; want 2 denials to be tried again after %d ms, and %d that remain", got, tt.retryAfter, tt.remaining)
				}
			})
		})
	}
}

// TestDenialsOfManyCostsAreReportedTogether, in as few transactions as those of one cost.
func TestDenialsOfManyCostsAreReportedTogether(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
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
		if n := store.count() - before; n > 1 {
			t.Errorf("%d transactions to report the denials of %d counters", n, keys)
		}
	})
}

// toldOf is how many denials the events report.
func toldOf(t *testing.T, store *tap) (denied int64) {
	t.Helper()
	for _, event := range store.events(t) {
		if event.Type == engine.EventExceeded && event.Denied == 0 {
			t.Errorf("an event tells of no denial: %+v", event)
		}
		denied += event.Denied
	}
	return denied
}

// TestEarlyReportIsNotRepeated: a report that was queued before the event, and more denials of the
// counter, come in one batch.
func TestEarlyReportIsNotRepeated(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
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
		synctest.Wait() // a report of the cached denials is queued
		store.release()
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

// TestDueDenialsAreReportedInSmallBatches, because requests queue behind the reports.
func TestDueDenialsAreReportedInSmallBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const many = 2000
		store := openTap(t)
		e := start(t, engine.Config{Store: store})
		for range 3 { // allowed, told, remembered
			var all sync.WaitGroup
			for i := range many {
				l := per(t, fmt.Sprint("k", i), 1, "1h")
				l.Threshold = -1
				all.Add(1)
				if err := e.Submit(&engine.Request{Limits: []engine.Limit{l}, Cost: 1, Done: func(engine.Decision, error) { all.Done() }}); err != nil {
					t.Fatal(err)
				}
			}
			all.Wait()
		}
		from := store.count()
		time.Sleep(13 * time.Second)
		synctest.Wait()
		most := 0
		for _, b := range store.updates[from:] {
			most = max(most, len(b.Counters))
		}
		if most > many/4 {
			t.Errorf("%d counters in one transaction, of %d", most, many)
		}
		told := int64(0)
		for all := store.events(t); len(all) > 0; all = store.events(t) {
			for _, event := range all {
				told += event.Denied
			}
		}
		if told != 2*many {
			t.Errorf("told of %d denials, there were %d", told, 2*many)
		}
	})
}

// TestDenialsOfManyWorkersAreReportedTogether, not one worker's after the other's.
func TestDenialsOfManyWorkersAreReportedTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		workers := startWorkers(t, store, 5)
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

func TestDenialsReportedElsewhereWaitForNextEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		workers := startWorkers(t, store, 2)
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

// by is a request of a user for the limit of these tests: 10 an hour, without warnings.
func by(t *testing.T, user string, cost int64) engine.Request {
	l := per(t, "k", 10, "1h")
	l.User, l.Threshold = user, -1
	return engine.Request{Limits: []engine.Limit{l}, Cost: cost}
}

// TestEventDescribesItsFirstDenial, not the first one of a flood that goes on.
func TestEventDescribesItsFirstDenial(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := openTap(t)
				all := []*engine.Engine{start(t, engine.Config{Store: store})}
				if workers > 1 {
					time.Sleep(500 * time.Millisecond) // it looks for due denials at another time
					all = append(all, start(t, engine.Config{Store: store}))
				}
				ask(t, all[0], by(t, "first", 10))
				for range 3 {
					ask(t, all[0], by(t, "first", 11)) // a cost that never fits
				}
				var meanwhile atomic.Int64
				store.fail(func(committed bool) error {
					for _, e := range all {
						if committed { // before the worker learns of the commit
							r := by(t, "then", 1)
							r.Done = func(engine.Decision, error) { meanwhile.Add(1) }
							if err := e.Submit(&r); err != nil {
								t.Error(err)
							}
						}
					}
					return nil
				})
				for range 600 {
					time.Sleep(100 * time.Millisecond)
					for _, e := range all {
						ask(t, e, by(t, "then", 1))
					}
				}
				store.fail(nil)
				time.Sleep(25 * time.Second)
				synctest.Wait()
				denied := int64(0)
				for i, event := range store.events(t) {
					denied += event.Denied
					// The first user's two further denials are reported after the first event; with
					// one worker, by the next one.
					first := event.User == "first" && event.RetryAfter == 0
					if !first && (event.User != "then" || event.RetryAfter == 0 || i < 3-workers) || first && i > workers {
						t.Errorf("event %d, of %d denials, is about %s, who may try again after %d ms", i, event.Denied, event.User, event.RetryAfter)
					}
				}
				if want := int64(3+600*workers) + meanwhile.Load(); denied != want {
					t.Errorf("events tell of %d denials, want %d", denied, want)
				}
			})
		})
	}
}

// TestDenialsAreReportedOnceDespiteFailures has random users denied by random workers, over a
// store that sometimes fails. If it never fails, workers stop and others take their place.
func TestDenialsAreReportedOnceDespiteFailures(t *testing.T) {
	t.Parallel()
	for seed := range uint64(histories(100)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0))
				store := openTap(t)
				workers := startWorkers(t, store, 1+random.IntN(3))
				ask(t, workers[0], by(t, "u", 10))
				fails := seed%2 == 1
				var denials []denial
				told, counted := int64(0), int64(0)
				tell := func() {
					events := store.events(t)
					for _, event := range events {
						told += event.Denied
					}
					if !fails {
						checkUsers(t, events, denials)
					}
				}
				for range 40 {
					switch random.IntN(10) {
					case 0:
						if fails {
							store.fail(downBeforeCommit)
						}
					case 1, 2:
						store.fail(nil)
					case 3:
						if !fails {
							replaceWorker(t, store, workers, random.IntN(len(workers)))
						}
					}
					time.Sleep(time.Duration(random.IntN(6000)) * time.Millisecond)
					for range random.IntN(20) {
						user := fmt.Sprint("u", random.IntN(3))
						// The tap has no clock of its own, so this is the store's.
						d := denial{user, time.Now().UnixMilli()}
						if answer := ask(t, workers[random.IntN(len(workers))], by(t, user, 1+random.Int64N(12))); !answer.Allowed && !answer.Degraded {
							denials = append(denials, d)
							counted++
						}
					}
					tell()
				}
				store.fail(nil)
				time.Sleep(45 * time.Second)
				synctest.Wait()
				if tell(); told != counted {
					t.Errorf("events tell of %d denials, there were %d", told, counted)
				}
			})
		})
	}
}

// downBeforeCommit is a fault of a tap: the store fails, and nothing is written.
func downBeforeCommit(committed bool) error {
	if committed {
		return nil
	}
	return errors.New("down")
}

// replaceWorker stops one of the workers, and starts another in its place.
func replaceWorker(t *testing.T, store engine.Store, workers []*engine.Engine, i int) {
	t.Helper()
	if err := workers[i].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	workers[i] = start(t, engine.Config{Store: store})
}

// checkUsers checks that each event is about a user who was denied. Denials that another worker
// leaves in the state are reported by the next event.
func checkUsers(t *testing.T, events []engine.Event, denials []denial) {
	t.Helper()
	for _, event := range events {
		from := event.Time - 35_000
		known := slices.ContainsFunc(denials, func(d denial) bool {
			return d.user == event.User && d.at >= from && d.at <= event.Time
		})
		if !known {
			t.Errorf("an event of %d is about %s: %+v", event.Time, event.User, denials)
		}
	}
}

type denial struct {
	user string
	at   int64
}
