#!/bin/sh
# Makes and updates Temporal's two databases; run again it changes nothing.
set -eu

for name in temporal visibility; do
  database=temporal
  [ "$name" = temporal ] || database="temporal_$name"
  tool() { temporal-sql-tool --plugin postgres12 --ep temporal-postgres --port 5432 --user temporal --db "$database" "$@"; }
  tool create || true # it is there already; if it is not, the next line fails
  tool setup-schema -v 0.0
  tool update-schema -d "/etc/temporal/schema/postgresql/v12/$name/versioned"
done
