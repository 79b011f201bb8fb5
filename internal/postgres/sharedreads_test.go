package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/keys"
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
	makeConns(t, s, cap(s.readSlots)+2) // which counts, too
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

// makeConns has the store have n connections.
func makeConns(t *testing.T, s *Store, n int) {
	t.Helper()
	for range n {
		c, err := s.conns.get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Release()
	}
}

// TestLargeReadsAreServedInParts: after some thousands of counters, decisions have their turn.
func TestLargeReadsAreServedInParts(t *testing.T) {
	t.Parallel()
	s := open(t, Config{URL: testenv.Postgres(t)})
	var all engine.Batch
	for i := range 1000 {
		all.Counters = append(all.Counters, engine.CounterID{Key: "a", Name: fmt.Sprintf("%04d", i)})
	}
	update(t, s, all, set("1"))
	var reads []*sharedRead[dirtyQuestion, []engine.StoredCounter]
	for range 12 {
		reads = append(reads, s.dirtyReads.add(dirtyQuestion{span{end: "b"}, 1001}))
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
		if err := s.serveDirtyReads(t.Context()); err != nil || served() != want {
			t.Errorf("%d are served, want %d: %v", served(), want, err)
		}
	}
	for i, r := range reads {
		if len(r.answer) != 1000 || r.err != nil {
			t.Errorf("read %d: %d counters, %v", i, len(r.answer), r.err)
		}
	}
}

// TestStatusIsBounded: so many counters of a key are read from the table, too.
func TestStatusIsBounded(t *testing.T) {
	t.Parallel()
	s := open(t, Config{URL: testenv.Postgres(t)})
	var all engine.Batch
	for i := range engine.MaxKeyCounters + 5 {
		all.Counters = append(all.Counters, engine.CounterID{Key: "a", Name: fmt.Sprintf("%04d", i)})
	}
	update(t, s, all, set("1"))
	s.foldAll()
	storetest.CheckManyOfOneKey(t, s)
}

// TestManyReadsAreServedInParts, so that decisions wait for some of them only.
func TestManyReadsAreServedInParts(t *testing.T) {
	t.Parallel()
	d := newSharedReads[int, int]()
	all := make([]*sharedRead[int, int], 6)
	for i := range all {
		all[i] = d.add(i)
	}
	d.remove(all[4])
	if part := d.take(4); len(part) != 4 || part[0] != all[0] {
		t.Errorf("%d first", len(part))
	}
	d.giveBack(all[2:4])
	if part := d.take(4); len(part) != 3 || part[0] != all[2] || part[2] != all[5] {
		t.Errorf("%d then", len(part))
	}
	if part := d.take(4); len(part) != 0 || d.waiting != nil {
		t.Errorf("%d in the end", len(part))
	}
}

// TestKeysAreLookedUpTogether: keys that are made up do not keep others waiting.
func TestKeysAreLookedUpTogether(t *testing.T) {
	t.Parallel()
	const reads = 700 // more than one query has
	s := open(t, Config{URL: testenv.Postgres(t)})
	for i := range 3 {
		if err := s.CreateKey(t.Context(), keys.Key{ID: fmt.Sprintf("%08d", i*300), User: fmt.Sprint("u", i)}); err != nil {
			t.Fatal(err)
		}
	}
	s.keyReads.turn <- struct{}{}
	ended := make(chan error, reads)
	for i := range reads {
		go func() {
			k, found, err := s.Key(t.Context(), fmt.Sprintf("%08d", i))
			if want := i%300 == 0; err == nil && (found != want || want && (k.ID != fmt.Sprintf("%08d", i) || k.User != fmt.Sprint("u", i/300))) {
				err = fmt.Errorf("key %d: %+v, %v", i, k, found)
			}
			ended <- err
		}()
	}
	for waiting := 0; waiting < reads; time.Sleep(time.Millisecond) {
		s.keyReads.mu.Lock()
		waiting = len(s.keyReads.waiting)
		s.keyReads.mu.Unlock()
	}
	makeConns(t, s, cap(s.readSlots)+2) // which counts, too
	before := s.pool.Stat().AcquireCount()
	<-s.keyReads.turn
	for range reads {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if queries := s.pool.Stat().AcquireCount() - before; queries != 2 {
		t.Errorf("%d keys took %d queries", reads, queries)
	}
}
