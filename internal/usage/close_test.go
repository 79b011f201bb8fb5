package usage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestCloseMayOutlastOneWrite: at the end it may write more than fits into the time of one write.
func TestCloseMayOutlastOneWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &notebook{takes: 20 * time.Millisecond}
		r := record(t, Config{Store: s})
		const keys = 45_000
		for i := range keys {
			r.Tally(decided(engine.Consume, 1, fmt.Sprint(i)))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := r.Close(ctx); err != nil || len(s.counts) != keys {
			t.Errorf("%d of %d counts written: %v", len(s.counts), keys, err)
		}
	})
}

// TestCloseReportsLosses: its numbers come after their nouns, so that any number reads well.
func TestCloseReportsLosses(t *testing.T) {
	t.Parallel()
	s := new(notebook)
	s.fail(errors.New("the disk is full"))
	r := record(t, Config{Store: s})
	r.Tally(decided(engine.Consume, 1, "a"))
	if err := r.Close(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "the disk is full; lost: counts 1, requests 0") {
		t.Errorf("Close = %v", err)
	}
}

// TestCloseReportsLostRequests, those that wait for the store and those in the queue behind them.
func TestCloseReportsLostRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(notebook)
		s.fail(errors.New("the disk is full"))
		r := record(t, Config{Store: s, Queue: 2})
		for range 2 {
			r.Log(Request{Key: "waits for the store"})
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		r.Log(Request{Key: "is in the queue"})
		if err := r.Close(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "the disk is full; lost: counts 0, requests 3") {
			t.Errorf("Close = %v", err)
		}
	})
}

// TestOneRequestIsWritten, though no other follows.
func TestOneRequestIsWritten(t *testing.T) {
	t.Parallel()
	s := new(notebook)
	r := record(t, Config{Store: s})
	r.Log(Request{Key: "a"})
	if err := r.Close(t.Context()); err != nil || len(s.requests) != 1 {
		t.Errorf("%d requests are written, %v", len(s.requests), err)
	}
}

// TestCloseEndsWithItsContext, also behind a write that hangs.
func TestCloseEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := record(t, Config{Store: &notebook{takes: time.Hour}})
		r.Tally(decided(engine.Consume, 1, "a"))
		time.Sleep(6 * time.Second) // it writes
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := r.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		time.Sleep(writeTimeout) // the write is given up
	})
}

// TestCloseReportsLossesBehindASlowWrite: a write in progress ends early enough for that.
func TestCloseReportsLossesBehindASlowWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &notebook{takes: 2 * time.Second}
		r := record(t, Config{Store: s})
		const keys = 20 * writeRows
		for i := range keys {
			r.Tally(decided(engine.Consume, 1, fmt.Sprint(i)))
		}
		time.Sleep(writePeriod)
		synctest.Wait() // it writes
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err, written := r.Close(ctx), len(s.written())
		if err == nil || written == 0 || !strings.HasSuffix(err.Error(), fmt.Sprintf("; lost: counts %d, requests 0", keys-written)) {
			t.Errorf("%d of %d counts are written: %v", written, keys, err)
		}
	})
}

// TestHangingStoreIsGivenUp after the time of one transaction.
func TestHangingStoreIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := record(t, Config{Store: &notebook{takes: time.Hour}})
		r.Tally(decided(engine.Consume, 1, "a"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if err := r.Close(ctx); err == nil || time.Since(began) != writeTimeout {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// TestCloseLetsAWriteEnd: if it were cut off it might be unknown whether it is stored.
func TestCloseLetsAWriteEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &notebook{takes: 2 * time.Second}
		r := record(t, Config{Store: s})
		r.Tally(decided(engine.Consume, 1, "a"))
		time.Sleep(6 * time.Second) // it writes
		if err := r.Close(t.Context()); err != nil || s.cutOff > 0 || len(s.written()) != 1 {
			t.Errorf("%d writes were cut off, %v; %d counts are written", s.cutOff, err, len(s.written()))
		}
	})
}
