"""Pages of operators: batches of all tenants, models, tenants, dead letters and the audit log."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from pydantic import BaseModel
from starlette.responses import RedirectResponse, Response

from batchwright.api.ui.batch_pages import Page
from batchwright.api.ui.rendering import Renderer, link
from batchwright.api.ui.visit import Visit
from batchwright.contracts.audit_log import AuditLogPage
from batchwright.contracts.openai_objects import BatchObject
from batchwright.contracts.operator_objects import (
    BatchCountsObject,
    DeadLetterPage,
    OperatorBatch,
    OperatorBatchPage,
    QuotaList,
    RegisteredModels,
    StatsObject,
)

_PER_PAGE = "50"


class _Source(NamedTuple):
    """Where a page gets an object: the path of the API, and the query parameters that the page passes on."""

    path: str
    kind: type[BaseModel]
    filters: tuple[str, ...] = ()


_COUNTS = _Source("/admin/batches/counts", BatchCountsObject)
# The objects of each page. The template `operator_NAME.html` shows them.
_PAGES: Mapping[str, Mapping[str, _Source]] = {
    "batches": {
        "page": _Source("/admin/batches", OperatorBatchPage, ("tenant", "status", "model", "forecast")),
        "counts": _COUNTS,
    },
    "models": {
        "models": _Source("/admin/models", RegisteredModels),
        "stats": _Source("/v1/stats", StatsObject),
    },
    "tenants": {"counts": _COUNTS, "quotas": _Source("/admin/quotas", QuotaList)},
    "dead-letters": {"page": _Source("/admin/dlq", DeadLetterPage, ("tenant", "batch_id"))},
    "audit-log": {
        "page": _Source("/admin/audit-log", AuditLogPage, ("action", "actor", "target", "tenant", "outcome"))
    },
}


class OperatorPages:
    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def table(self) -> dict[str, Page]:
        return {
            **{f"GET /operator/{name}": partial(self._show, name=name) for name in _PAGES},
            "POST /operator/batches/{id}/{action}": self._control,
            "POST /operator/dead-letters/{id}/retry": self._retry,
            "POST /operator/dead-letters/{id}/delete": self._delete,
        }

    async def _show(self, visit: Visit, *, name: str) -> Response:
        sources, filters = _PAGES[name], dict[str, str]()
        for source in sources.values():
            filters |= {key: visit.argument(key) for key in source.filters}

        async def read(source: _Source) -> BaseModel:
            if not source.filters:
                return await visit.api.get(source.path, source.kind)
            query = {**filters, "after": visit.argument("after"), "limit": _PER_PAGE}
            return await visit.api.get(source.path, source.kind, query)

        found = await asyncio.gather(*map(read, sources.values()))
        context: dict[str, object] = {"name": name, "names": list(_PAGES), "filters": filters}
        context |= dict(zip(sources, found, strict=True))
        return self._renderer.page(visit, f"operator_{name}.html", context)

    async def _control(self, visit: Visit) -> Response:
        await visit.form()
        path = f"/admin/batches/{visit.path('id')}/{visit.path('action')}"
        await visit.api.post(path, OperatorBatch)
        return RedirectResponse(link("/operator/batches"), 303)

    async def _retry(self, visit: Visit) -> Response:
        await visit.form()
        await visit.api.post(f"/admin/dlq/{visit.path('id')}/retry", BatchObject)
        return RedirectResponse(link("/operator/dead-letters"), 303)

    async def _delete(self, visit: Visit) -> Response:
        await visit.form()
        await visit.api.delete(f"/admin/dlq/{visit.path('id')}")
        return RedirectResponse(link("/operator/dead-letters"), 303)
