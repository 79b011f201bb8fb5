package postgres

import (
	"math"
	"unique"

	"github.com/google/btree"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// row is a counter as the last row of the journal that names it says, or as its table does.
type row struct {
	id      engine.CounterID
	state   []byte
	expires int64
	// spec is shared by the rows that have the same one, which are many.
	spec unique.Handle[string]

	// since is the oldest row of the journal that has what the table lacks of this one; nil when the table has it all.
	since *journal.Mark
	// last is the row of the journal that changed it last; 0 when none did while it was remembered.
	last int64
	// place is where it was read in the table, until it is changed; zero when that is not known.
	place place
	// older and newer are its neighbours among the dirty rows, or among the clean ones.
	older, newer *row
	// used says of a clean one that it was looked up since its turn to be forgotten came; sorted, of a dirty one that it
	// stands in the tree.
	used, sorted bool
}

// place is where the table has a row, as PostgreSQL sends a ctid. It may have moved, or another may be there since.
type place [6]byte

// stored copies a row for a caller.
func (r *row) stored() engine.StoredCounter {
	return engine.StoredCounter{CounterID: r.id, Spec: []byte(r.spec.Value()), State: append([]byte{}, r.state...)}
}

const (
	// rowsMost bounds the rows that are remembered, where some are clean; cleanMost of these are remembered anyway.
	rowsMost  = 5 << 14
	cleanMost = 1 << 14
)

// memory holds rows as they are behind the last row of the journal that was read: all dirty ones, whose last change the
// table may lack, and some clean ones, which spare a look into the table.
//
// Clean rows are forgotten by second chance: it does what a least-recently-used cache does, but a look-up sets a mark
// where that one moves an element of a list.
type memory struct {
	rows  map[engine.CounterID]*row
	dirty list // in order of since
	clean list
	// soonest is no later than when the first of the dirty rows expires, in Unix milliseconds.
	soonest int64
	// tree has the dirty rows in order of id, but for those of unsorted, which are put there when somebody asks.
	tree     *btree.BTreeG[*row]
	unsorted []*row
}

func newMemory() *memory {
	m := &memory{
		rows: make(map[engine.CounterID]*row), soonest: math.MaxInt64,
		tree: btree.NewG(32, func(a, b *row) bool { return a.id.Compare(b.id) < 0 }),
	}
	m.dirty.init()
	m.clean.init()
	return m
}

// list is a ring of rows: head.newer is its oldest, head.older the one that was added last.
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

// oldest is nil when there is none.
func (l *list) oldest() *row { return l.next(&l.head) }

// next is the row that was added after r.
func (l *list) next(r *row) *row {
	if r.newer == &l.head {
		return nil
	}
	return r.newer
}

// since calls yield with what made each row dirty, in order.
func (l *list) since(yield func(*journal.Mark) bool) {
	for r := l.oldest(); r != nil && yield(r.since); r = l.next(r) {
	}
}

// find is nil for what is not remembered.
func (m *memory) find(id engine.CounterID) *row {
	r := m.rows[id]
	if r != nil {
		r.used = true
	}
	return r
}

// keep remembers a row that the table has as it is. It forgets no other, which may be in use: trim does.
func (m *memory) keep(r *row) {
	m.rows[r.id] = r
	m.clean.add(r)
}

// soil notes that a row, new or known, was changed by a row of the journal.
func (m *memory) soil(r *row, by *journal.Mark) {
	r.last, r.place = by.Seq, place{}
	m.soonest = min(m.soonest, r.expires)
	if r.since != nil {
		return
	}
	if r.newer != nil {
		m.clean.remove(r)
	}
	m.rows[r.id], r.since = r, by
	m.dirty.add(r)
	if m.unsorted = append(m.unsorted, r); len(m.unsorted) > 8*cleanMost {
		m.sort()
	}
}

// sort puts all dirty rows into the tree.
func (m *memory) sort() {
	for _, r := range m.unsorted {
		if r.since != nil && !r.sorted {
			r.sorted = true
			m.tree.ReplaceOrInsert(r)
		}
	}
	clear(m.unsorted)
	m.unsorted = m.unsorted[:0]
}

// wash notes that the table has a dirty row as it is.
func (m *memory) wash(r *row) {
	m.unlink(r)
	m.keep(r)
}

func (m *memory) unlink(r *row) {
	m.dirty.remove(r)
	if r.sorted {
		m.tree.Delete(r)
	}
	r.since, r.sorted = nil, false
}

// drop forgets a row, which is no more.
func (m *memory) drop(r *row) {
	if r.since != nil {
		m.unlink(r)
	} else {
		m.clean.remove(r)
	}
	delete(m.rows, r.id)
}

// replace puts what was found in the table in the place of a clean row; each may be nil for none.
func (m *memory) replace(old, found *row) *row {
	if old != nil {
		m.drop(old)
		if found != nil {
			found.last = old.last // of which the journal may still speak
		}
	}
	if found != nil {
		m.keep(found)
	}
	return found
}

// trim forgets clean rows beyond the bound.
func (m *memory) trim() {
	for most := max(cleanMost, rowsMost-m.dirty.n); m.clean.n > most; {
		r := m.clean.oldest()
		m.clean.remove(r)
		if r.used {
			r.used = false
			m.clean.add(r)
			continue
		}
		delete(m.rows, r.id)
	}
}

// each calls f for the dirty rows behind from whose key is below end, in order, until f says no.
func (m *memory) each(from engine.CounterID, end string, f func(*row) bool) {
	m.sort()
	m.tree.AscendGreaterOrEqual(&row{id: from}, func(r *row) bool {
		if r.id == from {
			return true
		}
		return r.id.Key < end && f(r)
	})
}

// expired gives the dirty rows that have expired. It goes over all of them, of which there may be 65,536, only where one may have.
func (m *memory) expired(now int64) (all []*row) {
	if now < m.soonest {
		return nil
	}
	m.soonest = math.MaxInt64
	for r := m.dirty.oldest(); r != nil; r = m.dirty.next(r) {
		m.soonest = min(m.soonest, r.expires)
		if r.expires <= now {
			all = append(all, r)
		}
	}
	return all
}

// replay does what a row of the journal says that another process wrote, and tells to which counter.
func (m *memory) replay(e *entry, by *journal.Mark) engine.CounterID {
	r, known := m.rows[engine.CounterID{Key: string(e.key), Name: string(e.name)}]
	if !known {
		r = &row{id: engine.CounterID{Key: string(e.key), Name: string(e.name)}}
	}
	switch {
	case !e.removed:
		r.state, r.expires, r.spec = append(r.state[:0], e.state...), e.expires, e.spec
		m.soil(r, by)
	case known:
		m.drop(r)
	}
	return r.id
}

// folded notes that the table has what the rows of the journal before first say.
func (m *memory) folded(first *journal.Mark) {
	for r := m.dirty.oldest(); r != nil && r.since.Seq < first.Seq; {
		next := m.dirty.next(r)
		if r.last < first.Seq {
			m.wash(r)
		} else {
			r.since = first
		}
		r = next
	}
}
