package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/seed503877ad/limits/internal/columns"
	"github.com/seed503877ad/limits/internal/engine"
)

const insertEventSQL = `INSERT INTO outbox (id, type, data) VALUES (?, ?, ?)`

func (s *Store) writeEvents(events []engine.Event) error {
	for i := range events {
		e := &events[i]
		data, err := json.Marshal(e, jsontext.AllowInvalidUTF8(true))
		if err != nil {
			return fmt.Errorf("encode event %s: %w", e.ID, err)
		}
		if _, err := s.stmts.insertEvent.Exec(e.ID, string(e.Type), string(data)); err != nil {
			return err
		}
	}
	return nil
}

const (
	readOutboxSQL = `SELECT seq, id, type, data FROM outbox ORDER BY seq LIMIT ?`

	deleteEventSQL = `DELETE FROM outbox WHERE seq = ?`

	countOutboxSQL = `SELECT count(*) FROM outbox`

	refuseEventsSQL = `UPDATE outbox SET refused = 1 WHERE id IN (SELECT value FROM json_each(?1)) AND refused = 0`

	oldestEventSQL = `SELECT data FROM outbox WHERE refused = 0 ORDER BY seq LIMIT 1`
)

// removeTimeout bounds the removal of acknowledged events after the caller's context has ended.
const removeTimeout = 2 * time.Second

// Relay passes up to max of the oldest events to publish, and removes those whose ids publish
// returns, even if it also returns an error. It returns how many it removed.
//
// No transaction is open while publish runs: a writing one would hold up every decision. No one
// else can take the events meanwhile, because the file has one process and Relay runs once at a
// time. After a crash between publish and removal, an event is passed again with the same id.
func (s *Store) Relay(
	ctx context.Context, max int,
	publish func(ctx context.Context, events []engine.Event) (acked []string, err error),
) (n int, err error) {
	release, err := acquire(ctx, s.relayLock)
	if err != nil {
		return 0, fmt.Errorf("wait for the previous relay: %w", err)
	}
	defer release()
	events, seqs, err := s.readOutbox(ctx, max)
	if err != nil || len(events) == 0 {
		return 0, err
	}
	acked, publishErr := publish(ctx, events)
	if len(acked) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
		defer cancel()
		if n, err = s.deleteOutbox(ctx, acked, seqs); err != nil {
			return 0, err
		}
	}
	if publishErr != nil {
		return n, fmt.Errorf("publish events: %w", publishErr)
	}
	return n, nil
}

// readOutbox returns events and the row number of each id.
func (s *Store) readOutbox(ctx context.Context, max int) ([]engine.Event, map[string]int64, error) {
	type stored struct {
		seq  int64
		data []byte
		engine.Event
	}
	found, err := read(ctx, s, "read outbox", func(r *stored) []any { return []any{&r.seq, &r.ID, &r.Type, &r.data} }, readOutboxSQL, max)
	if err != nil {
		return nil, nil, err
	}
	events, seqs := make([]engine.Event, len(found)), make(map[string]int64, len(found))
	for i := range found {
		r := &found[i]
		if err := json.Unmarshal(r.data, &r.Event, jsontext.AllowInvalidUTF8(true)); err != nil {
			return nil, nil, fmt.Errorf("read outbox: decode event %s: %w", r.ID, err)
		}
		events[i], seqs[r.ID] = r.Event, r.seq
	}
	return events, seqs, nil
}

func (s *Store) deleteOutbox(ctx context.Context, acked []string, seqs map[string]int64) (n int, err error) {
	err = s.transact(ctx, "remove published events", func() (bool, error) {
		for _, id := range acked {
			seq, ok := seqs[id]
			if !ok {
				continue
			}
			removed, err := s.execInTx(deleteEventSQL, seq)
			if err != nil {
				return false, err
			}
			n += int(removed)
		}
		return n > 0, nil
	})
	return n, err
}

// Backlog returns how many events wait to be published.
func (s *Store) Backlog(ctx context.Context) (int64, error) {
	n, _, err := first(read(ctx, s, "count outbox", columns.One[int64], countOutboxSQL))
	return n, err
}

// RefuseEvents marks events that the stream refuses as they are, so that OutboxAge leaves them out.
func (s *Store) RefuseEvents(ctx context.Context, ids []string) error {
	list, err := json.Marshal(ids)
	if err != nil {
		return fmt.Errorf("mark refused events: %w", err)
	}
	return s.transact(ctx, "mark refused events", func() (bool, error) {
		n, err := s.execInTx(refuseEventsSQL, string(list))
		return n > 0, err
	})
}

// OutboxAge returns how long the oldest event has waited, apart from refused ones; 0 if none waits.
func (s *Store) OutboxAge(ctx context.Context) (time.Duration, error) {
	const act = "read the oldest event"
	data, found, err := first(read(ctx, s, act, columns.One[[]byte], oldestEventSQL))
	if err != nil || !found {
		return 0, err
	}
	var e engine.Event
	if err := json.Unmarshal(data, &e, jsontext.AllowInvalidUTF8(true)); err != nil {
		return 0, fmt.Errorf("%s: %w", act, err)
	}
	return max(0, s.now().Sub(time.UnixMilli(e.Time))), nil
}
