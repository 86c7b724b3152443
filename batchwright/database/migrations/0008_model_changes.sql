-- Models that were registered, changed or taken away at run time; where there is no row, the file holds.
CREATE TABLE model_changes (
    model      text        PRIMARY KEY,
    config     jsonb,               -- as in the registry's file; null: taken away
    changed_at timestamptz NOT NULL
);

-- What a worker goes by: equal in workers that follow the same registry.
ALTER TABLE workers ADD COLUMN registry text NOT NULL DEFAULT '';
