-- +goose Up
-- +goose StatementBegin

-- One row, whose revision is another one after each change of a stored API key, whoever makes it: the worker that has seen it
-- relies on all keys that it has read since, with one read of this row instead of one of each key. It is random, so that it
-- does not come back after changes that follow the restore of a backup. A new key needs none, as nobody has it yet.
CREATE TABLE key_revision (
    one      INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    revision INTEGER NOT NULL
) STRICT;
INSERT INTO key_revision (revision) VALUES (random());

CREATE TRIGGER key_was_updated AFTER UPDATE ON api_keys BEGIN
    UPDATE key_revision SET revision = random();
END;
CREATE TRIGGER key_was_deleted AFTER DELETE ON api_keys BEGIN
    UPDATE key_revision SET revision = random();
END;
-- REPLACE deletes the row that it replaces, but no trigger for that is called.
CREATE TRIGGER key_was_replaced BEFORE INSERT ON api_keys WHEN EXISTS (SELECT 1 FROM api_keys WHERE id = NEW.id) BEGIN
    UPDATE key_revision SET revision = random();
END;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP TRIGGER key_was_updated;
DROP TRIGGER key_was_deleted;
DROP TRIGGER key_was_replaced;
DROP TABLE key_revision;
-- +goose StatementEnd
