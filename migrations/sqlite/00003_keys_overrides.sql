-- +goose Up
-- +goose StatementBegin

-- API keys, without their secrets: hash is SHA-256 of the whole key. Times are Unix milliseconds, 0 for never.
CREATE TABLE api_keys (
    id         TEXT    NOT NULL PRIMARY KEY,
    hash       BLOB    NOT NULL,
    name       TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    tier       TEXT    NOT NULL,
    attributes TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    revoked_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX api_keys_owner ON api_keys (owner, id);

-- Other limits for some subjects of a policy's limit. body is the JSON of what changes; nothing looks into it here.
CREATE TABLE overrides (
    policy   TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    subject  TEXT    NOT NULL,
    body     TEXT    NOT NULL,
    revision INTEGER NOT NULL,
    PRIMARY KEY (policy, name, subject)
) STRICT, WITHOUT ROWID;
CREATE INDEX overrides_revision ON overrides (revision);

-- One row: the revision of the last change, and that of the last deletion, which leaves no row to be found.
CREATE TABLE override_revision (
    one     INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    changed INTEGER NOT NULL,
    removed INTEGER NOT NULL
) STRICT;
INSERT INTO override_revision (one, changed, removed) VALUES (1, 0, 0);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP TABLE override_revision;
DROP TABLE overrides;
DROP TABLE api_keys;
-- +goose StatementEnd
