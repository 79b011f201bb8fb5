-- +goose Up

-- What transactions did to counters that has yet to reach their table: a row per transaction, in the encoding of
-- internal/postgres/journal.go, numbered without a gap. What a counter is stands in the last row that names it, else in the
-- table counters. The last row is never removed: whoever writes the next one names its seq and token, and so has seen it.
CREATE TABLE journal (
    seq     bigint PRIMARY KEY,
    token   bigint NOT NULL,
    changes bytea  NOT NULL
) WITH (
    -- Rows are written once and removed seconds later.
    toast_tuple_target = 8160,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = false,
    toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 10000,
    toast.autovacuum_vacuum_cost_delay = 0,
    toast.vacuum_truncate = false
);
-- EXTERNAL: whole in its row as long as a page has room, and never compressed, which would take longer than to write it.
ALTER TABLE journal ALTER COLUMN changes SET STORAGE EXTERNAL;
INSERT INTO journal (seq, token, changes) VALUES (0, 0, '');

-- +goose Down

-- The journal can be dropped only when nothing in it is missing from the table counters, and only the program can bring it
-- there: the last limiter does when it stops, and leaves one row without changes.
-- +goose StatementBegin
DO $$
BEGIN
    IF (SELECT count(*) FROM journal) > 1 OR EXISTS (SELECT FROM journal WHERE length(changes) > 16) THEN
        RAISE EXCEPTION 'the journal is not empty: start a limiter and stop it once';
    END IF;
END $$;
-- +goose StatementEnd
DROP TABLE journal;
