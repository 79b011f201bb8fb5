package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/columns"
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
	elements(t, textOID, events, func(to *[]byte, e engine.Event) { element(to, e.ID) })
	elements(t, textOID, events, func(to *[]byte, e engine.Event) { element(to, string(e.Type)) })
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
	// SKIP LOCKED, because another relay is publishing the locked rows. They are still in the
	// outbox, so they count for its first row.
	readOutboxSQL = `
SELECT seq, id, type, data, (SELECT seq FROM outbox WHERE seq >= $2 ORDER BY seq LIMIT 1) AS first, ` + standbyWanted + ` AS standby
FROM outbox WHERE seq >= $2 ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED`

	deleteOutboxSQL = `
DELETE FROM outbox WHERE seq = ANY ($1::bigint[])`

	countOutboxSQL = `
SELECT count(*) FROM outbox`

	// Also removes the marks of events that have been published.
	refuseEventsSQL = `
WITH published AS (
	DELETE FROM outbox_refused r WHERE NOT EXISTS (SELECT FROM outbox o WHERE o.seq = r.seq)
)
INSERT INTO outbox_refused SELECT seq FROM outbox WHERE id = ANY ($1::text[]) ON CONFLICT DO NOTHING`

	oldestEventSQL = `
SELECT data, ` + nowMillis + ` FROM outbox o WHERE NOT EXISTS (SELECT FROM outbox_refused r WHERE r.seq = o.seq) ORDER BY seq LIMIT 1`
)

// outboxStart is the number of the first row of the outbox, as far as it is known. As long as any
// transaction of the database may see removed rows, a scan that starts before them goes over all of
// them.
//
// Rows are numbered in order, so none is added before one that was seen. But a server that takes
// over after a failover may assign numbers again, and an operator may restore rows. So now and then
// the scan starts from the beginning.
type outboxStart struct {
	sync.Mutex
	seq         int64
	rescannedAt time.Time
}

// rescanEvery is how often the scan starts from the beginning.
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

// set stores the number of the first row that a scan found.
func (f *outboxStart) set(seq int64) {
	f.Lock()
	defer f.Unlock()
	f.seq = seq
}

// removeTimeout bounds the removal of acknowledged events after the caller's context has ended.
const removeTimeout = 2 * time.Second

// Relay passes up to max of the oldest events to publish, and removes those whose ids publish
// returns, even if it also returns an error. It returns how many it removed.
//
// The events stay locked while publish runs, so no other relay gets them; if the process dies they
// are free again. After a crash between publish and removal, an event is passed again with the same
// id. publish must return within 30 s.
func (s *Store) Relay(
	ctx context.Context, max int,
	publish func(ctx context.Context, events []engine.Event) (acked []string, err error),
) (n int, err error) {
	release, err := acquire(ctx, s.relaySlots)
	if err != nil {
		return 0, fmt.Errorf("wait for the previous relay: %w", err)
	}
	defer release()
	tx := batches{pool: s.relay}
	defer tx.end(ctx)
	events, seqs, standby, err := s.readOutbox(ctx, &tx, max)
	if err != nil {
		return 0, fmt.Errorf("read outbox: %w", err)
	}
	if len(events) == 0 {
		return 0, nil
	}
	if standby {
		if err := s.confirmEvents(ctx); err != nil {
			return 0, err
		}
	}
	acked, publishErr := publish(ctx, events)
	if len(acked) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
		defer cancel()
		if n, err = deleteOutbox(ctx, &tx, acked, seqs); err != nil {
			return 0, fmt.Errorf("remove published events: %w", err)
		}
	}
	if publishErr != nil {
		return n, fmt.Errorf("publish events: %w", publishErr)
	}
	return n, nil
}

// confirmEvents returns when the synchronous standby has the events that were read. Without it a
// decision can be lost by a failover, and its event would come again, with another id, when the
// request does.
func (s *Store) confirmEvents(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	if _, err := s.relay.Exec(ctx, confirmSQL); err != nil {
		return fmt.Errorf("events wait, since the synchronous standby may lack them (synchronous_standby_names): %w", err)
	}
	return nil
}

// readOutbox returns events, the row number of each id, and whether there has to be a synchronous
// standby.
func (s *Store) readOutbox(ctx context.Context, tx *batches, max int) (events []engine.Event, seqs map[string]int64, standby bool, err error) {
	seqs = make(map[string]int64)
	var seq, first int64
	err = tx.first(ctx, func(b *pgx.Batch) {
		b.Queue(readOutboxSQL, max, s.outboxStart.get()).Query(func(rows pgx.Rows) error {
			var id, kind string
			var data []byte
			_, err := pgx.ForEachRow(rows, []any{&seq, &id, &kind, &data, &first, &standby}, func() error {
				e := engine.Event{ID: id, Type: engine.EventType(kind)}
				if err := json.Unmarshal(data, &e, jsontext.AllowInvalidUTF8(true)); err != nil {
					return fmt.Errorf("decode event %s: %w", id, err)
				}
				seqs[id] = seq
				events = append(events, e)
				return nil
			})
			return err
		})
	})
	if len(events) > 0 {
		s.outboxStart.set(first)
	}
	return events, seqs, standby, err
}

// deleteOutbox removes events and commits.
func deleteOutbox(ctx context.Context, tx *batches, acked []string, seqs map[string]int64) (n int, err error) {
	remove := make([]int64, 0, len(acked))
	for _, id := range acked {
		if seq, ok := seqs[id]; ok {
			remove = append(remove, seq)
		}
	}
	var b pgx.Batch
	b.Queue(deleteOutboxSQL, remove).Exec(func(tag pgconn.CommandTag) error {
		n = int(tag.RowsAffected())
		return nil
	})
	err = tx.last(ctx, &b)
	return n, err
}

// Backlog returns how many events wait to be published.
func (s *Store) Backlog(ctx context.Context) (int64, error) {
	n, _, err := first(read(ctx, s, "count outbox", columns.One[int64], countOutboxSQL))
	return n, err
}

// RefuseEvents marks events that the stream refuses as they are, so that OutboxAge leaves them out.
func (s *Store) RefuseEvents(ctx context.Context, ids []string) error {
	_, err := s.exec(ctx, "mark refused events", refuseEventsSQL, ids)
	return err
}

// OutboxAge returns how long the oldest event has waited, apart from refused ones; 0 if none waits.
func (s *Store) OutboxAge(ctx context.Context) (time.Duration, error) {
	const act = "read the oldest event"
	type stored struct {
		data []byte
		now  int64
	}
	r, found, err := first(read(ctx, s, act, func(r *stored) []any { return []any{&r.data, &r.now} }, oldestEventSQL))
	if err != nil || !found {
		return 0, err
	}
	var e engine.Event
	if err := json.Unmarshal(r.data, &e, jsontext.AllowInvalidUTF8(true)); err != nil {
		return 0, fmt.Errorf("%s: %w", act, err)
	}
	return max(0, time.Duration(r.now-e.Time)*time.Millisecond), nil
}
