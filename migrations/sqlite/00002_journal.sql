-- +goose Up
-- +goose StatementBegin

-- What transactions did to counters that has yet to reach their table: a row per transaction, in the encoding of
-- internal/sqlite/journal.go. What a counter is stands in the last row that names it, else in the table counters.
CREATE TABLE journal (
    seq     INTEGER NOT NULL PRIMARY KEY,
    changes BLOB    NOT NULL
) STRICT;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin

-- The journal can be dropped only when it is empty, and only the program can empty it: it does when it stops.
CREATE TABLE journal_left (
    n INTEGER CONSTRAINT "the journal is not empty: start the limiter and stop it once" CHECK (n = 0)
) STRICT;
INSERT INTO journal_left SELECT count(*) FROM journal;
DROP TABLE journal_left;
DROP TABLE journal;
-- +goose StatementEnd
