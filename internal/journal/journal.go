// Package journal is what the journals of both stores have in common: how a row is sealed and read back, when what it says
// of counters is folded into their table, and how counters that are dirty lie over the table.
package journal

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// Mark is a row of the journal as the store that wrote or read it knows it.
type Mark struct {
	Seq int64
	At  time.Time // when it was written, or seen
	// Before counts the bytes of the rows before this one, as far back as the process remembers.
	Before int64
}

// Policy says when dirty counters are written to their table. The longest dirty go first, so that the beginning of
// the journal becomes needless.
type Policy struct {
	// After is how long a counter may be dirty.
	After time.Duration
	// Rows is how many may be dirty.
	Rows int
	// PerRow is how many bytes the journal may have for each dirty counter, within Least and Most. A counter that is
	// charged all the time is so written to its table once in some dozens of charges.
	PerRow, Least, Most int64
	// Some is how many are folded with one transaction, and Drop how many rows of the journal are removed with one:
	// both keep a transaction short.
	Some int
	Drop int64
}

// Default is the policy of a journal of most bytes at most, which a store reads when it begins.
func Default(most int64) Policy {
	return Policy{After: 5 * time.Second, Rows: 1 << 16, PerRow: 8 << 10, Least: 4 << 20, Most: most, Some: 64, Drop: 16}
}

// Dirty is what a policy looks at.
type Dirty struct {
	// Rows is how many counters are dirty, and Since since when each of them is, the longest first.
	Rows  int
	Since iter.Seq[*Mark]
	// Journaled counts the bytes of the journal's rows, from where [Mark.Before] counts.
	Journaled int64
}

// Due is how many of the longest dirty are to be folded with a transaction that changes so many.
func (p *Policy) Due(d Dirty, changes int) int {
	if p.pressed(d) {
		return min(max(p.Some, changes), d.Rows)
	}
	return p.Aged(d, p.After)
}

// pressed tells whether there are more dirty counters, or there is more of the journal, than may be.
func (p *Policy) pressed(d Dirty) bool {
	for oldest := range d.Since {
		most := min(max(int64(d.Rows)*p.PerRow, p.Least), p.Most)
		return d.Rows > p.Rows || d.Journaled-oldest.Before > most
	}
	return false
}

// Aged is how many have been dirty for longer, up to what one transaction folds.
func (p *Policy) Aged(d Dirty, after time.Duration) (n int) {
	limit := time.Now().Add(-after)
	for m := range d.Since {
		if n == p.Some || m.At.After(limit) {
			break
		}
		n++
	}
	return n
}

const (
	// TendEvery is how often [Tend] looks.
	TendEvery = time.Second
	// tendPatience is how many times on end folding may fail before that is said: one failure is that of a busy second.
	tendPatience = 10
)

// Tend calls fold every TendEvery until ctx ends, and again as long as that says that there is more: for what no
// transaction came by to take along. What fails is tried again the next time: it is in the journal. The log says when that has
// lasted, since the journal grows meanwhile, and when it is over.
func Tend(ctx context.Context, log *slog.Logger, fold func() (more bool, err error)) {
	tick := time.NewTicker(TendEvery)
	defer tick.Stop()
	failed := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		more, err := fold()
		for more && err == nil {
			more, err = fold()
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if failed++; failed == tendPatience {
				log.Error("the journal cannot be folded into the table counters, and grows", "error", err)
			}
		default:
			if failed >= tendPatience {
				log.Info("the journal is folded again")
			}
			failed = 0
		}
	}
}

// Merge gives the first of two ordered lists together, and of two with one id that of the first list.
func Merge[T any](over, under []T, max int, id func(*T) engine.CounterID) []T {
	if len(over) == 0 {
		return under
	}
	var all []T
	for len(all) < max && len(over)+len(under) > 0 {
		order := -1
		switch {
		case len(over) == 0:
			order = 1
		case len(under) > 0:
			order = id(&over[0]).Compare(id(&under[0]))
		}
		if order > 0 {
			all, under = append(all, under[0]), under[1:]
			continue
		}
		if order == 0 {
			under = under[1:]
		}
		all, over = append(all, over[0]), over[1:]
	}
	return all
}
