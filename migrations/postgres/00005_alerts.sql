-- +goose Up

-- Alerts and their deliveries. Times are Unix milliseconds.

-- The ids of the events that were taken, so that one that comes again is known.
CREATE TABLE alert_events (
    id       text   COLLATE "C" PRIMARY KEY,
    taken_at bigint NOT NULL
);
CREATE INDEX alert_events_taken ON alert_events (taken_at);

-- The groups of events, with the count of denials. Its row is what is locked to change anything of the group. changed_at is
-- rounded up to a whole hour: an index on a column that every update changes would end HOT updates.
CREATE TABLE alert_groups (
    rule       text   COLLATE "C" NOT NULL,
    grp        text   COLLATE "C" NOT NULL,
    state      text   NOT NULL,
    changed_at bigint NOT NULL,
    PRIMARY KEY (rule, grp)
) WITH (fillfactor = 70);
CREATE INDEX alert_groups_changed ON alert_groups (changed_at);

-- body holds what the other columns do not. resolved_at is 0 while it is open; due_at is when a pending one is looked at.
CREATE TABLE alerts (
    id          text   COLLATE "C" PRIMARY KEY,
    rule        text   COLLATE "C" NOT NULL,
    grp         text   COLLATE "C" NOT NULL,
    subject     text   COLLATE "C" NOT NULL,
    type        text   NOT NULL,
    username    text   COLLATE "C" NOT NULL,
    policy      text   COLLATE "C" NOT NULL,
    raised_at   bigint NOT NULL,
    resolve_at  bigint NOT NULL,
    resolved_at bigint NOT NULL,
    notice      text   NOT NULL,
    reason      text   NOT NULL,
    notice_at   bigint NOT NULL,
    due_at      bigint NOT NULL,
    held_until  bigint NOT NULL,
    digest      text   COLLATE "C" NOT NULL,
    body        text   NOT NULL
);
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
    id         text   COLLATE "C" PRIMARY KEY,
    channel    text   COLLATE "C" NOT NULL,
    message    text   NOT NULL,
    state      text   NOT NULL,
    attempts   int    NOT NULL,
    created_at bigint NOT NULL,
    due_at     bigint NOT NULL,
    ended_at   bigint NOT NULL,
    error      text   NOT NULL
);
CREATE INDEX alert_deliveries_due ON alert_deliveries (channel, due_at) WHERE state = 'waiting';
CREATE INDEX alert_deliveries_dead ON alert_deliveries (id) WHERE state = 'dead';
CREATE INDEX alert_deliveries_dead_channel ON alert_deliveries (channel, id) WHERE state = 'dead';
CREATE INDEX alert_deliveries_ended ON alert_deliveries (ended_at) WHERE ended_at > 0;

-- Channels whose target said that it is gone.
CREATE TABLE alert_channels (
    channel     text   COLLATE "C" PRIMARY KEY,
    target      text   NOT NULL,
    reason      text   NOT NULL,
    disabled_at bigint NOT NULL
);

CREATE TABLE alert_silences (
    id         text   COLLATE "C" PRIMARY KEY,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    body       text   NOT NULL
);
CREATE INDEX alert_silences_expires ON alert_silences (expires_at);
CREATE INDEX alert_silences_created ON alert_silences (created_at, id);

-- Messages of the stream that could not be taken.
CREATE TABLE alert_poison (
    sequence bigint PRIMARY KEY,
    subject  text   NOT NULL,
    reason   text   NOT NULL,
    data     bytea  NOT NULL,
    kept_at  bigint NOT NULL
);
CREATE INDEX alert_poison_kept ON alert_poison (kept_at);

-- +goose Down
DROP TABLE alert_poison, alert_silences, alert_channels, alert_deliveries, alerts, alert_groups, alert_events;
