"""The conformance table: all rows, and the page of the reference that shows it."""

from itertools import groupby
from pathlib import Path
from typing import get_args

from batchwright.contracts.terms import Profile
from tests.conformance import (
    batch_lists,
    batches,
    bounds,
    calls,
    data_in_place,
    edges,
    endpoints,
    files,
    keys,
    messages,
    operation,
    results,
    surroundings,
    tenants,
    uploads,
    webhooks,
)
from tests.conformance.contract import Area, Check, Row
from tests.conformance.node_client import NODE_ROWS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "conformance.md"
_INTRO = """# Conformance

<!-- made by `make docs` -->

What you can rely on when you use the official clients. Each row is a check in `tests/conformance/` that
uses the named client with a running API, workers and a backend. Objects are compared with the client's own
types: no key is missing, and none is unknown. `make conformance` runs all checks in both profiles, and
sends random requests to every route that `/openapi.json` describes.

Checks of limits and policies run with small limits, and checks of keys with `BATCHWRIGHT_AUTH=api_key`.
"""


def checks() -> dict[Row, Check]:
    """Return the checks with the Python client, by row."""
    ours = (surroundings, operation, tenants, bounds, keys, webhooks, data_in_place)
    modules = (files, uploads, batches, batch_lists, endpoints, edges, results, calls, *ours)
    tables = [module.TABLE for module in modules]
    tables += [messages.TABLE, messages.TIGHT_TABLE, messages.KEYS_TABLE, calls.TIGHT_TABLE]
    return {row: check for table in tables for row, check in table.checks.items()}


def rows() -> list[Row]:
    """Return all rows, sorted by area.

    Within an area, rows of the Python client come before those of the Node client.
    """
    order = get_args(Area)
    return sorted([*checks(), *NODE_ROWS], key=lambda row: order.index(row.area))


def page() -> str:
    parts = [_INTRO]
    for area, of_area in groupby(rows(), key=lambda row: row.area):
        lines = [
            f"| {row.rule} | {row.client} | {_yes(row, Profile.RELAXED)} | {_yes(row, Profile.STRICT)} |"
            for row in of_area
        ]
        parts.append(
            f"\n## {area}\n\n| what works | client | relaxed | strict |\n|---|---|---|---|\n"
            + "\n".join(lines)
            + "\n"
        )
    return "".join(parts)


def _yes(row: Row, profile: Profile) -> str:
    return "yes" if profile in row.profiles else ""


def main() -> None:
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
