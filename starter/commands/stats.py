"""`batchwright stats`: what the fleet has sent, and to whom."""

from rich.table import Table

from starter.operator_views import Stats
from starter.options import Json, Tenant, Url, connected
from starter.output import print_json, stdout
from starter.tables import columns, plain


def stats(json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show what the fleet has sent, by backend and by model.

    Of the workers that are alive, each since its start.
    """
    with connected(url, tenant) as client:
        found = client.stats()
    if json:
        return print_json(found)
    sums = found.requests
    workers = "1 worker" if found.workers == 1 else f"{found.workers:,} workers"
    stdout().print(f"{sums.total:,} requests, {sums.errors:,} of them failed; {workers}", markup=False)
    if found.backends:
        stdout().print(_backends(found))
    if found.models:
        stdout().print(_models(found))


def _backends(found: Stats) -> Table:
    table = columns("backend", "requests", "average", "pending", right=3)
    for row in found.backends:
        table.add_row(plain(row.id), f"{row.requests:,}", _ms(row.average_latency_ms), str(row.pending))
    return table


def _models(found: Stats) -> Table:
    table = columns("model", "requests", "average", right=2)
    for row in found.models:
        table.add_row(plain(row.name), f"{row.requests:,}", _ms(row.average_duration_ms))
    return table


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:,.0f} ms"
