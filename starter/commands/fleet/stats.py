"""`batchwright stats`: shows the requests of all workers by backend and by model."""

from batchwright.starter.operator_client import operator_client
from batchwright.starter.options import Json, Tenant, Url
from batchwright.starter.output import column_table, escaped, print_json, stdout


def stats(json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show requests of the fleet by backend and by model.

    The numbers are sums over the running workers. Each worker counts since its start.
    """
    with operator_client(url, tenant) as client:
        found = client.stats()
    if json:
        return print_json(found)
    sums = found.requests
    workers = "1 worker" if found.workers == 1 else f"{found.workers:,} workers"
    stdout().print(f"{sums.total:,} requests, {sums.errors:,} of them failed; {workers}", markup=False)
    if found.backends:
        table = column_table("backend", "requests", "average", "pending", right=3)
        for backend in found.backends:
            average = _average(backend.requests, backend.average_latency_ms)
            table.add_row(escaped(backend.id), f"{backend.requests:,}", average, str(backend.pending))
        stdout().print(table)
    if found.models:
        table = column_table("model", "requests", "average", right=2)
        for model in found.models:
            average = _average(model.requests, model.average_duration_ms)
            table.add_row(escaped(model.name), f"{model.requests:,}", average)
        stdout().print(table)


def _average(requests: int, milliseconds: float) -> str:
    return f"{milliseconds:,.0f} ms" if requests else "-"
