package sqlite

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/columns"
)

// One transaction runs at a time, so nothing but the file is locked.
const (
	takeEventSQL = `INSERT INTO alert_events (id, taken_at) VALUES (?, ?) ON CONFLICT DO NOTHING`

	readGroupSQL = `SELECT state FROM alert_groups WHERE rule = ? AND grp = ?`

	readOpenSQL = `SELECT ` + columns.Alert + ` FROM alerts WHERE rule = ? AND grp = ? AND resolved_at = 0`

	readExceededSQL = `SELECT resolve_at FROM alerts WHERE subject = ? AND resolved_at = 0 AND type = 'limits.exceeded'`

	writeGroupSQL = `
INSERT INTO alert_groups (rule, grp, state, changed_at) VALUES (?, ?, ?, ?)
ON CONFLICT (rule, grp) DO UPDATE SET state = excluded.state, changed_at = excluded.changed_at`

	insertAlertSQL = `
INSERT INTO alerts (id, rule, grp, subject, type, username, policy, raised_at, resolve_at, resolved_at, notice, reason, notice_at,
	due_at, held_until, digest, body)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0, 'pending', '', 0, ?10, 0, '', ?11)`

	// A pending alert keeps its due_at, since an alerter may be working on it.
	updateAlertSQL = `
UPDATE alerts SET body = ?2, resolve_at = ?3,
	notice = CASE WHEN notice = 'silenced' AND ?4 THEN 'pending' ELSE notice END,
	due_at = CASE WHEN notice = 'silenced' AND ?4 THEN ?5 ELSE due_at END
WHERE id = ?1`
)

// Take implements [alerts.Store]. Decisions wait for it, so t should have few events.
func (s *Store) Take(ctx context.Context, t alerts.TakeQuery, decide func(alerts.TakeState) (alerts.Changes, error)) error {
	return s.transact(ctx, "take events", func() (bool, error) {
		taken, err := s.readTakeState(&t)
		if err != nil {
			return false, err
		}
		changes, err := decide(taken)
		if err != nil {
			return false, err
		}
		return true, s.writeTaken(taken.Now, &changes)
	})
}

func (s *Store) readTakeState(t *alerts.TakeQuery) (taken alerts.TakeState, err error) {
	taken = alerts.TakeState{
		Now: s.now().UnixMilli(), Fresh: map[string]bool{}, States: map[alerts.GroupID]json.RawMessage{},
		Open: map[alerts.GroupID]alerts.Alert{}, Exceeded: map[string]int64{},
	}
	for _, id := range t.Events {
		n, err := s.execInTx(takeEventSQL, id, taken.Now)
		if err != nil {
			return taken, err
		}
		if n > 0 {
			taken.Fresh[id] = true
		}
	}
	for _, g := range t.Groups {
		if err := s.readGroup(&taken, g); err != nil {
			return taken, err
		}
	}
	for _, subject := range t.Subjects {
		open, err := readInTx(s, columns.One[int64], readExceededSQL, subject)
		if err != nil {
			return taken, err
		}
		if len(open) > 0 {
			taken.Exceeded[subject] = slices.Max(open)
		}
	}
	return taken, nil
}

func (s *Store) readGroup(taken *alerts.TakeState, g alerts.GroupID) error {
	state, found, err := first(readInTx(s, columns.One[string], readGroupSQL, g.Rule, g.Key))
	if found {
		taken.States[g] = json.RawMessage(state)
	}
	if err != nil {
		return err
	}
	open, found, err := first(readInTx(s, columns.OfAlert, readOpenSQL, g.Rule, g.Key))
	if found {
		taken.Open[g] = open
	}
	return err
}

// changedAt is rounded up to a whole hour: see migration 6.
func changedAt(now int64) int64 {
	const hour = int64(time.Hour / time.Millisecond)
	return (now/hour + 1) * hour
}

func (s *Store) writeTaken(now int64, c *alerts.Changes) error {
	for g, state := range c.States {
		if _, err := s.execInTx(writeGroupSQL, g.Rule, g.Key, string(state), changedAt(now)); err != nil {
			return err
		}
	}
	if err := s.eachAlert(c.Resolved, resolveAlertSQL, now); err != nil {
		return err
	}
	if err := s.addDeliveries(now, c.Deliveries); err != nil {
		return err
	}
	for i := range c.Raised {
		if err := s.raise(now+c.Claim.Milliseconds(), &c.Raised[i]); err != nil {
			return err
		}
	}
	for i := range c.Updated {
		a := &c.Updated[i]
		body, err := encode(a)
		if err != nil {
			return err
		}
		if _, err := s.execInTx(updateAlertSQL, a.ID, body, a.ResolveAt, a.Notice == alerts.Pending, now); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) raise(due int64, a *alerts.Alert) error {
	body, err := encode(a)
	if err != nil {
		return err
	}
	_, err = s.execInTx(insertAlertSQL, a.ID, a.Rule, a.GroupID.Key, a.Subject, a.Type, a.User, a.Policy, a.RaisedAt, a.ResolveAt, due, body)
	return err
}
