-- +goose Up
-- +goose StatementBegin

-- What was decided, by minute, and by hour once minutes were rolled up: minutes is 1 or 60. at is the beginning in Unix
-- milliseconds. The empty key, policy and user stand for what had no room of its own.
CREATE TABLE usage_counts (
    minutes   INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    key       TEXT    NOT NULL,
    policy    TEXT    NOT NULL,
    user_name TEXT    NOT NULL,
    allowed   INTEGER NOT NULL,
    denied    INTEGER NOT NULL,
    cost      INTEGER NOT NULL,
    -- The most decisions of one minute.
    peak      INTEGER NOT NULL,
    PRIMARY KEY (minutes, at, key, policy, user_name)
) STRICT, WITHOUT ROWID;

-- The log of requests that clients tell of.
CREATE TABLE usage_requests (
    id        INTEGER PRIMARY KEY,
    at        INTEGER NOT NULL,
    key       TEXT    NOT NULL,
    user_name TEXT    NOT NULL,
    endpoint  TEXT    NOT NULL,
    method    TEXT    NOT NULL,
    status    INTEGER NOT NULL,
    millis    INTEGER NOT NULL
) STRICT;
CREATE INDEX usage_requests_at ON usage_requests (at);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP TABLE usage_requests;
DROP TABLE usage_counts;
-- +goose StatementEnd
