-- +goose Up

-- Events of the outbox that the stream does not take as they are, being too large: they wait for somebody to mend that. Others go on, so
-- how long these have waited says nothing of them. A table of its own, because a new column would have all decisions wait for whoever
-- reads the outbox, such as a backup. What is published leaves its row behind until more are refused.
CREATE TABLE outbox_refused (
    seq bigint PRIMARY KEY
);

-- +goose Down
DROP TABLE outbox_refused;
