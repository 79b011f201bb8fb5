package postgres

import "github.com/seed503877ad/limits/internal/engine"

// recent is a cache by second chance (the clock algorithm): it does what a least-recently-used one does, but a look-up
// sets a mark where that one moves an element of a list, which is most of what a look-up costs among many rows.
type recent struct {
	byID map[engine.CounterID]*version
	// ring holds the entries, nil where one was removed; hand goes round it for one to drop.
	ring []*version
	hand int
}

func newRecent() recent { return recent{byID: make(map[engine.CounterID]*version)} }

// get is nil for what is not remembered.
func (r *recent) get(id engine.CounterID) *version {
	v := r.byID[id]
	if v != nil {
		v.used = true
	}
	return v
}

// add makes an entry for an id that has none.
func (r *recent) add(id engine.CounterID) *version {
	v := &version{id: id}
	r.byID[id] = v
	if len(r.ring) < versionsMost {
		v.slot = len(r.ring)
		r.ring = append(r.ring, v)
		return v
	}
	for r.ring[r.hand] != nil && r.ring[r.hand].used {
		r.ring[r.hand].used = false
		r.hand = (r.hand + 1) % len(r.ring)
	}
	if old := r.ring[r.hand]; old != nil {
		delete(r.byID, old.id)
	}
	v.slot = r.hand
	r.ring[r.hand] = v
	r.hand = (r.hand + 1) % len(r.ring)
	return v
}

func (r *recent) remove(id engine.CounterID) {
	if v := r.byID[id]; v != nil {
		delete(r.byID, id)
		r.ring[v.slot] = nil
	}
}
