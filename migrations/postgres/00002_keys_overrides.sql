-- +goose Up

-- API keys, without their secrets: hash is SHA-256 of the whole key. Times are Unix milliseconds, 0 for never. The
-- collation makes pages follow the order of bytes.
CREATE TABLE api_keys (
    id         text   COLLATE "C" PRIMARY KEY,
    hash       bytea  NOT NULL,
    name       text   NOT NULL,
    owner      text   COLLATE "C" NOT NULL,
    tier       text   NOT NULL,
    attributes text   NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    revoked_at bigint NOT NULL
);
-- Not (owner, id), which the planner also takes to look for an id while the table is small.
CREATE INDEX api_keys_owner ON api_keys (owner);

-- Other limits for some subjects of a policy's limit. body is the JSON of what changes; nothing looks into it here.
CREATE TABLE overrides (
    policy   text   COLLATE "C" NOT NULL,
    name     text   COLLATE "C" NOT NULL,
    subject  text   COLLATE "C" NOT NULL,
    body     text   NOT NULL,
    revision bigint NOT NULL,
    PRIMARY KEY (policy, name, subject)
);
CREATE INDEX overrides_revision ON overrides (revision);

-- One row, which every change of an override updates, so that revisions are committed in their order: numbers of a
-- sequence are not, and a reader that asks for what came after the last one it saw would miss some. removed is the
-- revision of the last deletion, which leaves no row to be found.
CREATE TABLE override_revision (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    changed bigint  NOT NULL,
    removed bigint  NOT NULL
);
INSERT INTO override_revision (changed, removed) VALUES (0, 0);

-- +goose Down
DROP TABLE override_revision;
DROP TABLE overrides;
DROP TABLE api_keys;
