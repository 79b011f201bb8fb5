package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestReadsThatWaitShareOneLook: anybody may ask for a status, and decisions wait for each look into the journal.
func TestReadsThatWaitShareOneLook(t *testing.T) {
	t.Parallel()
	const reads = 100
	s := open(t, Config{URL: testenv.Postgres(t)})
	for i := range reads {
		update(t, s, batch(fmt.Sprint("k", i)), set("1"))
	}
	release, err := acquire(t.Context(), s.writeLock)
	if err != nil {
		t.Fatal(err)
	}
	waiting := func() int {
		s.dirtyReads.mu.Lock()
		defer s.dirtyReads.mu.Unlock()
		return len(s.dirtyReads.waiting)
	}
	until := func(n int) {
		for waiting() != n {
			time.Sleep(time.Millisecond)
		}
	}
	// The first has the turn, and does not live to serve the others.
	first, giveUp := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() { _, _, err := s.Counters(first, "k0"); gaveUp <- err }()
	until(1)
	ended := make(chan error, reads)
	for i := range reads {
		go func() {
			found, _, err := s.Counters(t.Context(), fmt.Sprint("k", i))
			if err == nil && (len(found) != 1 || found[0].Key != fmt.Sprint("k", i)) {
				err = fmt.Errorf("%+v", found)
			}
			ended <- err
		}()
	}
	until(reads + 1)
	giveUp()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up: %v", err)
	}
	until(reads)
	before := s.pool.Stat().AcquireCount()
	release()
	for range reads {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	// Each reads the table, on a connection of its own.
	if looks := s.pool.Stat().AcquireCount() - before - reads; looks != 1 || waiting() != 0 {
		t.Errorf("%d reads took %d looks into the journal, and %d wait", reads, looks, waiting())
	}
}

// TestLargeReadsAreServedInParts: after some thousands of counters, decisions have their turn.
func TestLargeReadsAreServedInParts(t *testing.T) {
	t.Parallel()
	s := open(t, Config{URL: testenv.Postgres(t)})
	for i := range 1000 {
		update(t, s, engine.Batch{Counters: []engine.CounterID{{Key: "a", Name: fmt.Sprintf("%04d", i)}}}, set("1"))
	}
	var reads []*dirtyRead
	for range 12 {
		r := &dirtyRead{span: span{end: "b"}, max: 1001, done: make(chan struct{})}
		s.dirtyReads.add(r)
		reads = append(reads, r)
	}
	served := func() (n int) {
		for _, r := range reads {
			select {
			case <-r.done:
				n++
			default:
			}
		}
		return n
	}
	for _, want := range []int{5, 10, 12, 12} {
		if err := s.serveDirtyReads(t.Context(), reads[len(reads)-1]); err != nil || served() != want {
			t.Errorf("%d are served, want %d: %v", served(), want, err)
		}
	}
	for i, r := range reads {
		if len(r.all) != 1000 || r.err != nil {
			t.Errorf("read %d: %d counters, %v", i, len(r.all), r.err)
		}
	}
}

// TestStatusIsBounded: so many counters of a key are read from the table, too.
func TestStatusIsBounded(t *testing.T) {
	t.Parallel()
	s := open(t, Config{URL: testenv.Postgres(t)})
	for i := range engine.MaxKeyCounters + 5 {
		update(t, s, engine.Batch{Counters: []engine.CounterID{{Key: "a", Name: fmt.Sprintf("%04d", i)}}}, set("1"))
	}
	s.foldAll()
	storetest.CheckManyOfOneKey(t, s)
}

// TestManyReadsAreServedInParts, so that decisions wait for some of them only.
func TestManyReadsAreServedInParts(t *testing.T) {
	t.Parallel()
	d := dirtyReads{}
	all := make([]*dirtyRead, maxDirtyReads+2)
	for i := range all {
		all[i] = &dirtyRead{}
		d.add(all[i])
	}
	d.remove(all[maxDirtyReads])
	if part := d.take(); len(part) != maxDirtyReads || part[0] != all[0] {
		t.Errorf("%d first", len(part))
	}
	if part := d.take(); len(part) != 1 || part[0] != all[maxDirtyReads+1] {
		t.Errorf("%d then", len(part))
	}
	if part := d.take(); len(part) != 0 || d.waiting != nil {
		t.Errorf("%d in the end", len(part))
	}
}
