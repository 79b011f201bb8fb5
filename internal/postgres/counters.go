package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

const countersOfKeySQL = `
SELECT key, name, spec, state FROM counters WHERE key = $1 ORDER BY name LIMIT $2`

// Counters implements [engine.Store].
func (s *Store) Counters(ctx context.Context, key string) ([]engine.StoredCounter, int64, error) {
	sp, err := keySpan(engine.Selection{Key: key})
	if err != nil {
		return nil, 0, fmt.Errorf("read counters: %w", err)
	}
	const most = engine.MaxKeyCounters + 1
	all, now, err := s.mergedCounters(ctx, sp, most, countersOfKeySQL, key, most)
	if err != nil {
		return nil, 0, fmt.Errorf("read counters: %w", err)
	}
	return all, now, nil
}

const listCountersSQL = `
SELECT key, name, spec, state FROM counters
WHERE (key, name) > ($1, $2) AND key < $3
ORDER BY key, name LIMIT $4`

// List implements [engine.Store].
func (s *Store) List(ctx context.Context, prefix string, after engine.CounterID, max int) ([]engine.StoredCounter, int64, error) {
	sp, err := keySpan(engine.Selection{Prefix: prefix})
	if err != nil {
		return nil, 0, fmt.Errorf("list counters: %w", err)
	}
	if after.Compare(sp.from) > 0 {
		sp.from = after
	}
	page, now, err := s.mergedCounters(ctx, sp, max, listCountersSQL, sp.from.Key, sp.from.Name, sp.end, max)
	if err != nil {
		return nil, 0, fmt.Errorf("list counters: %w", err)
	}
	return page, now, nil
}

// mergedCounters returns the first max counters of a span, from the cache and from the table by
// query, and the clock. Dirty counters are read first: a counter that is clean then is in the
// table, and one that becomes clean later is in the table with the same state or a newer one.
func (s *Store) mergedCounters(
	ctx context.Context, sp span, max int, query string, args ...any,
) (all []engine.StoredCounter, now int64, err error) {
	dirty, err := s.dirtyCounters(ctx, sp, max)
	if err != nil {
		return nil, 0, err
	}
	var clean []engine.StoredCounter
	var b pgx.Batch
	b.Queue(query, args...).Query(func(rows pgx.Rows) (err error) {
		clean, err = collect(rows, nil, func(c *engine.StoredCounter) []any { return []any{&c.Key, &c.Name, &c.Spec, &c.State} })
		return err
	})
	b.Queue(clockSQL).QueryRow(func(row pgx.Row) error {
		var at time.Time
		err := row.Scan(&at)
		now = at.UnixMilli()
		return err
	})
	if err := s.readBatch(ctx, &b); err != nil {
		return nil, 0, err
	}
	return journal.Merge(dirty, clean, max, func(c *engine.StoredCounter) engine.CounterID { return c.CounterID }), now, nil
}

// readBatch runs queries on a connection for decisions, but not on more than half of them.
func (s *Store) readBatch(ctx context.Context, b *pgx.Batch) error {
	release, err := acquire(ctx, s.readSlots)
	if err != nil {
		return fmt.Errorf("wait for earlier reads: %w", err)
	}
	defer release()
	return s.onConn(ctx, func(c conn) error { return c.SendBatch(ctx, b).Close() })
}

// maxDirtyReads bounds the reads that are served while decisions wait, and maxDirtyRows the counters that they find: no read
// follows once there are so many.
const (
	maxDirtyReads = 256
	maxDirtyRows  = 4096
)

// dirtyQuestion asks for the first max dirty counters of a span.
type dirtyQuestion struct {
	span
	max int
}

// dirtyCounters catches up with the journal and returns the first max dirty counters of a span. Decisions wait meanwhile, so
// calls at the same time share it.
func (s *Store) dirtyCounters(ctx context.Context, sp span, max int) ([]engine.StoredCounter, error) {
	return s.dirtyReads.read(ctx, dirtyQuestion{sp, max}, s.serveDirtyReads)
}

func (s *Store) serveDirtyReads(ctx context.Context) error {
	release, err := acquire(ctx, s.writeLock)
	if err != nil {
		return fmt.Errorf("wait for the previous transaction: %w", err)
	}
	defer release()
	reads := s.dirtyReads.take(maxDirtyReads)
	// From here on it is for others, too: it does not end with the request of the one who does it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), decisionTimeout)
	defer cancel()
	err = s.catchUp(ctx)
	found := 0
	for i, one := range reads {
		if found >= maxDirtyRows {
			s.dirtyReads.giveBack(reads[i:])
			break
		}
		var all []engine.StoredCounter
		if err == nil {
			s.cache.eachDirty(one.question.span, func(r *row) bool {
				all = append(all, r.toStored())
				return len(all) < one.question.max
			})
		}
		found += len(all)
		one.end(all, err)
	}
	return nil
}

// span is the ids greater than from whose key is below end.
type span struct {
	from engine.CounterID
	end  string
}

// keySpan returns the ids of a selection.
//
// Text parameters must be UTF-8, so the upper bound cannot be made by incrementing the last byte.
// UTF-8 sorts by code point, so the last code point is incremented instead.
func keySpan(sel engine.Selection) (span, error) {
	if !utf8.ValidString(sel.Key) || !utf8.ValidString(sel.Prefix) {
		return span{}, errors.New("the key or prefix is not valid UTF-8")
	}
	if sel.Key != "" {
		// Nothing sorts between a key and the key followed by the lowest character that text can
		// have.
		return span{engine.CounterID{Key: sel.Key}, sel.Key + "\x01"}, nil
	}
	return span{engine.CounterID{Key: sel.Prefix}, prefixEnd(sel.Prefix)}, nil
}

// maxKey sorts after every key: it is longer than any, and made of the last character.
var maxKey = strings.Repeat(string(utf8.MaxRune), 65)

// prefixEnd returns the least string that sorts after every string with the prefix.
func prefixEnd(prefix string) string {
	for prefix != "" {
		r, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch r {
		case utf8.MaxRune:
			continue // carry
		case 0xd7ff:
			return prefix + "\ue000" // skips the surrogates, which UTF-8 does not have
		}
		return prefix + string(r+1)
	}
	return maxKey
}
