-- Roles for PostgreSQL with least privilege. Run this file after every limiter migrate up, as a superuser, because it makes
-- roles. It may run any number of times:
--
--   psql -U postgres -d limits -v ON_ERROR_STOP=1 -1 -f deploy/roles.sql
--
-- If limits has a schema of its own in the database of another program, set PGOPTIONS='-c search_path=limits' for it.
--
-- New roles cannot log in before they have a password: \password limits_worker. A test runs the service with these roles
-- (internal/app/roles_test.go).

DO $$
DECLARE r text;
BEGIN
    FOREACH r IN ARRAY ARRAY['limits_worker', 'limits_alerter', 'limits_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = r) THEN
            EXECUTE format('CREATE ROLE %I LOGIN', r);
        END IF;
    END LOOP;
    -- PostgreSQL 15 and later have this by default.
    EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', current_schema());
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO limits_worker, limits_alerter, limits_reader', current_schema());
END $$;

GRANT SELECT ON goose_db_version TO limits_worker, limits_alerter, limits_reader;

-- A limiter. UPDATE on receipts and outbox is for row locks. Changes of counters are in the journal before they are in the
-- table counters. DELETE on usage is for rollup and retention.
GRANT SELECT, INSERT, UPDATE, DELETE ON counters, receipts, outbox, usage_counts, usage_requests, overrides, job_runs
    TO limits_worker;
GRANT SELECT, INSERT, DELETE ON journal, outbox_refused, override_removals TO limits_worker;
GRANT SELECT, INSERT, UPDATE ON api_keys TO limits_worker;
GRANT SELECT, UPDATE ON override_revision, key_revision TO limits_worker;

-- cmd/alerter: its own tables, and the tables that the jobs read and clean up.
GRANT SELECT, INSERT, UPDATE, DELETE ON alert_events, alert_groups, alerts, alert_deliveries, alert_channels,
    alert_silences, alert_poison, job_runs, usage_counts TO limits_alerter;
GRANT SELECT, UPDATE, DELETE ON counters, receipts, usage_requests, overrides TO limits_alerter;
GRANT SELECT ON journal TO limits_alerter;
-- Keys that ended long ago are removed; what they are, and their hashes, is not for the alerter.
GRANT SELECT (id, expires_at, revoked_at), DELETE ON api_keys TO limits_alerter;
-- No alert is resolved while events wait to be published; the age of the first of them is in its data.
GRANT SELECT (seq, data) ON outbox TO limits_alerter;
GRANT SELECT ON outbox_refused TO limits_alerter;
GRANT SELECT, UPDATE ON override_revision, key_revision TO limits_alerter;
GRANT SELECT, INSERT, DELETE ON override_removals TO limits_alerter;

-- People and dashboards that only read: everything but the hashes of API keys, the answers kept under ids, and the messages
-- of deliveries.
GRANT SELECT ON counters, usage_counts, usage_requests, overrides, override_revision, job_runs TO limits_reader;
GRANT SELECT (id, name, owner, tier, created_at, expires_at, revoked_at) ON api_keys TO limits_reader;
GRANT SELECT ON alerts, alert_silences TO limits_reader;
GRANT SELECT (id, channel, state, attempts, created_at, due_at, ended_at, error) ON alert_deliveries TO limits_reader;
