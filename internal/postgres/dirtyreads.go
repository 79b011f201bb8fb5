package postgres

import (
	"context"
	"slices"
	"sync"

	"github.com/seed503877ad/limits/internal/engine"
)

// maxDirtyReads bounds the reads that are served while decisions wait, and maxDirtyRows the counters that they find: no read
// follows once there are so many.
const (
	maxDirtyReads = 256
	maxDirtyRows  = 4096
)

// dirtyReads are the reads that wait for counters which are not in the table yet. A read has to look after the journal was
// read, which holds writeLock for a round trip. So one of them does it for all that wait: if each did it by itself,
// decisions would wait for as many round trips as there are clients that ask for a status.
type dirtyReads struct {
	// turn is held by the read that serves the others.
	turn    chan struct{}
	mu      sync.Mutex
	waiting []*dirtyRead
}

type dirtyRead struct {
	span span
	max  int
	all  []engine.StoredCounter
	err  error
	// done is closed once all and err are set.
	done chan struct{}
}

func (d *dirtyReads) add(r *dirtyRead) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = append(d.waiting, r)
}

// take returns the reads that have waited longest.
func (d *dirtyReads) take() []*dirtyRead {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := min(len(d.waiting), maxDirtyReads)
	taken := d.waiting[:n:n]
	if d.waiting = d.waiting[n:]; len(d.waiting) == 0 {
		d.waiting = nil
	}
	return taken
}

// giveBack puts reads that were taken before those that wait.
func (d *dirtyReads) giveBack(reads []*dirtyRead) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = slices.Concat(reads, d.waiting)
}

// remove takes back a read whose caller has given up.
func (d *dirtyReads) remove(r *dirtyRead) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.Index(d.waiting, r); i >= 0 {
		d.waiting = slices.Delete(d.waiting, i, i+1)
	}
}

// dirtyCounters catches up with the journal and returns the first max dirty counters of a span.
func (s *Store) dirtyCounters(ctx context.Context, sp span, max int) (all []engine.StoredCounter, err error) {
	r := &dirtyRead{span: sp, max: max, done: make(chan struct{})}
	s.dirtyReads.add(r)
	defer s.dirtyReads.remove(r)
	for {
		select {
		case <-r.done:
			return r.all, r.err
		case <-ctx.Done():
			return nil, ctx.Err()
		case s.dirtyReads.turn <- struct{}{}:
		}
		err := s.serveDirtyReads(ctx, r)
		<-s.dirtyReads.turn
		if err != nil {
			return nil, err
		}
	}
}

// serveDirtyReads serves the reads that have waited longest, unless r is served already. Its error is of the wait for
// writeLock, and concerns only its caller.
func (s *Store) serveDirtyReads(ctx context.Context, r *dirtyRead) error {
	select {
	case <-r.done:
		return nil
	default:
	}
	// From here on it is for others, too: it does not end with the request of the one who does it.
	_, release, err := s.acquireBounded(ctx)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), decisionTimeout)
	defer cancel()
	reads := s.dirtyReads.take()
	err = s.catchUp(ctx)
	found := 0
	for i, one := range reads {
		if found >= maxDirtyRows {
			s.dirtyReads.giveBack(reads[i:])
			break
		}
		if one.err = err; err == nil {
			s.cache.eachDirty(one.span, func(row *row) bool {
				one.all = append(one.all, row.toStored())
				return len(one.all) < one.max
			})
		}
		found += len(one.all)
		close(one.done)
	}
	return nil
}
