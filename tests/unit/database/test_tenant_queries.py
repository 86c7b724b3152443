"""Every query on a table with rows of tenants reads the rows of one tenant, or is listed here
with a reason.
"""

import re
from collections.abc import Iterator
from importlib.resources import files

import pytest

from batchwright.database.sql import migrations

QUERIES = files("batchwright.database").joinpath("queries")
# No tenant asks these, and no tenant sees their answers.
SYSTEM = {
    "api_keys.all": "operators list keys; of one tenant where they name it",
    "api_keys.find": "a key's prefix tells whose a request is: there is no tenant yet",
    "api_keys.record_uses": "keys that were just proven, by their own ids",
    "api_keys.revoke": "operators revoke a key by its id or prefix",
    "batch_deletions.forget": "the sweep, over all tenants",
    "batch_snapshots.read": "event streams of several batches, each key with its tenant",
    "calls.count_old": "the sweep, over all tenants",
    "calls.ended": "held connections of several tenants, each call with its tenant",
    "calls.remove_old": "the sweep, over all tenants",
    "dead_letters.delete": "operators delete one by its id, which nobody guesses",
    "dead_letters.get": "operators look at one by its id",
    "dead_letters.page": "operators list them, over all tenants unless they name one",
    "dead_letters.position": "where a page of the operators' list goes on",
    "dead_letters.retryable_batch": "operators retry one batch's, of any tenant unless they name one",
    "dead_letters.retryable_batches": "operators retry, over all tenants",
    "fleet.awaited_models": "the models of all tenants that workers poll for",
    "fleet.live": "metrics over all tenants",
    "fleet.backlogs": "metrics over all tenants",
    "fleet.lines_left": "metrics over all tenants",
    "fleet.lines_due": "metrics over all tenants",
    "forecasts.work": "forecasts over all tenants",
    "forecasts.publish": "forecasts of several batches, each row with its tenant",
    "progress.spending": "workers read what batches with a cap cost, each with its tenant",
    "progress.sample": "samples of all batches in progress, each row with its tenant",
    "progress.record": "workers tell of slices of several batches, each row with its tenant",
    "api_keys.limit": "operators limit a key by its id or prefix",
    "budget_groups.all": "operators list groups; of one tenant where they name it",
    "budget_groups.limited": "workers read which tenants and keys share a budget",
    "operator_batches.owner": "operators name a batch by its id",
    "operator_batches.position": "where a page of the operators' list goes on",
    "operator_batches.page_down": "operators list batches, over all tenants unless they name one",
    "operator_batches.page_up": "operators list batches, over all tenants unless they name one",
    "operator_batches.search_down": "operators search batches of all tenants unless they name one",
    "operator_batches.search_up": "operators search batches of all tenants unless they name one",
    "operator_batches.found": "operators see the batches that their search has found",
    "operator_batches.counts": "operators count batches over all tenants",
    "quotas.delete_usage": "what other days have used, of all tenants",
    "quotas.delete_request_counts": "what has run out, by age",
    "quotas.key_budgets": "workers read the budgets of all keys",
    "quotas.withdrawn_keys": "workers read which keys of any tenant hold no more",
    "quotas.daily_usage": "workers read what lines of all tenants have used",
    "quotas.key_caps": "workers read the caps of all keys",
    "quotas.shares": "workers read weights and caps of all tenants",
    "quotas.all": "operators list quotas, and workers read who may use which models",
    "retention.expired_files": "the sweep, over all tenants",
    "retention.ended_batches": "the sweep, over all tenants",
    "retention.old_batches": "the sweep, over all tenants",
    "retention.old_uploads": "the sweep, over all tenants",
    "retention.count_idempotency_keys": "the sweep, over all tenants",
    "retention.remove_idempotency_keys": "the sweep, over all tenants",
    "retention.tenants": "the sweep asks which tenants there are",
    "retention.miscounted": "the consistency check, over all tenants",
    "sessions.find": "a session's token tells whose a request is: there is no tenant yet",
    "tenants.all": "operators list tenants",
    "uploads.unswept": "the sweep, over all tenants",
    "webhook_deliveries.unstarted": "the dispatcher of control workers, over all tenants",
    "webhook_deliveries.count_old": "the sweep, over all tenants",
    "webhook_deliveries.remove_old": "the sweep, over all tenants",
    "webhook_deliveries.remove_endpoints": "the sweep, over all tenants",
    "waiting_reasons.get": "a worker reads the reasons that it has reported itself",
    "waiting_reasons.of_batches": "a page of a list of batches, each batch with its tenant",
    "waiting_reasons.delete_expired": "what has run out, by age",
}
# Of the fleet or of operators: no tenant's name is in them, for nothing of a tenant's is.
SHARED = {
    "audit_log",  # tenants are in it as actors and as owners of targets, and only operators read it
    "audit_log_outcomes",
    "audit_log_position",
    "consistency_checks",
    "callbacks",  # found by an id that stands for a line and its job, which only its worker knows
    "holds",
    "model_changes",
    "model_speeds",
    "rates",
    "retention",
    "sessions",  # found by the hash of a token that only one browser has
    "served_models",
    "storage_mark",
    "interactive_load",
    "interactive_rates",  # of all tenants together, for the division of rates
    "workers",
}
_TABLE = re.compile(r"CREATE (?:UNLOGGED )?TABLE (\w+) \((.*?)\n?\);", re.DOTALL)
_KEYWORDS = "WHERE|SET|ON|JOIN|LEFT|CROSS|ORDER|GROUP|LIMIT|FOR|USING|UNION|RETURNING|WITH|VALUES|IN"
_USE = r"\b(FROM|JOIN|UPDATE|INTO|USING)\s+({tables})\b(?:\s+(?:AS\s+)?(?!(?:{keywords})\b)(\w+))?"
_INTO = re.compile(r"INTO \w+(?: AS \w+)? \((?:[\w, ]+, )?tenant\b|INTO tenants \(name\b")


def created() -> dict[str, str]:
    """Return the columns of each table that the migrations create, as SQL text."""
    return {name: columns for file in migrations() for name, columns in _TABLE.findall(file.sql)}


def of_tenants() -> set[str]:
    """Return the tables whose rows belong to tenants, and the views of these tables."""
    return {
        name for name, columns in created().items() if re.search(r"^\s*tenant ", columns, re.MULTILINE)
    } | {
        "known_files",
        "tenants",
    }


def named_queries() -> Iterator[tuple[str, str]]:
    """Yield the name of each query, such as `batches.get`, and its SQL without comments."""
    for file in sorted(QUERIES.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):
            _, *parts = re.split(r"^-- name: (\w+)\n", file.read_text("utf-8"), flags=re.MULTILINE)
            for name, sql in zip(parts[::2], parts[1::2], strict=True):
                yield f"{file.name.removesuffix('.sql')}.{name}", re.sub(r"--.*", "", sql)


def unbound(sql: str, tables: set[str]) -> list[str]:
    """Return the parts of the SQL that use these tables without restricting them to a tenant."""
    # A query that names a tenant only on request does not name one.
    sql = re.sub(r"\$(\d)::text IS NULL OR (?:\w+\.)?tenant = \$\1", "", sql)
    use = re.compile(_USE.format(tables="|".join(sorted(tables)), keywords=_KEYWORDS))
    column = "name" if "tenants" in sql else "tenant"
    unnamed = len(re.findall(rf"(?<![.\w]){column} = \$\d", sql))
    bound, found = bound_names(sql), list[str]()
    for verb, table, alias in use.findall(sql):
        if (alias or table) in bound or (verb == "INTO" and _INTO.search(sql)):
            continue
        unnamed -= 1
        if unnamed < 0:
            found.append(table)
    return found


def bound_names(sql: str) -> set[str]:
    """Return the table names and aliases that the SQL restricts to a tenant, either directly or by a join."""
    bound = set(re.findall(r"\b(\w+)\.tenant = \$\d", sql))
    if re.search(r"(?<![.\w])tenant = \$\d", sql):
        bound |= set(re.findall(r"\b(\w+) AS \(", sql))  # WITH gone AS (DELETE ... WHERE tenant = $1)
    joined = [set(pair) for pair in re.findall(r"\b(\w+)\.tenant = (\w+)\.tenant\b", sql)]
    for _ in joined:
        bound = bound.union(*(pair for pair in joined if pair & bound))
    return bound


@pytest.mark.parametrize(("name", "sql"), list(named_queries()), ids=lambda value: value.split(" ")[0])
def test_a_query_names_the_tenant_unless_it_is_the_systems(name: str, sql: str) -> None:
    fault = "is listed as the system's, but names the tenant" if name in SYSTEM else "forgets the tenant"
    assert bool(unbound(sql, of_tenants())) == (name in SYSTEM), f"{name} {fault}"


def test_every_listed_system_query_exists_and_every_table_is_classified() -> None:
    assert SYSTEM.keys() - dict(named_queries()).keys() == set()
    assert created().keys() - of_tenants() <= SHARED


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT * FROM batches WHERE id = $1", ["batches"]),
        ("SELECT * FROM batches WHERE tenant = $1 AND id = $2", []),
        ("SELECT * FROM batches b JOIN files f ON f.id = b.input_file_id WHERE b.tenant = $1", ["files"]),
        (
            "SELECT (SELECT 1 FROM files WHERE tenant = $1), (SELECT 1 FROM uploads WHERE id = $2)",
            ["uploads"],
        ),
        ("INSERT INTO files (id) VALUES ($1)", ["files"]),
        ("DELETE FROM files WHERE id = $1", ["files"]),
        ("UPDATE batches SET status = 'failed' WHERE id = $2", ["batches"]),
    ],
)
def test_a_query_that_forgets_the_tenant_is_found(sql: str, found: list[str]) -> None:
    assert unbound(sql, of_tenants()) == found
