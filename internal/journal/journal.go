// Package journal is what the journals of both stores have in common: how a row is sealed and read
// back, when dirty counters are folded into the table counters, and how a list of dirty counters is
// merged with one from the table.
//
// A counter is dirty while its last change is only in the journal. To fold it is to write it to the
// table.
package journal

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// Mark is a row of the journal, as known to the store that wrote or read it.
type Mark struct {
	Seq int64
	At  time.Time // when it was written or read
	// Before is the size in bytes of the rows before this one, as far back as the process remembers.
	Before int64
}

// Policy says when dirty counters are folded. Those that have been dirty longest are folded first,
// so that the beginning of the journal is no longer needed and can be dropped.
type Policy struct {
	// After is how long a counter may be dirty.
	After time.Duration
	// Rows is how many counters may be dirty.
	Rows int
	// PerRow is how many bytes the journal may have for each dirty counter; it may always have
	// Least and never more than Most. So a counter that is charged all the time is folded once in
	// some dozens of charges.
	PerRow, Least, Most int64
	// Some is how many counters one transaction folds, and Drop how many rows of the journal it
	// removes: both keep a transaction short.
	Some int
	Drop int64
}

// Default is the policy for a journal of at most most bytes. A store reads all of it when it starts.
func Default(most int64) Policy {
	return Policy{After: 5 * time.Second, Rows: 1 << 16, PerRow: 8 << 10, Least: 4 << 20, Most: most, Some: 64, Drop: 16}
}

// Dirty is the state that a policy looks at.
type Dirty struct {
	// Rows is how many counters are dirty. Since yields the row of the first change that each of
	// them has only in the journal, the oldest first.
	Rows  int
	Since iter.Seq[*Mark]
	// Journaled is the size of the journal's rows in bytes, counted from where [Mark.Before] counts.
	Journaled int64
}

// Due is how many counters to fold with a transaction that changes so many counters.
func (p *Policy) Due(d Dirty, changes int) int {
	if p.overBounds(d) {
		return min(max(p.Some, changes), d.Rows)
	}
	return p.Aged(d, p.After)
}

// overBounds reports whether there are too many dirty counters, or the journal is too long.
func (p *Policy) overBounds(d Dirty) bool {
	for oldest := range d.Since {
		most := min(max(int64(d.Rows)*p.PerRow, p.Least), p.Most)
		return d.Rows > p.Rows || d.Journaled-oldest.Before > most
	}
	return false
}

// Aged is how many counters have been dirty for longer than after, up to what one transaction folds.
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
	// TendEvery is how often [Tend] folds.
	TendEvery = time.Second
	// failuresBeforeLog is how many times in a row folding may fail before it is logged: one
	// failure is a busy second.
	failuresBeforeLog = 10
)

// Tend calls fold every TendEvery until ctx ends, and again at once while fold says that there is
// more. It folds what no transaction takes along. A failure loses nothing, since the changes are in
// the journal, and the next call tries again. Tend logs failures that last, because the journal
// grows meanwhile, and when they are over.
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
			if failed++; failed == failuresBeforeLog {
				log.Error("cannot fold the journal into the table counters; the journal keeps growing", "error", err)
			}
		default:
			if failed >= failuresBeforeLog {
				log.Info("the journal is being folded again")
			}
			failed = 0
		}
	}
}

// Merge merges two ordered lists, up to max items. If both have an item with one id it takes the
// dirty one.
func Merge[T any](dirty, clean []T, max int, id func(*T) engine.CounterID) []T {
	if len(dirty) == 0 {
		return clean
	}
	var all []T
	for len(all) < max && len(dirty)+len(clean) > 0 {
		order := -1
		switch {
		case len(dirty) == 0:
			order = 1
		case len(clean) > 0:
			order = id(&dirty[0]).Compare(id(&clean[0]))
		}
		if order > 0 {
			all, clean = append(all, clean[0]), clean[1:]
			continue
		}
		if order == 0 {
			clean = clean[1:]
		}
		all, dirty = append(all, dirty[0]), dirty[1:]
	}
	return all
}
