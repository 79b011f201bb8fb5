-- +goose Up

-- Overrides that were removed within the last hour, so that workers need not read all others again to miss them. previous is the revision
-- of the removal before: a worker sees by it that it has read all of them, also beside limiters of an older release, which keep none. at
-- is in Unix milliseconds. A table of its own, because a new column would have workers wait for whoever reads override_revision, such as
-- a backup.
CREATE TABLE override_removals (
    revision bigint NOT NULL,
    previous bigint NOT NULL,
    policy   text   COLLATE "C" NOT NULL,
    name     text   COLLATE "C" NOT NULL,
    subject  text   COLLATE "C" NOT NULL,
    at       bigint NOT NULL,
    PRIMARY KEY (revision, policy, name, subject)
);

-- +goose Down
DROP TABLE override_removals;
