package engine_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

// A check changes nothing, whatever definition it has for the limit: not what was charged, nor how
// long it counts.
func TestCheckUnderOtherDefinitionKeepsCounter(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]int64{"one that allows": 100_000, "one that denies": 10} {
		withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
			l := leased(t, "k", 100_000)
			n := warm(t, e, l)
			other := l
			other.Limit, other.Window, other.Algorithm, other.Leased = limit, window(t, "100ms"), engine.FixedWindow, false
			if d := ask(t, e, engine.Request{Verb: engine.Check, Limits: []engine.Limit{other}}); d.Allowed != (limit > 10) {
				t.Fatalf("%s: %+v", name, d)
			}
			time.Sleep(150 * time.Millisecond) // one window of the other definition
			if d := ask(t, e, engine.Request{Limits: []engine.Limit{l}}); d.Results[0].Used < n+1 {
				t.Errorf("%s: %d used after %d requests", name, d.Results[0].Used, n+1)
			}
			denied := toldOf(t, store)
			if want := map[bool]int64{true: 0, false: 1}[limit > 10]; denied != want {
				t.Errorf("%s: events tell of %d denials, want %d", name, denied, want)
			}
		})
	}
}

// TestDenialUnderOtherDefinitionKeepsCounter: what is used is not carried over to it,
// or it would be free after 100 ms.
func TestDenialUnderOtherDefinitionKeepsCounter(t *testing.T) {
	t.Parallel()
	l := per(t, "k", 100, "1h")
	other := l
	other.Limit, other.Window, other.Algorithm, other.Threshold = 10, window(t, "100ms"), engine.FixedWindow, -1
	beside := shadowed(other, "")
	for name, r := range map[string]engine.Request{
		"check":   {Verb: engine.Check, Limits: []engine.Limit{other}},
		"consume": {Verb: engine.Consume, Limits: []engine.Limit{other}},
		"shadow":  {Verb: engine.Consume, Limits: []engine.Limit{per(t, "another", 10, "1h"), beside}},
	} {
		withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
			ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 100})
			if d := ask(t, e, r); d.Allowed != (name == "shadow") || d.Allowed != d.Shadow {
				t.Fatalf("%s: %+v", name, d)
			}
			time.Sleep(150 * time.Millisecond)
			if d := ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 100}); d.Allowed {
				t.Errorf("%s: 200 of 100 charged in one hour", name)
			}
		})
	}
}

// TestRetryAfterUnderOtherDefinitionIsHonest: what was used under one definition denies under the
// next one. A retry at the moment that the denial names is allowed, and none before.
func TestRetryAfterUnderOtherDefinitionIsHonest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		algorithm     engine.Algorithm
		from, to      string
		before, after int64
		cost          int64
	}{
		"a day, then a minute":               {engine.FixedWindow, "1d", "1m", 100, 60, 1},
		"an hour that slides, then a minute": {engine.SlidingWindow, "1h", "1m", 100, 10, 1},
		"a larger bucket":                    {engine.TokenBucket, "1h", "1h", 10, 20, 15},
		"a smaller bucket":                   {engine.TokenBucket, "1h", "1h", 10, 5, 1},
	} {
		for _, verb := range []engine.Verb{engine.Consume, engine.Check} {
			withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
				before := per(t, "k", c.before, c.from)
				before.Name, before.Threshold, before.Algorithm = "n", -1, c.algorithm
				after := before
				after.Limit, after.Window = c.after, window(t, c.to)
				ask(t, e, engine.Request{Limits: []engine.Limit{before}, Cost: c.before})
				r := engine.Request{Verb: verb, Limits: []engine.Limit{after}, Cost: c.cost}
				time.Sleep(time.Second)
				d := ask(t, e, r)
				if d.Allowed {
					t.Fatalf("%s: %+v", name, d)
				}
				time.Sleep(time.Duration(d.Results[0].RetryAfter-1) * time.Millisecond)
				if again := ask(t, e, r); again.Allowed {
					t.Errorf("%s: allowed 1 ms before the %d ms", name, d.Results[0].RetryAfter)
				}
				time.Sleep(time.Millisecond)
				if again := ask(t, e, r); !again.Allowed {
					t.Errorf("%s: denied after the %d ms: %+v", name, d.Results[0].RetryAfter, again)
				}
			})
		}
	}
}

// TestRefundUnderOtherDefinitionKeepsCounter apart from what it gives back, for each
// algorithm.
func TestRefundUnderOtherDefinitionKeepsCounter(t *testing.T) {
	t.Parallel()
	for _, a := range []engine.Algorithm{engine.SlidingWindow, engine.FixedWindow, engine.TokenBucket} {
		for _, to := range []engine.Algorithm{engine.SlidingWindow, engine.FixedWindow, engine.TokenBucket} {
			withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
				l := per(t, "k", 100, "1d") // a window has begun: the clock of a synctest bubble starts at midnight
				l.Name, l.Threshold, l.Algorithm = "n", -1, a
				other := l
				other.Limit, other.Window, other.Algorithm = 10, window(t, "100ms"), to
				ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 100})
				for range 4 {
					ask(t, e, engine.Request{Verb: engine.Refund, Limits: []engine.Limit{other}, Cost: 2})
					time.Sleep(150 * time.Millisecond)
				}
				if d := ask(t, e, engine.Request{Verb: engine.Check, Limits: []engine.Limit{l}, Cost: 1}); d.Results[0].Remaining != 8 {
					t.Errorf("%s, refunds as %s: %d remain, want 8", a, to, d.Results[0].Remaining)
				}
				if d := ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 9}); d.Allowed {
					t.Errorf("%s, refunds as %s: %d used of 100", a, to, d.Results[0].Used)
				}
			})
		}
	}
}

// TestRefundDoesNotDelayRetry: the retryAfter of a denial under another definition holds, however
// often something is refunded until then.
func TestRefundDoesNotDelayRetry(t *testing.T) {
	t.Parallel()
	for _, a := range []engine.Algorithm{engine.SlidingWindow, engine.FixedWindow, engine.TokenBucket} {
		for _, to := range []engine.Algorithm{engine.SlidingWindow, engine.FixedWindow, engine.TokenBucket} {
			withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
				l := per(t, "k", 100, "1d")
				l.Name, l.Threshold, l.Algorithm = "n", -1, a
				other := l
				other.Window, other.Algorithm = window(t, "1m"), to
				ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 100})
				denied := ask(t, e, engine.Request{Limits: []engine.Limit{other}, Cost: 50})
				end := time.Now().Add(time.Duration(denied.Results[0].RetryAfter) * time.Millisecond)
				for time.Until(end) > 5*time.Second {
					time.Sleep(5 * time.Second)
					ask(t, e, engine.Request{Verb: engine.Refund, Limits: []engine.Limit{other}})
				}
				time.Sleep(time.Until(end))
				if d := ask(t, e, engine.Request{Limits: []engine.Limit{other}, Cost: 50}); denied.Allowed || !d.Allowed {
					t.Errorf("%s, then %s: told %d, and then %+v", a, to, denied.Results[0].RetryAfter, d.Results[0])
				}
			})
		}
	}
}

// TestDenialReportKeepsRetryAfter: the retryAfter of a denial under another definition holds.
func TestDenialReportKeepsRetryAfter(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		l := per(t, "k", 9, "1m")
		l.Name, l.Threshold, l.Algorithm = "n", -1, engine.FixedWindow
		other := l
		other.Limit, other.Burst, other.Window, other.Algorithm = 1, 1, window(t, "1m"), engine.TokenBucket
		ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 9})
		for range 2 { // the second is denied from memory, and reported 10 s later
			time.Sleep(10 * time.Millisecond)
			ask(t, e, engine.Request{Limits: []engine.Limit{l}})
		}
		time.Sleep(10 * time.Millisecond)
		told := ask(t, e, engine.Request{Limits: []engine.Limit{other}, Cost: 2}).Results[0].RetryAfter
		if told < 60_000 {
			t.Fatalf("free in %d ms: before the tell", told)
		}
		time.Sleep(time.Duration(told) * time.Millisecond)
		if d := ask(t, e, engine.Request{Limits: []engine.Limit{other}, Cost: 2}); !d.Allowed {
			t.Errorf("denied after the %d ms that were told, for %d more", told, d.Results[0].RetryAfter)
		}
		denied := toldOf(t, store)
		if denied != 3 {
			t.Errorf("events tell of %d denials, want 3", denied)
		}
	})
}

// TestRedefiningSettleStoresItsDefinition, whatever definition other requests of its
// batch have.
func TestRedefiningSettleStoresItsDefinition(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		l := per(t, "k", 10, "1m")
		l.Name, l.Threshold, l.Algorithm = "n", -1, engine.FixedWindow
		other := l
		other.Limit, other.Window = 99, window(t, "60s")
		ask(t, e, engine.Request{Limits: []engine.Limit{l}, ID: "x"})
		ask(t, e, engine.Request{Limits: []engine.Limit{other}})
		time.Sleep(61 * time.Second)

		var all sync.WaitGroup
		do := func(act func() error) {
			all.Go(func() {
				if err := act(); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		store.hold()
		do(func() error { _, err := storetest.Settle(t.Context(), e, "x", 5); return err })
		<-store.enter // reads its receipt
		do(func() error {
			_, err := e.Do(t.Context(), &engine.Request{Limits: []engine.Limit{per(t, "busy", 10, "1m")}, Cost: 1})
			return err
		})
		store.leave <- struct{}{}
		<-store.enter
		do(func() error {
			_, err := e.Do(t.Context(), &engine.Request{Verb: engine.Check, Limits: []engine.Limit{other}, Cost: 1})
			return err
		})
		store.leave <- struct{}{}
		<-store.enter
		store.release()
		all.Wait()
		ask(t, e, engine.Request{Limits: []engine.Limit{l}})
		counters, err := e.Status(t.Context(), "k")
		if err != nil || len(counters) != 1 || counters[0].Limit != 10 || counters[0].Used != 5 {
			t.Errorf("%+v, %v; want 5 of 10 used", counters, err)
		}
	})
}

// TestSettleAfterResetGivesNothingBack: the charge of its consume is gone, and later charges
// belong to others.
func TestSettleAfterResetGivesNothingBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ leased, setBack bool }{{}, {leased: true}, {setBack: true}} {
		for _, a := range []engine.Algorithm{engine.SlidingWindow, engine.FixedWindow, engine.TokenBucket} {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(10 * time.Minute) // away from the edge of the window
				var ahead time.Duration
				e := start(t, engine.Config{Store: openTapAt(t, func() time.Time { return time.Now().Add(ahead) })})
				l := per(t, "k", 10, "1h")
				l.Algorithm, l.Leased = a, c.leased
				limits := []engine.Limit{l}
				ask(t, e, engine.Request{Limits: limits, Cost: 8, ID: "x"})
				time.Sleep(time.Second)
				if c.setBack {
					ahead = -5 * time.Second
				}
				if n, err := e.Reset(t.Context(), engine.Selection{Key: "k"}, false); err != nil || n != 1 {
					t.Fatalf("reset %d counters, %v", n, err)
				}
				if d := ask(t, e, engine.Request{Limits: limits, Cost: 10}); !d.Allowed {
					t.Fatalf("%s: denied after a reset: %+v", a, d)
				}
				ahead = 0
				d, err := storetest.Settle(t.Context(), e, "x", 0)
				if err != nil || d.Results[0].Remaining != 0 {
					t.Errorf("%s, %+v: settled to %+v, %v; want nothing left", a, c, d, err)
				}
			})
		}
	}
}

// TestSettleDoesNotGiveBackCarriedUsage: what was carried over to another definition and back is
// not given back. What is missing is charged to the present window if only the limit's amount
// differs.
func TestSettleDoesNotGiveBackCarriedUsage(t *testing.T) {
	t.Parallel()
	bucket := per(t, "k", 10, "1h")
	bucket.Name, bucket.Threshold, bucket.Algorithm = "n", -1, engine.TokenBucket
	larger := bucket
	larger.Limit = 1000
	day := per(t, "k", 10, "1d")
	day.Name, day.Threshold, day.Algorithm = "n", -1, engine.FixedWindow
	minute := day
	minute.Limit, minute.Window = 100, window(t, "1m")
	for name, c := range map[string][2]engine.Limit{"bucket": {bucket, larger}, "window": {day, minute}} {
		withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
			ask(t, e, engine.Request{Limits: c[:1], Cost: 10, ID: "x"})
			ask(t, e, engine.Request{Limits: c[1:]})
			time.Sleep(2 * time.Minute)
			charged := 0
			for ask(t, e, engine.Request{Limits: c[:1]}).Allowed {
				charged++
			}
			if _, err := storetest.Settle(t.Context(), e, "x", 0); err != nil {
				t.Fatal(err)
			}
			for ask(t, e, engine.Request{Limits: c[:1]}).Allowed {
				charged++
			}
			if charged > 10 {
				t.Errorf("%s: %d charged at one moment", name, charged)
			}
		})
	}
	withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
		more := minute
		more.Limit = 200
		ask(t, e, engine.Request{Limits: []engine.Limit{minute}, ID: "x"})
		ask(t, e, engine.Request{Limits: []engine.Limit{more}, Cost: 5})
		time.Sleep(61 * time.Second)
		if d, err := storetest.Settle(t.Context(), e, "x", 16); err != nil || d.Results[0].Used != 15 {
			t.Errorf("%+v, %v; want 15 used", d.Results, err)
		}
		if d := ask(t, e, engine.Request{Verb: engine.Check, Limits: []engine.Limit{more}}); d.Results[0].Used != 15 {
			t.Errorf("%d used behind a settle that charged 15 more", d.Results[0].Used)
		}
	})
}

// TestLateSettleKeepsStoredWindow: if the charged window has ended, the next one
// begins and ends as the stored definition says, whoever charges first.
func TestLateSettleKeepsStoredWindow(t *testing.T) {
	t.Parallel()
	anchored := per(t, "k", 10, "1m")
	anchored.Name, anchored.Threshold, anchored.Algorithm, anchored.FirstUse = "n", -1, engine.FixedWindow, true
	aligned := anchored
	aligned.FirstUse = false
	lagos := per(t, "k", 10, "day")
	lagos.Name, lagos.Threshold, lagos.Algorithm, lagos.Zone = "n", -1, engine.FixedWindow, located(t, "Africa/Lagos")
	berlin := lagos
	berlin.Zone = located(t, "Europe/Berlin")
	for name, c := range map[string]struct {
		from, to engine.Limit
		// consumed is when the consume comes; the rest are after the step before. Everything is
		// tried at an early and at a late moment of one window.
		consumed                        time.Time
		redefined, settled, early, late time.Duration
	}{
		"first use to aligned": {anchored, aligned, time.Date(2000, 1, 1, 0, 0, 10, 0, time.UTC),
			10 * time.Second, 130 * time.Second, 40 * time.Second, 25 * time.Second},
		// The days of both zones are the same until Berlin has one of 23 hours.
		"day of another time zone": {lagos, berlin, time.Date(2000, 3, 25, 22, 55, 0, 0, time.UTC),
			2 * time.Minute, 8 * time.Minute, 23*time.Hour + 25*time.Minute, time.Hour},
	} {
		for _, cost := range []int64{1, 2} {
			t.Run(fmt.Sprintf("%s, settled to %d", name, cost), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var ahead atomic.Int64
					ahead.Store(int64(time.Until(c.consumed)))
					e := start(t, engine.Config{Store: openTapAt(t, func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })})
					ask(t, e, engine.Request{Limits: []engine.Limit{c.from}, ID: "x"})
					time.Sleep(c.redefined)
					ask(t, e, engine.Request{Limits: []engine.Limit{c.to}})
					time.Sleep(c.settled)
					if _, err := storetest.Settle(t.Context(), e, "x", cost); err != nil {
						t.Fatal(err)
					}
					admitted := 0
					for _, pause := range []time.Duration{c.early, c.late} {
						ahead.Add(int64(pause))
						for ask(t, e, engine.Request{Limits: []engine.Limit{c.to}}).Allowed {
							admitted++
						}
					}
					if admitted != 10 {
						t.Errorf("%d of 10 admitted in one window", admitted)
					}
				})
			})
		}
	}
}

func located(t *testing.T, name string) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

// TestSettleAfterOtherTierGivesCostBack: a caller of another tier charged last, and the saved
// cost is given back all the same.
func TestSettleAfterOtherTierGivesCostBack(t *testing.T) {
	t.Parallel()
	for _, a := range []engine.Algorithm{engine.SlidingWindow, engine.FixedWindow} {
		withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
			base := per(t, "k", 1000, "1d")
			base.Name, base.Algorithm = "n", a
			pro := base
			pro.Limit = 2000
			ask(t, e, engine.Request{Limits: []engine.Limit{base}, Cost: 100, ID: "x"})
			ask(t, e, engine.Request{Limits: []engine.Limit{pro}})
			if d, err := storetest.Settle(t.Context(), e, "x", 5); err != nil || d.Results[0].Used != 6 || d.Results[0].Remaining != 994 {
				t.Errorf("%s: %+v, %v; want 6 used", a, d.Results, err)
			}
			if got := usedNow(t, e, "k"); got != 6 {
				t.Errorf("%s: %d used, want 6", a, got)
			}
		})
	}
}

// TestReturnedLeaseFreesLargerTier: other workers are told, although nothing is free for the
// lease's own tier.
func TestReturnedLeaseFreesLargerTier(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		workers := startWorkers(t, openTap(t), 2)
		base := leased(t, "k", 1000)
		base.Name = "n"
		pro := base
		pro.Limit, pro.Leased = 2000, false
		n := warm(t, workers[0], base)
		used := usedNow(t, workers[0], "k")
		if used == n {
			t.Fatal("nothing is lent")
		}
		ask(t, workers[1], engine.Request{Limits: []engine.Limit{pro}, Cost: 2000 - used})
		for range 2 { // the second is denied from memory
			if d := ask(t, workers[1], engine.Request{Limits: []engine.Limit{pro}}); d.Allowed {
				t.Fatalf("%+v", d)
			}
		}
		time.Sleep(300 * time.Millisecond)
		if d := ask(t, workers[1], engine.Request{Limits: []engine.Limit{pro}, Cost: used - n}); !d.Allowed || d.Results[0].Remaining != 0 {
			t.Errorf("what %d of %d charges left is not free: %+v", n, used, d)
		}
	})
}

// TestSettleEventNamesItsLimit, not that of the lease that the worker holds under another tier.
func TestSettleEventNamesItsLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		workers := startWorkers(t, store, 2)
		pro := leased(t, "k", 100_000)
		pro.Name, pro.User = "n", "pro"
		free := pro
		free.Limit, free.Leased, free.User = 2000, false, "free"
		warm(t, workers[0], pro)
		ask(t, workers[1], engine.Request{Limits: []engine.Limit{free}, Cost: 5, ID: "x"})
		if d, err := storetest.Settle(t.Context(), workers[0], "x", 5000); err != nil || d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
		got := store.events(t)
		if len(got) != 1 || got[0].Type != engine.EventExceeded || got[0].Limit != 2000 || got[0].User != "free" {
			t.Errorf("%+v; want one of the limit of 2000", got)
		}
	})
}
