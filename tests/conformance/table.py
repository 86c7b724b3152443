"""The conformance table: every row there is, and the page of the reference that shows it."""

from itertools import groupby
from pathlib import Path
from typing import get_args

from batchwright.contracts.openai import Profile
from tests.conformance import (
    batches,
    bounds,
    edges,
    endpoints,
    files,
    keys,
    operation,
    results,
    surroundings,
    tenants,
    uploads,
)
from tests.conformance.contract import Area, Check, Row
from tests.conformance.node_client import NODE_ROWS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "conformance.md"
_INTRO = """# Conformance

<!-- made by `make docs` -->

What the official clients may rely on. Each row is a check in `tests/conformance/` that drives a running
API, workers and backend with the client named; objects are compared with the client's own types: no key
missing, none unknown. `make conformance` runs all of them in both profiles, and fuzzes every route against
`/openapi.json`.

Limits and policies are an operator's to set: their rows run where they are tight, those about keys where
callers need them (`BATCHWRIGHT_AUTH=api_key`). Not among them yet: the delivery of webhooks.
"""


def checks() -> dict[Row, Check]:
    """Those of the Python client."""
    ours = (surroundings, operation, tenants, bounds, keys)
    modules = (files, uploads, batches, endpoints, edges, results, *ours)
    return {row: check for module in modules for row, check in module.TABLE.checks.items()}


def rows() -> list[Row]:
    """By area; Python before Node."""
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
            f"\n## {area}\n\n| | client | relaxed | strict |\n|---|---|---|---|\n" + "\n".join(lines) + "\n"
        )
    return "".join(parts)


def _yes(row: Row, profile: Profile) -> str:
    return "yes" if profile in row.profiles else ""


def main() -> None:
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
