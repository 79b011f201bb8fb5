package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/engine"
)

const insertEventsSQL = `
INSERT INTO outbox (id, type, data)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[])`

func (t *tx) sendEvents(p *pgconn.Pipeline, events []engine.Event) error {
	if len(events) == 0 {
		return nil
	}
	t.params.reset()
	ids := t.params.add(textOID, len(events))
	for i := range events {
		element(ids, events[i].ID)
	}
	types := t.params.add(textOID, len(events))
	for i := range events {
		element(types, string(events[i].Type))
	}
	data := t.params.add(textOID, len(events))
	for i := range events {
		encoded, err := json.Marshal(&events[i], jsontext.AllowInvalidUTF8(true))
		if err != nil {
			return fmt.Errorf("encode event %s: %w", events[i].ID, err)
		}
		element(data, encoded)
	}
	t.send(p, step{"insert events", stInsertEvents, len(events)})
	return nil
}

const (
	// SKIP LOCKED: what another relay holds is being published. It is in the outbox still, so it counts for where that begins.
	readOutboxSQL = `
SELECT seq, id, type, data, (SELECT seq FROM outbox WHERE seq >= $2 ORDER BY seq LIMIT 1) AS first
FROM outbox WHERE seq >= $2 ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED`

	deleteOutboxSQL = `
DELETE FROM outbox WHERE seq = ANY ($1::bigint[])`

	countOutboxSQL = `
SELECT count(*) FROM outbox`

	// What was published since leaves its place to the others.
	refuseEventsSQL = `
WITH published AS (
	DELETE FROM outbox_refused r WHERE NOT EXISTS (SELECT FROM outbox o WHERE o.seq = r.seq)
)
INSERT INTO outbox_refused SELECT seq FROM outbox WHERE id = ANY ($1::text[]) ON CONFLICT DO NOTHING`

	oldestEventSQL = `
SELECT data, ` + nowMillis + ` FROM outbox o WHERE NOT EXISTS (SELECT FROM outbox_refused r WHERE r.seq = o.seq) ORDER BY seq LIMIT 1`
)

// outboxFront is where the outbox begins, as far as that is known. As long as any transaction of the database may still see events that were
// removed, a look that begins before them goes over all of them.
//
// Events get their numbers in turn, so none comes in front of one that was seen. But a server that takes over may give numbers once more
// that were given and lost, and an operator may put events back: now and then it is looked for from the first number on.
type outboxStart struct {
	sync.Mutex
	seq         int64
	rescannedAt time.Time
}

// lookEvery is how often it is looked for.
const rescanEvery = time.Minute

func (f *outboxStart) get() int64 {
	f.Lock()
	defer f.Unlock()
	if time.Since(f.rescannedAt) < rescanEvery {
		return f.seq
	}
	f.rescannedAt = time.Now()
	return 0
}

// begins notes the number of the first event that was there at a look.
func (f *outboxStart) set(seq int64) {
	f.Lock()
	defer f.Unlock()
	f.seq = seq
}

// settleTimeout is for removing what was acknowledged after the caller's context has ended.
const settleTimeout = 2 * time.Second

// Relay hands up to max of the oldest events to publish and removes those whose ids publish returns, even when it
// also returns an error. It returns how many were removed.
//
// The events stay locked while publish runs, so no other relay gets them, and become free the moment the process
// dies. A crash between publish and removal hands an event out again, with the same id. publish must return within
// 30 s.
func (s *Store) Relay(ctx context.Context, max int, publish func(ctx context.Context, events []engine.Event) (acked []string, err error)) (n int, err error) {
	release, err := acquire(ctx, s.relaySlots)
	if err != nil {
		return 0, fmt.Errorf("wait for the relay before: %w", err)
	}
	defer release()
	tx, err := s.relay.Begin(ctx)
	if err != nil {
		return 0, fmt.Errorf("read outbox: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
		defer cancel()
		_ = tx.Rollback(ctx) // nothing to do behind a commit
	}()
	events, seqs, err := s.readOutbox(ctx, tx, max)
	if err != nil {
		return 0, fmt.Errorf("read outbox: %w", err)
	}
	if len(events) == 0 {
		return 0, nil
	}
	acked, publishErr := publish(ctx, events)
	if len(acked) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
		defer cancel()
		if n, err = deleteOutbox(ctx, tx, acked, seqs); err != nil {
			return 0, fmt.Errorf("remove published events: %w", err)
		}
	}
	if publishErr != nil {
		return n, fmt.Errorf("publish events: %w", publishErr)
	}
	return n, nil
}

// readOutbox also gives the row number of each id.
func (s *Store) readOutbox(ctx context.Context, tx pgx.Tx, max int) ([]engine.Event, map[string]int64, error) {
	rows, err := tx.Query(ctx, readOutboxSQL, max, s.outboxStart.get())
	if err != nil {
		return nil, nil, err
	}
	var events []engine.Event
	seqs := make(map[string]int64)
	var seq, first int64
	var id, kind string
	var data []byte
	_, err = pgx.ForEachRow(rows, []any{&seq, &id, &kind, &data, &first}, func() error {
		e := engine.Event{ID: id, Type: engine.EventType(kind)}
		if err := json.Unmarshal(data, &e, jsontext.AllowInvalidUTF8(true)); err != nil {
			return fmt.Errorf("decode event %s: %w", id, err)
		}
		seqs[id] = seq
		events = append(events, e)
		return nil
	})
	if len(events) > 0 {
		s.outboxStart.set(first)
	}
	return events, seqs, err
}

func deleteOutbox(ctx context.Context, tx pgx.Tx, acked []string, seqs map[string]int64) (int, error) {
	remove := make([]int64, 0, len(acked))
	for _, id := range acked {
		if seq, ok := seqs[id]; ok {
			remove = append(remove, seq)
		}
	}
	tag, err := tx.Exec(ctx, deleteOutboxSQL, remove)
	if err != nil {
		return 0, err
	}
	return int(tag.RowsAffected()), tx.Commit(ctx)
}

// Backlog is how many events wait to be published.
func (s *Store) Backlog(ctx context.Context) (n int64, err error) {
	if err := s.relay.QueryRow(ctx, countOutboxSQL).Scan(&n); err != nil {
		return 0, fmt.Errorf("count outbox: %w", err)
	}
	return n, nil
}

// RefuseEvents notes of events that they wait because of what they are.
func (s *Store) RefuseEvents(ctx context.Context, ids []string) error {
	_, err := s.exec(ctx, "mark events", refuseEventsSQL, ids)
	return err
}

// OutboxAge is how long the event has waited that has waited longest, but for those that are refused; 0 when none waits.
func (s *Store) OutboxAge(ctx context.Context) (time.Duration, error) {
	var data []byte
	var now int64
	err := s.relay.QueryRow(ctx, oldestEventSQL).Scan(&data, &now)
	var e engine.Event
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, nil
	case err == nil:
		err = json.Unmarshal(data, &e, jsontext.AllowInvalidUTF8(true))
	}
	if err != nil {
		return 0, fmt.Errorf("read the oldest event: %w", err)
	}
	return max(0, time.Duration(now-e.Time)*time.Millisecond), nil
}
