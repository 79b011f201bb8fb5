package postgres

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/engine"
)

// What expires is found behind the index and locked, and whether it has expired is looked at again on the version that
// is locked. What somebody else holds is about to be charged, or removed. The deletion sees the versions that were there
// when the statement began: a row that moved before it was locked stays for the next time.
//
// The time is that of the statement's beginning, because the planner uses no index for clock_timestamp(), which may
// differ from row to row. The cast alone would round it up.
const (
	expiredSQL = ` WHERE expires_at <= floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint
	ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED`

	expireCountersSQL = `
DELETE FROM counters WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM counters` + expiredSQL + `))
RETURNING key, name`

	expiredCountersSQL = `
SELECT key, name, expires_at FROM counters
WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2`

	expireReceiptsSQL = `
DELETE FROM receipts WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM receipts` + expiredSQL + `))
RETURNING 1`

	// For one transaction.
	unhurriedSQL = `
SELECT set_config('synchronous_commit', 'off', true)`
)

// expireAtOnce is how many counters are removed before decisions get in between.
const expireAtOnce = 100

// Expire removes up to max counters and up to max receipts that have expired, those that did first, and returns how
// many of both. It waits for no lock of another process: what is being charged stays.
func (s *Store) Expire(ctx context.Context, max int) (int, error) {
	n, err := s.expireCounters(ctx, max)
	if err != nil {
		return n, fmt.Errorf("remove expired counters: %w", err)
	}
	receipts := 0
	if err := s.removeExpired(ctx, expireReceiptsSQL, max, func(rows pgx.Rows) error { receipts++; return nil }); err != nil {
		return n, fmt.Errorf("remove expired receipts: %w", err)
	}
	return n + receipts, nil
}

// removeExpired runs a statement that removes up to max rows, without the wait for the disk that others would have to wait behind: after a crash
// of the server some are there again, as expired as they were.
func (s *Store) removeExpired(ctx context.Context, sql string, max int, each func(pgx.Rows) error) error {
	var b pgx.Batch
	b.Queue(unhurriedSQL)
	b.Queue(sql, max).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if err := each(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	return s.relay.SendBatch(ctx, &b).Close()
}

func (s *Store) expireCounters(ctx context.Context, max int) (total int, err error) {
	for total < max {
		n, err := s.expireSome(ctx, min(max-total, expireAtOnce))
		total += n
		if err != nil || n == 0 {
			return total, err
		}
	}
	return total, nil
}

// expireSome removes up to max expired counters. A dirty one goes as a row of the journal says that it does; the others,
// which the table alone has, go without one: no process takes for granted what it remembers of a clean row that expired.
func (s *Store) expireSome(ctx context.Context, max int) (n int, err error) {
	ctx, release, err := s.aside(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	if !s.loaded || s.resting.Load() { // a process that decides nothing need not know what is dirty
		err := s.removeExpired(ctx, expireCountersSQL, max, func(pgx.Rows) error { n++; return nil })
		return n, err
	}
	if err := s.follow(ctx); err != nil {
		return 0, err
	}
	if now, _, ok := s.clock.between(); !ok || len(s.memory.expired(now)) == 0 {
		return s.expireClean(ctx, max)
	}
	err = s.locked(ctx, engine.Batch{}, func(t *tx, at moment) (*draft, error) {
		ids, err := s.expired(ctx, t, at.now, max)
		n = len(ids)
		return &draft{removed: ids}, err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// expiring is a counter that has expired.
type expiring struct {
	id engine.CounterID
	at int64
}

// expired gives up to max counters to remove, those that expired first. A row of the table may be older than a dirty
// one, which then decides.
func (s *Store) expired(ctx context.Context, t *tx, now int64, max int) ([]engine.CounterID, error) {
	var all []expiring
	for _, r := range s.memory.expired(now) {
		all = append(all, expiring{r.id, r.expires})
	}
	t.params.reset()
	t.params.scalar(now)
	t.params.scalar(int64(max + len(all)))
	found := t.conn.ExecParams(ctx, expiredCountersSQL, t.params.values, []uint32{int8OID, int8OID}, binaryFormat, binaryFormat).Read()
	for _, values := range found.Rows {
		id := engine.CounterID{Key: string(values[0]), Name: string(values[1])}
		if r := s.memory.rows[id]; r == nil || r.since == nil {
			all = append(all, expiring{id, int64(binary.BigEndian.Uint64(values[2]))})
		}
	}
	slices.SortStableFunc(all, func(a, b expiring) int { return cmp.Compare(a.at, b.at) })
	ids := make([]engine.CounterID, min(len(all), max))
	for i := range ids {
		ids[i] = all[i].id
	}
	return ids, found.Err
}

// expireClean removes rows of the table that have expired. One that is dirty stays as the journal says it is, and is
// written to the table anew. Of one that is clean the journal may still speak, for those who read it from its beginning.
func (s *Store) expireClean(ctx context.Context, max int) (n int, err error) {
	var named []engine.CounterID
	err = s.removeExpired(ctx, expireCountersSQL, max, func(rows pgx.Rows) error {
		var id engine.CounterID
		if err := rows.Scan(&id.Key, &id.Name); err != nil {
			return err
		}
		switch r := s.memory.rows[id]; {
		case r == nil: // if the journal speaks of it, who reads that from its beginning has it again until the next time, expired
			n++
		case r.since == nil:
			n++
			if r.last >= s.dropped {
				named = append(named, id)
			}
			s.memory.drop(r)
		}
		return nil
	})
	if err != nil || len(named) == 0 {
		return n, err
	}
	known := s.memory
	return n, s.locked(ctx, engine.Batch{}, func(*tx, moment) (*draft, error) {
		if s.memory != known {
			return nil, nil // the rows that named them are gone, and who was charged meanwhile is not known
		}
		// Others may have charged one anew before this turn: then it is remembered again.
		named = slices.DeleteFunc(named, func(id engine.CounterID) bool { return s.memory.rows[id] != nil })
		return &draft{removed: named}, nil
	})
}
