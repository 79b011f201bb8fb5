-- +goose Up

-- One row per counter. The collation makes the order of the primary key byte order, which is the order rows are
-- locked in. expires_at is in Unix milliseconds and rounded by the writer, so that most updates leave every indexed
-- column alone and stay inside their page (HOT); the fillfactor keeps room for them there. At a half, a page takes as
-- many updates as it has rows before its dead versions must be cleared.
CREATE TABLE counters (
    key        text   COLLATE "C" NOT NULL,
    name       text   COLLATE "C" NOT NULL,
    spec       text   NOT NULL,
    state      bytea  NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (key, name)
) WITH (
    fillfactor = 50,
    -- A state is tens to hundreds of bytes, written for every charge and never worth compressing: rows stay whole
    -- up to a page.
    toast_tuple_target = 8160,
    -- A hot table: vacuum early and briefly, and never stop the workers to give pages back to the disk.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2,
    vacuum_truncate = false
);
-- MAIN: out of line only when a row fits no page otherwise.
ALTER TABLE counters ALTER COLUMN state SET STORAGE MAIN;
CREATE INDEX counters_expires_at ON counters (expires_at);

-- The answers kept under idempotency ids. The id has the collation of the order in which ids are inserted.
CREATE TABLE receipts (
    id          text   COLLATE "C" PRIMARY KEY,
    fingerprint bytea  NOT NULL,
    answer      bytea  NOT NULL,
    expires_at  bigint NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    vacuum_truncate = false
);
ALTER TABLE receipts ALTER COLUMN answer SET STORAGE MAIN;
CREATE INDEX receipts_expires_at ON receipts (expires_at);

-- Events that wait to be published, oldest first. data is text, because nothing looks into it and jsonb refuses
-- some strings that JSON allows.
CREATE TABLE outbox (
    seq  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id   text NOT NULL,
    type text NOT NULL,
    data text NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = false
);

-- +goose Down
DROP TABLE outbox;
DROP TABLE receipts;
DROP TABLE counters;
