-- +goose Up
-- +goose StatementBegin

-- Alerts and their deliveries. Times are Unix milliseconds.

-- The ids of the events that were taken, so that one that comes again is known.
CREATE TABLE alert_events (
    id       TEXT    PRIMARY KEY,
    taken_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX alert_events_taken ON alert_events (taken_at);

-- The groups of events, with the count of denials. Its row is what is locked to change anything of the group. changed_at is
-- rounded up to a whole hour, as in PostgreSQL: most updates leave its index alone.
CREATE TABLE alert_groups (
    rule       TEXT    NOT NULL,
    grp        TEXT    NOT NULL,
    state      TEXT    NOT NULL,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (rule, grp)
) STRICT, WITHOUT ROWID;
CREATE INDEX alert_groups_changed ON alert_groups (changed_at);

-- body holds what the other columns do not. resolved_at is 0 while it is open; due_at is when a pending one is looked at.
CREATE TABLE alerts (
    id          TEXT    PRIMARY KEY,
    rule        TEXT    NOT NULL,
    grp         TEXT    NOT NULL,
    subject     TEXT    NOT NULL,
    type        TEXT    NOT NULL,
    username    TEXT    NOT NULL,
    policy      TEXT    NOT NULL,
    raised_at   INTEGER NOT NULL,
    resolve_at  INTEGER NOT NULL,
    resolved_at INTEGER NOT NULL,
    notice      TEXT    NOT NULL,
    reason      TEXT    NOT NULL,
    notice_at   INTEGER NOT NULL,
    due_at      INTEGER NOT NULL,
    held_until  INTEGER NOT NULL,
    digest      TEXT    NOT NULL,
    body        TEXT    NOT NULL
) STRICT;
CREATE UNIQUE INDEX alerts_open ON alerts (grp, rule) WHERE resolved_at = 0;
CREATE INDEX alerts_subject ON alerts (subject) WHERE resolved_at = 0;
CREATE INDEX alerts_resolve ON alerts (resolve_at) WHERE resolved_at = 0 AND notice <> 'pending';
CREATE INDEX alerts_pending ON alerts (due_at) WHERE notice = 'pending';
CREATE INDEX alerts_held ON alerts (username, raised_at, id) WHERE notice = 'held' AND digest = '';
CREATE INDEX alerts_raised ON alerts (raised_at, id);
CREATE INDEX alerts_open_raised ON alerts (raised_at, id) WHERE resolved_at = 0;
CREATE INDEX alerts_user ON alerts (username, raised_at DESC, id DESC);
CREATE INDEX alerts_resolved ON alerts (resolved_at) WHERE resolved_at > 0;

-- What is to be sent. ended_at is 0 while it waits; due_at is when it is tried next, also while somebody tries.
CREATE TABLE alert_deliveries (
    id         TEXT    PRIMARY KEY,
    channel    TEXT    NOT NULL,
    message    TEXT    NOT NULL,
    state      TEXT    NOT NULL,
    attempts   INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    due_at     INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL,
    error      TEXT    NOT NULL
) STRICT;
CREATE INDEX alert_deliveries_due ON alert_deliveries (channel, due_at) WHERE state = 'waiting';
CREATE INDEX alert_deliveries_dead ON alert_deliveries (id) WHERE state = 'dead';
CREATE INDEX alert_deliveries_dead_channel ON alert_deliveries (channel, id) WHERE state = 'dead';
CREATE INDEX alert_deliveries_ended ON alert_deliveries (ended_at) WHERE ended_at > 0;

-- Channels whose target said that it is gone.
CREATE TABLE alert_channels (
    channel     TEXT    PRIMARY KEY,
    target      TEXT    NOT NULL,
    reason      TEXT    NOT NULL,
    disabled_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE alert_silences (
    id         TEXT    PRIMARY KEY,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    body       TEXT    NOT NULL
) STRICT;
CREATE INDEX alert_silences_expires ON alert_silences (expires_at);
CREATE INDEX alert_silences_created ON alert_silences (created_at, id);

-- Messages of the stream that could not be taken.
CREATE TABLE alert_poison (
    sequence INTEGER PRIMARY KEY,
    subject  TEXT    NOT NULL,
    reason   TEXT    NOT NULL,
    data     BLOB    NOT NULL,
    kept_at  INTEGER NOT NULL
) STRICT;
CREATE INDEX alert_poison_kept ON alert_poison (kept_at);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP TABLE alert_poison;
DROP TABLE alert_silences;
DROP TABLE alert_channels;
DROP TABLE alert_deliveries;
DROP TABLE alerts;
DROP TABLE alert_groups;
DROP TABLE alert_events;
-- +goose StatementEnd
