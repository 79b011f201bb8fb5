-- +goose Up

-- What was decided, by minute, and by hour once minutes were rolled up: minutes is 1 or 60. at is the beginning in Unix
-- milliseconds. The empty key, policy and user stand for what had no room of its own. Workers insert in the order of
-- the primary key, so they do not deadlock.
CREATE TABLE usage_counts (
    minutes   smallint NOT NULL,
    at        bigint   NOT NULL,
    key       text     COLLATE "C" NOT NULL,
    policy    text     COLLATE "C" NOT NULL,
    user_name text     COLLATE "C" NOT NULL,
    allowed   bigint   NOT NULL,
    denied    bigint   NOT NULL,
    cost      bigint   NOT NULL,
    -- The most decisions of one minute.
    peak      bigint   NOT NULL,
    PRIMARY KEY (minutes, at, key, policy, user_name)
) WITH (
    -- The rows of the present minute are written every few seconds and those of older ones never.
    fillfactor = 80,
    vacuum_truncate = false
);

-- The log of requests that clients tell of. Rows are written once, in order of time.
CREATE TABLE usage_requests (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        bigint NOT NULL,
    key       text   COLLATE "C" NOT NULL,
    user_name text   COLLATE "C" NOT NULL,
    endpoint  text   COLLATE "C" NOT NULL,
    method    text   COLLATE "C" NOT NULL,
    status    bigint NOT NULL,
    millis    bigint NOT NULL
) WITH (vacuum_truncate = false);
CREATE INDEX usage_requests_at ON usage_requests (at);

-- +goose Down
DROP TABLE usage_requests;
DROP TABLE usage_counts;
