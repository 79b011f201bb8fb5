-- +goose Up
-- +goose StatementBegin

-- The runs of jobs. The primary key makes one replica do each; the index below lets one run of a job at a time be without
-- an end. Times are Unix milliseconds; ended_at is 0 while it runs, and behind deadline it counts as lost.
CREATE TABLE job_runs (
    job        TEXT    NOT NULL,
    scheduled  INTEGER NOT NULL,
    replica    TEXT    NOT NULL,
    started_at INTEGER NOT NULL,
    deadline   INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL,
    outcome    TEXT    NOT NULL,
    note       TEXT    NOT NULL,
    error      TEXT    NOT NULL,
    PRIMARY KEY (job, scheduled)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX job_runs_running ON job_runs (job) WHERE ended_at = 0;
CREATE INDEX job_runs_scheduled ON job_runs (scheduled);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP TABLE job_runs;
-- +goose StatementEnd
