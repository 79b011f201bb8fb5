package postgres

import (
	"math"
	"unique"

	"github.com/google/btree"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// row is a counter as the last journal row that names it says, else as the table counters has it.
type row struct {
	id      engine.CounterID
	state   []byte
	expires int64
	// spec is interned, because many counters have the same one.
	spec unique.Handle[string]

	// dirtySince marks the journal row from which on the table may lack changes of this counter;
	// nil if the row is clean.
	dirtySince *journal.Mark
	// lastChange is the number of the journal row that changed it last; 0 if none did while it was
	// cached.
	lastChange int64
	// ctid is where the row was read in the table; zero if unknown, and after any change.
	ctid tid
	// older and newer link the row into the dirty or the clean list.
	older, newer *row
	// used is set by a lookup, and cleared when evict spares the row for it (second chance). inTree
	// says that the dirty row is in the tree.
	used, inTree bool
}

// tid is the location of a row in its table, as PostgreSQL sends a ctid. The row may have moved
// since, and another row may be there.
type tid [6]byte

// toStored copies a row for a caller.
func (r *row) toStored() engine.StoredCounter {
	return engine.StoredCounter{CounterID: r.id, Spec: []byte(r.spec.Value()), State: append([]byte{}, r.state...)}
}

const (
	// maxRows bounds the cache. Dirty rows may exceed it, and cleanReserve clean rows are kept even
	// then.
	maxRows      = 5 << 14
	cleanReserve = 1 << 14
)

// counterCache is a write-back cache of the table counters, as of the last journal row that was
// read. It holds all dirty rows and some clean ones, which save a read of the table.
//
// Clean rows are evicted by second chance. That behaves like a least-recently-used list, but a
// lookup only sets a flag instead of moving a list element.
type counterCache struct {
	rows  map[engine.CounterID]*row
	dirty list // in order of dirtySince
	clean list
	// nextExpiry is a lower bound on when the first dirty row expires, in Unix milliseconds.
	nextExpiry int64
	// tree has the dirty rows in order of id, except those in notInTree. fillTree adds them when an
	// ordered read needs it.
	tree      *btree.BTreeG[*row]
	notInTree []*row
}

func newCounterCache() *counterCache {
	c := &counterCache{
		rows: make(map[engine.CounterID]*row), nextExpiry: math.MaxInt64,
		tree: btree.NewG(32, func(a, b *row) bool { return a.id.Compare(b.id) < 0 }),
	}
	c.dirty.init()
	c.clean.init()
	return c
}

// list is a ring of rows: head.newer is the oldest one, head.older the newest.
type list struct {
	head row
	n    int
}

func (l *list) init() { l.head.older, l.head.newer = &l.head, &l.head }

func (l *list) add(r *row) {
	r.older, r.newer = l.head.older, &l.head
	r.older.newer, r.newer.older = r, r
	l.n++
}

func (l *list) remove(r *row) {
	r.older.newer, r.newer.older = r.newer, r.older
	r.older, r.newer = nil, nil
	l.n--
}

// oldest returns nil if the list is empty.
func (l *list) oldest() *row { return l.next(&l.head) }

// next returns the row that was added after r; nil if r is the newest.
func (l *list) next(r *row) *row {
	if r.newer == &l.head {
		return nil
	}
	return r.newer
}

// marks yields the dirtySince of each row, in order.
func (l *list) marks(yield func(*journal.Mark) bool) {
	for r := l.oldest(); r != nil && yield(r.dirtySince); r = l.next(r) {
	}
}

// get returns nil if the counter is not cached.
func (c *counterCache) get(id engine.CounterID) *row {
	r := c.rows[id]
	if r != nil {
		r.used = true
	}
	return r
}

// addClean adds a row that is as the table has it. It evicts no other row, since the running
// transaction may use it; evict is called between transactions.
func (c *counterCache) addClean(r *row) {
	c.rows[r.id] = r
	c.clean.add(r)
}

// markDirty notes that a row, cached or new, was changed by a journal row.
func (c *counterCache) markDirty(r *row, by *journal.Mark) {
	r.lastChange, r.ctid = by.Seq, tid{}
	c.nextExpiry = min(c.nextExpiry, r.expires)
	if r.dirtySince != nil {
		return
	}
	if r.newer != nil {
		c.clean.remove(r)
	}
	c.rows[r.id], r.dirtySince = r, by
	c.dirty.add(r)
	if c.notInTree = append(c.notInTree, r); len(c.notInTree) > 8*cleanReserve {
		c.fillTree()
	}
}

// fillTree adds the dirty rows of notInTree to the tree.
func (c *counterCache) fillTree() {
	for _, r := range c.notInTree {
		if r.dirtySince != nil && !r.inTree {
			r.inTree = true
			c.tree.ReplaceOrInsert(r)
		}
	}
	clear(c.notInTree)
	c.notInTree = c.notInTree[:0]
}

// markClean notes that a dirty row is now as the table has it.
func (c *counterCache) markClean(r *row) {
	c.unlinkDirty(r)
	c.addClean(r)
}

func (c *counterCache) unlinkDirty(r *row) {
	c.dirty.remove(r)
	if r.inTree {
		c.tree.Delete(r)
	}
	r.dirtySince, r.inTree = nil, false
}

// remove removes a row whose counter no longer exists.
func (c *counterCache) remove(r *row) {
	if r.dirtySince != nil {
		c.unlinkDirty(r)
	} else {
		c.clean.remove(r)
	}
	delete(c.rows, r.id)
}

// replaceClean replaces the clean row old by found, which was read from the table. Either may be
// nil for none.
func (c *counterCache) replaceClean(old, found *row) *row {
	if old != nil {
		c.remove(old)
		if found != nil {
			found.lastChange = old.lastChange // the journal may still name the counter
		}
	}
	if found != nil {
		c.addClean(found)
	}
	return found
}

// evict removes clean rows beyond the bound.
func (c *counterCache) evict() {
	for most := max(cleanReserve, maxRows-c.dirty.n); c.clean.n > most; {
		r := c.clean.oldest()
		c.clean.remove(r)
		if r.used {
			r.used = false
			c.clean.add(r)
			continue
		}
		delete(c.rows, r.id)
	}
}

// eachDirty calls f for the dirty rows of a span, in order, until f returns false.
func (c *counterCache) eachDirty(sp span, f func(*row) bool) {
	c.fillTree()
	c.tree.AscendGreaterOrEqual(&row{id: sp.from}, func(r *row) bool {
		if r.id == sp.from {
			return true
		}
		return r.id.Key < sp.end && f(r)
	})
}

// expired returns the dirty rows that have expired. It only scans them (there may be 65,536)
// if nextExpiry says that one may have expired.
func (c *counterCache) expired(now int64) (all []*row) {
	if now < c.nextExpiry {
		return nil
	}
	c.nextExpiry = math.MaxInt64
	for r := c.dirty.oldest(); r != nil; r = c.dirty.next(r) {
		c.nextExpiry = min(c.nextExpiry, r.expires)
		if r.expires <= now {
			all = append(all, r)
		}
	}
	return all
}

// replay applies a change that another process wrote, and returns the counter's id.
func (c *counterCache) replay(e *entry, by *journal.Mark) engine.CounterID {
	r, known := c.rows[engine.CounterID{Key: string(e.key), Name: string(e.name)}]
	if !known {
		r = &row{id: engine.CounterID{Key: string(e.key), Name: string(e.name)}}
	}
	switch {
	case !e.removed:
		r.state, r.expires, r.spec = append(r.state[:0], e.state...), e.expires, e.spec
		c.markDirty(r, by)
	case known:
		c.remove(r)
	}
	return r.id
}

// markFoldedBefore notes that the table has every change of the journal rows before first.
func (c *counterCache) markFoldedBefore(first *journal.Mark) {
	for r := c.dirty.oldest(); r != nil && r.dirtySince.Seq < first.Seq; {
		next := c.dirty.next(r)
		if r.lastChange < first.Seq {
			c.markClean(r)
		} else {
			r.dirtySince = first
		}
		r = next
	}
}
