-- Rates that were changed at run time; the settings hold where there is no row. '' stands for all models.
CREATE TABLE rates (
    model               text             PRIMARY KEY,
    requests_per_second double precision NOT NULL CHECK (requests_per_second >= 0),  -- 0: no limit
    changed_at          timestamptz      NOT NULL
);
