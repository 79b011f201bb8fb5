package sqlite

import (
	"sync"
	"unique"

	"github.com/google/btree"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// row is a counter as it was written last.
type row struct {
	id      engine.CounterID
	state   []byte
	expires int64
	// spec is shared by the rows that have the same one, which are many.
	spec unique.Handle[string]
	// table is what the table counters has besides the state, which only a fold changes.
	table struct {
		there   bool
		expires int64
		spec    unique.Handle[string]
	}
	// dirty says since when the table lacks what is here; nil when it has it all.
	dirty *journal.Mark
	// older and newer are its neighbours among the dirty rows.
	older, newer *row
}

// stored copies a row for a caller.
func (r *row) stored() engine.StoredCounter {
	return engine.StoredCounter{CounterID: r.id, Spec: []byte(r.spec.Value()), State: append([]byte{}, r.state...)}
}

// overlay holds the dirty rows: those whose last change is in the journal and not yet in the table. Over the table it
// gives what is.
//
// Who holds the store's write lock may read it. Changing it, or a row in it, takes mu as well, so that others can read
// it under mu without waiting for a transaction.
type overlay struct {
	mu   sync.RWMutex
	rows map[engine.CounterID]*row
	tree *btree.BTreeG[*row]
	// ring.newer is the row that has been dirty longest, ring.older the last one.
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

// add takes a clean row in as the one that has been dirty for the shortest time.
func (o *overlay) add(r *row, since *journal.Mark) {
	r.dirty = since
	r.older, r.newer = o.ring.older, o.ring
	r.older.newer, r.newer.older = r, r
	o.rows[r.id] = r
	o.tree.ReplaceOrInsert(r)
}

func (o *overlay) remove(r *row) {
	r.older.newer, r.newer.older = r.newer, r.older
	r.dirty, r.older, r.newer = nil, nil, nil
	delete(o.rows, r.id)
	o.tree.Delete(r)
}

// become takes over what another overlay holds, which must not be used any more.
func (o *overlay) become(other *overlay) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rows, o.tree, o.ring = other.rows, other.tree, other.ring
}

// oldest is the row that has been dirty longest; nil when none is dirty.
func (o *overlay) oldest() *row { return o.next(o.ring) }

// next is the row that became dirty after r.
func (o *overlay) next(r *row) *row {
	if r.newer == o.ring {
		return nil
	}
	return r.newer
}

// since calls yield with what made each row dirty, in order.
func (o *overlay) since(yield func(*journal.Mark) bool) {
	for r := o.oldest(); r != nil && yield(r.dirty); r = o.next(r) {
	}
}

// each calls f for the dirty rows of a span, in order, until f says no.
func (o *overlay) each(sp span, f func(*row) bool) {
	o.tree.AscendGreaterOrEqual(&row{id: sp.from}, func(r *row) bool {
		if r.id == sp.from {
			return true
		}
		return sp.above(r.id.Key) && f(r)
	})
}

// span is a range of ids: those behind from whose key is below end. An empty end is behind all keys.
type span struct {
	from engine.CounterID
	end  string
}

func (sp span) above(key string) bool { return sp.end == "" || key < sp.end }

// bound is the end for a query: a blob sorts behind every text.
func (sp span) bound() any {
	if sp.end == "" {
		return []byte{}
	}
	return sp.end
}
