-- +goose Up
-- +goose StatementBegin

-- A delivery ends by age too, which is counted anew from a replay. The index finds the oldest that wait: most were never tried,
-- so their place in the queue says little of it.
ALTER TABLE alert_deliveries ADD COLUMN replayed_at INTEGER NOT NULL DEFAULT 0;
CREATE INDEX alert_deliveries_age ON alert_deliveries (max(created_at, replayed_at)) WHERE ended_at = 0;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP INDEX alert_deliveries_age;
ALTER TABLE alert_deliveries DROP COLUMN replayed_at;
-- +goose StatementEnd
