-- +goose Up

-- An event that the stream does not take as it is, being too large, waits for somebody to mend that. Others go on, so how long it has
-- waited says nothing of them.
ALTER TABLE outbox ADD COLUMN refused boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE outbox DROP COLUMN refused;
