-- +goose Up
-- +goose StatementBegin

-- One row per counter, kept in the primary key's tree: one look-up reads it and one writes it.
CREATE TABLE counters (
    key        TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    spec       TEXT    NOT NULL,
    state      BLOB    NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (key, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX counters_expires_at ON counters (expires_at);

-- The answers kept under idempotency ids.
CREATE TABLE receipts (
    id          TEXT    NOT NULL PRIMARY KEY,
    fingerprint BLOB    NOT NULL,
    answer      BLOB    NOT NULL,
    expires_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX receipts_expires_at ON receipts (expires_at);

-- Events that wait to be published, oldest first. AUTOINCREMENT, so that a number is never used again.
CREATE TABLE outbox (
    seq  INTEGER PRIMARY KEY AUTOINCREMENT,
    id   TEXT NOT NULL,
    type TEXT NOT NULL,
    data TEXT NOT NULL
) STRICT;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP TABLE outbox;
DROP TABLE receipts;
DROP TABLE counters;
-- +goose StatementEnd
