-- +goose Up

-- The runs of jobs. The primary key makes one replica do each; the index below lets one run of a job at a time be without
-- an end. Times are Unix milliseconds; ended_at is 0 while it runs, and behind deadline it counts as lost.
CREATE TABLE job_runs (
    job        text   COLLATE "C" NOT NULL,
    scheduled  bigint NOT NULL,
    replica    text   NOT NULL,
    started_at bigint NOT NULL,
    deadline   bigint NOT NULL,
    ended_at   bigint NOT NULL,
    outcome    text   NOT NULL,
    note       text   NOT NULL,
    error      text   NOT NULL,
    PRIMARY KEY (job, scheduled)
);
CREATE UNIQUE INDEX job_runs_running ON job_runs (job) WHERE ended_at = 0;
CREATE INDEX job_runs_scheduled ON job_runs (scheduled);

-- +goose Down
DROP TABLE job_runs;
