package engine_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestAFullQueueIsBoundedInMemory: of requests with many limits fewer may wait. It does not run
// beside other tests, because it looks at the memory of the process.
func TestAFullQueueIsBoundedInMemory(t *testing.T) {
	const most = 64 << 20
	store := openTap(t)
	e := start(t, engine.Config{Store: store, Deadline: time.Minute})
	store.hold()
	long, limit := strings.Repeat("x", 245), per(t, "", 100, "1h")
	var done sync.WaitGroup
	submit := func(n, limits int) error {
		r := &engine.Request{Cost: 1, Done: func(engine.Decision, error) { done.Done() }}
		for i := range limits {
			l := limit
			l.Key = fmt.Sprintf("%05d:%04d:%s", n, i, long)
			l.User, l.Message = strings.Clone(long), strings.Clone(long)
			r.Limits = append(r.Limits, l)
		}
		done.Add(1)
		err := e.Submit(r)
		if err != nil {
			done.Done()
		}
		return err
	}
	if err := submit(0, 1); err != nil {
		t.Fatal(err)
	}
	<-store.enter
	before := heap()
	taken := 0
	for n := 1; n <= 16384; n++ {
		err := submit(n, 16)
		if errors.Is(err, engine.ErrOverloaded) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		taken++
	}
	if took := heap() - before; took > most || taken < 2000 {
		t.Errorf("%d of 16384 requests with 16 limits wait in %d MiB, want at most %d", taken, took>>20, most>>20)
	}
	for n := range 16384 - taken {
		if err := submit(0, 1); err != nil {
			t.Fatalf("after %d requests with one limit: %v", n, err)
		}
	}
	store.fail(func(bool) error { return errors.New("down") }) // to decide them all would take long
	store.release()
	done.Wait()
	store.fail(nil)
}

// heap is what the process holds, in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestTheWaitBeforeARequestIsSubmittedCounts: nobody may wait for it any longer.
func TestTheWaitBeforeARequestIsSubmittedCounts(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		time.Sleep(time.Hour)
		for waited, late := range map[time.Duration]bool{0: false, 700 * time.Millisecond: false, 1400 * time.Millisecond: false, 1600 * time.Millisecond: true, time.Minute: true} {
			if got := e.TooLate(time.Now().Add(-waited)); got != (waited > 750*time.Millisecond) { // half is for the queue
				t.Errorf("after %s it is too late: %t", waited, got)
			}
			_, err := e.Do(t.Context(), &engine.Request{Limits: []engine.Limit{per(t, "k", 100, "1h")}, Cost: 1, Waited: waited})
			if late != errors.Is(err, engine.ErrOverloaded) || !late && err != nil {
				t.Errorf("after %s: %v", waited, err)
			}
		}
		if d := ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 100, "1h")}, Verb: engine.Check}); d.Results[0].Used != 3 {
			t.Errorf("%d were charged", d.Results[0].Used)
		}
	})
}

// TestNoRequestIsTooLateWhileTheStoreFails: it is answered without the store, as its policy says.
func TestNoRequestIsTooLateWhileTheStoreFails(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		time.Sleep(time.Hour)
		store.fail(func(bool) error { return errors.New("down") })
		ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 100, "1h")}})
		if e.TooLate(time.Now().Add(-time.Minute)) {
			t.Error("it is refused")
		}
		if d := ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 100, "1h")}, Waited: time.Minute}); !d.Degraded || !d.Allowed {
			t.Errorf("%+v", d)
		}
		store.fail(nil)
	})
}
