// Package columns is what the tables of both stores have in common: the columns that hold a type, and
// how they are read into it.
package columns

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/overrides"
)

// Alert are columns of the table alerts. The body comes first, because the others overwrite fields
// that it may have too.
const Alert = `body, rule, grp, raised_at, resolve_at, resolved_at, notice, reason, notice_at, held_until, digest`

// OfAlert returns where [Alert] are scanned to.
func OfAlert(a *alerts.Alert) []any {
	return []any{JSON{a}, &a.Rule, &a.GroupID.Key, &a.RaisedAt, &a.ResolveAt, &a.ResolvedAt, &a.Notice, &a.Reason, &a.NoticeAt,
		&a.HeldUntil, &a.Digest}
}

// Delivery are columns of the table alert_deliveries, which a query calls d.
const Delivery = `d.message, d.id, d.channel, d.state, d.attempts, d.created_at, d.due_at, d.ended_at, d.error`

// OfDelivery returns where [Delivery] are scanned to.
func OfDelivery(d *alerts.Delivery) []any {
	return []any{JSON{&d.Message}, &d.ID, &d.Channel, &d.State, &d.Attempts, &d.CreatedAt, &d.DueAt, &d.EndedAt, &d.Error}
}

// Silence are columns of the table alert_silences.
const Silence = `body, id, created_at, expires_at`

// OfSilence returns where [Silence] are scanned to.
func OfSilence(s *alerts.Silence) []any {
	return []any{JSON{s}, &s.ID, &s.CreatedAt, &s.ExpiresAt}
}

// Run are columns of the table job_runs.
const Run = `job, scheduled, replica, started_at, ended_at, outcome, note, error`

// OfRun returns where [Run] are scanned to.
func OfRun(r *jobs.Run) []any {
	return []any{&r.Job, &r.Scheduled, &r.Replica, &r.StartedAt, &r.EndedAt, &r.Outcome, &r.Note, &r.Error}
}

// Key are columns of the table api_keys.
const Key = `id, hash, name, owner, tier, attributes, created_at, expires_at, revoked_at`

// OfKey returns where [Key] are scanned to.
func OfKey(k *keys.Key) []any {
	return []any{&k.ID, (*hash)(&k.Hash), &k.Name, &k.User, &k.Tier, JSON{&k.Attributes}, &k.CreatedAt, &k.ExpiresAt, &k.RevokedAt}
}

// OfStoredKey returns where the revision of the keys and [Key] are scanned to.
func OfStoredKey(k *keys.Stored) []any { return append([]any{&k.Revision}, OfKey(&k.Key)...) }

// Override are columns of the table overrides.
const Override = `policy, name, subject, body`

// OfOverride returns where [Override] are scanned to.
func OfOverride(o *overrides.Override) []any {
	return []any{&o.Policy, &o.Name, &o.Subject, JSON{o}}
}

// Removal are columns of the table override_removals.
const Removal = `policy, name, subject, revision, previous`

// OfRemoval returns where [Removal] are scanned to.
func OfRemoval(r *overrides.Removal) []any {
	return []any{&r.Policy, &r.Name, &r.Subject, &r.Revision, &r.Previous}
}

// One is for queries with one column.
func One[V any](v *V) []any { return []any{v} }

// ErrDamaged says that a column of JSON has none.
var ErrDamaged = errors.New("the stored JSON is damaged")

// JSON decodes a column of JSON into the value that it points to.
type JSON struct{ Into any }

// Scan implements [database/sql.Scanner].
func (c JSON) Scan(src any) error {
	var text []byte
	switch src := src.(type) {
	case string:
		text = []byte(src)
	case []byte:
		text = src
	default:
		return fmt.Errorf("cannot decode JSON from %T", src)
	}
	if err := json.Unmarshal(text, c.Into); err != nil {
		return fmt.Errorf("%w: %w: %.80q", ErrDamaged, err, text)
	}
	return nil
}

// hash scans a column of 32 bytes.
type hash [32]byte

func (h *hash) Scan(src any) error {
	data, _ := src.([]byte)
	if copy(h[:], data); len(data) != len(h) {
		return fmt.Errorf("hash has %d bytes; want 32", len(data))
	}
	return nil
}
