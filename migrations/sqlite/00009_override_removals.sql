-- +goose Up
-- +goose StatementBegin

-- Overrides that were removed within the last hour, so that the worker need not read all others again to miss them. previous is the
-- revision of the removal before: the worker sees by it that it has read all of them. at is in Unix milliseconds.
CREATE TABLE override_removals (
    revision INTEGER NOT NULL,
    previous INTEGER NOT NULL,
    policy   TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    subject  TEXT    NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (revision, policy, name, subject)
) STRICT, WITHOUT ROWID;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP TABLE override_removals;
-- +goose StatementEnd
