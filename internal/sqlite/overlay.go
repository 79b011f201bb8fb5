package sqlite

import (
	"sync"
	"unique"

	"github.com/google/btree"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// row is a counter as the last transaction that changed it has left it.
type row struct {
	id      engine.CounterID
	state   []byte
	expires int64
	// spec is interned, because many counters have the same one.
	spec unique.Handle[string]
	// table is what the table counters has of it, apart from the state. Only a fold changes it.
	table struct {
		exists  bool
		expires int64
		spec    unique.Handle[string]
	}
	// dirtySince marks the journal row from which on the table lacks changes of this counter; nil
	// if the row is clean.
	dirtySince *journal.Mark
	// older and newer link the row into the ring of dirty rows.
	older, newer *row
}

// toStored copies a row for a caller.
func (r *row) toStored() engine.StoredCounter {
	return engine.StoredCounter{CounterID: r.id, Spec: []byte(r.spec.Value()), State: append([]byte{}, r.state...)}
}

// overlay holds the dirty rows: those whose last change is in the journal but not yet in the table.
// It takes precedence over the table.
//
// The holder of the store's writeLock may read it. Changes of the overlay, or of a row in it, need
// mu as well, so that others can read it under mu without waiting for a transaction.
type overlay struct {
	mu   sync.RWMutex
	rows map[engine.CounterID]*row
	tree *btree.BTreeG[*row]
	// ring.newer is the row that has been dirty longest, ring.older the one that became dirty last.
	ring *row
}

func newOverlay() *overlay {
	o := &overlay{
		ring: new(row),
		rows: make(map[engine.CounterID]*row),
		tree: btree.NewG(32, func(a, b *row) bool { return a.id.Compare(b.id) < 0 }),
	}
	o.ring.older, o.ring.newer = o.ring, o.ring
	return o
}

// add adds a clean row as the newest dirty one.
func (o *overlay) add(r *row, since *journal.Mark) {
	r.dirtySince = since
	r.older, r.newer = o.ring.older, o.ring
	r.older.newer, r.newer.older = r, r
	o.rows[r.id] = r
	o.tree.ReplaceOrInsert(r)
}

func (o *overlay) remove(r *row) {
	r.older.newer, r.newer.older = r.newer, r.older
	r.dirtySince, r.older, r.newer = nil, nil, nil
	delete(o.rows, r.id)
	o.tree.Delete(r)
}

// replaceWith takes over the rows of another overlay, which must not be used any more.
func (o *overlay) replaceWith(other *overlay) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rows, o.tree, o.ring = other.rows, other.tree, other.ring
}

// oldest returns the row that has been dirty longest; nil if none is dirty.
func (o *overlay) oldest() *row { return o.next(o.ring) }

// next returns the row that became dirty after r; nil if r is the newest.
func (o *overlay) next(r *row) *row {
	if r.newer == o.ring {
		return nil
	}
	return r.newer
}

// marks yields the dirtySince of each row, in order.
func (o *overlay) marks(yield func(*journal.Mark) bool) {
	for r := o.oldest(); r != nil && yield(r.dirtySince); r = o.next(r) {
	}
}

// each calls f for the dirty rows of a span, in order, until f returns false.
func (o *overlay) each(sp span, f func(*row) bool) {
	o.tree.AscendGreaterOrEqual(&row{id: sp.from}, func(r *row) bool {
		if r.id == sp.from {
			return true
		}
		return sp.beforeEnd(r.id.Key) && f(r)
	})
}

// span is the ids greater than from whose key is below end. With an empty end there is no upper
// bound.
type span struct {
	from engine.CounterID
	end  string
}

func (sp span) beforeEnd(key string) bool { return sp.end == "" || key < sp.end }

// bound returns the end as a query parameter. A blob sorts after every text.
func (sp span) bound() any {
	if sp.end == "" {
		return []byte{}
	}
	return sp.end
}
