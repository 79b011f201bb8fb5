-- +goose Up

-- One row, whose revision is another one after each change of a stored API key, whoever makes it: a worker that has seen it
-- relies on all keys that it has read since, with one read of this row instead of one of each key. It is random, so that it
-- does not come back after changes that follow the restore of a backup. A new key needs none, as nobody has it yet.
CREATE TABLE key_revision (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    revision bigint  NOT NULL
);
INSERT INTO key_revision (revision) VALUES ((random() * 9223372036854775807)::bigint);

-- +goose StatementBegin
CREATE FUNCTION change_key_revision() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Who changes keys by hand may have another search_path.
    EXECUTE format('UPDATE %I.key_revision SET revision = (random() * 9223372036854775807)::bigint', TG_TABLE_SCHEMA);
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER change_key_revision AFTER UPDATE OR DELETE OR TRUNCATE ON api_keys EXECUTE FUNCTION change_key_revision();

-- +goose Down
DROP TRIGGER change_key_revision ON api_keys;
DROP FUNCTION change_key_revision;
DROP TABLE key_revision;
