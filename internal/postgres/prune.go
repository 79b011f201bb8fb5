package postgres

import (
	"encoding/binary"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/engine"
)

// Every update leaves the row's old version in its page, and PostgreSQL clears dead ones out of a page only when a
// scan comes by it. An update that finds its row by place is no scan: the page would fill up, the row would move to
// another one, with new entries in every index, and the table would grow until the next vacuum. The worker knows how
// much it wrote to each page, and has one read when it is about to be full: seldom, where a lookup by key would look
// at it for every row.

// pruneSQL has the pages of some rows scanned. A scan over a range of places does that, a scan of one place does not.
// The limit keeps the subquery from becoming a join, which could not use the range.
const pruneSQL = `
SELECT FROM unnest($1::tid[]) AS p (place)
CROSS JOIN LATERAL (SELECT FROM counters WHERE ctid >= p.place AND ctid <= p.place LIMIT 1) c`

const (
	// pageRoom is how many bytes may be written to a page before it is pruned: three quarters of what the
	// fillfactor leaves free, because other workers write there too.
	pageRoom = 3000
	// rowOverhead is what a row takes beside its key, name and state: headers, lengths, and a usual spec.
	rowOverhead = 130
)

// pages counts the bytes written to each page since it was pruned. Pages that share a place in it are pruned too
// early.
type pages [1 << 16]uint16

// write counts a row that is about to be written, and tells whether its page is due.
func (p *pages) write(place tid, id engine.CounterID, state []byte) (due bool) {
	written := &p[binary.BigEndian.Uint32(place[:])%uint32(len(p))]
	sum := int(*written) + rowOverhead + len(id.Key) + len(id.Name) + len(state)
	if due = sum >= pageRoom; due {
		sum = 0
	}
	*written = uint16(sum)
	return due
}

// sendPrune has the pages pruned that are due; sent is false when none is.
func (t *tx) sendPrune(p *pgconn.Pipeline) (sent bool) {
	if len(t.due) == 0 {
		return false
	}
	t.params.reset()
	places := t.params.add(tidOID, len(t.due))
	for i := range t.due {
		element(places, t.due[i][:])
	}
	t.all.send(p, stPrune, t.params.values)
	return true
}
