#!/bin/sh
# Creates and updates Temporal's two databases. Safe to repeat.
set -eu

for name in temporal visibility; do
  database=temporal
  [ "$name" = temporal ] || database="temporal_$name"
  tool() { temporal-sql-tool --plugin postgres12 --ep temporal-postgres --port 5432 --user temporal --db "$database" "$@"; }
  tool create || true # fails if the database exists; if it failed otherwise, the next line fails
  tool setup-schema -v 0.0
  tool update-schema -d "/etc/temporal/schema/postgresql/v12/$name/versioned"
done
