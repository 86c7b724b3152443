"""Pages of operators: batches of all tenants, models, workers, tenants, keys, dead letters, the audit log."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from pydantic import BaseModel
from starlette.responses import RedirectResponse, Response

from batchwright.api.errors import ApiError
from batchwright.api.ui.batch_pages import Page
from batchwright.api.ui.rendering import Renderer, link
from batchwright.api.ui.visit import Visit
from batchwright.contracts.objects.audit_log import AuditLogPage
from batchwright.contracts.objects.keys import CreatedKey, KeyList
from batchwright.contracts.objects.operator import (
    BatchCountsObject,
    DeadLetterPage,
    OperatorBatchPage,
    QuotaList,
    RegisteredModels,
    StatsObject,
)
from batchwright.contracts.objects.workers import WorkerList
from batchwright.rules.api_keys import Scope

_PER_PAGE = "50"
_MAX_DIGITS = 6  # of the days until a key expires


class _Source(NamedTuple):
    """Where a page gets an object: the path of the API, and the query parameters that the page passes on."""

    path: str
    kind: type[BaseModel]
    filters: tuple[str, ...] = ()


_COUNTS = _Source("/admin/batches/counts", BatchCountsObject)
# The objects of each page. The template `operator_NAME.html` shows them. The object `page` has further pages.
_PAGES: Mapping[str, Mapping[str, _Source]] = {
    "batches": {
        "page": _Source("/admin/batches", OperatorBatchPage, ("tenant", "status", "model", "forecast")),
        "counts": _COUNTS,
    },
    "models": {
        "models": _Source("/admin/models", RegisteredModels),
        "stats": _Source("/v1/stats", StatsObject),
    },
    "workers": {"workers": _Source("/admin/workers", WorkerList)},
    "tenants": {"counts": _COUNTS, "quotas": _Source("/admin/quotas", QuotaList)},
    "keys": {"keys": _Source("/admin/keys", KeyList, ("tenant",))},
    "dead-letters": {"page": _Source("/admin/dlq", DeadLetterPage, ("tenant", "batch_id"))},
    "audit-log": {
        "page": _Source("/admin/audit-log", AuditLogPage, ("action", "actor", "target", "tenant", "outcome"))
    },
}
# Forms that do one act: the page that has them and to which they return, and the API's route of the act.
_ACTS = {
    "batches/{id}/{action}": ("batches", "POST /admin/batches/{id}/{action}"),
    "keys/{id}/revoke": ("keys", "POST /admin/keys/{id}/revoke"),
    "dead-letters/{id}/retry": ("dead-letters", "POST /admin/dlq/{id}/retry"),
    "dead-letters/{id}/delete": ("dead-letters", "DELETE /admin/dlq/{id}"),
}


class OperatorPages:
    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def table(self) -> dict[str, Page]:
        return {
            **{f"GET /operator/{name}": partial(self._show, name=name) for name in _PAGES},
            "POST /operator/keys": self._create_key,
            **{
                f"POST /operator/{form}": partial(self._act, name=name, route=route)
                for form, (name, route) in _ACTS.items()
            },
        }

    async def _show(self, visit: Visit, *, name: str, created: CreatedKey | None = None) -> Response:
        sources, filters = _PAGES[name], dict[str, str]()
        for source in sources.values():
            filters |= {key: visit.argument(key) for key in source.filters}
        paging = {"after": visit.argument("after"), "limit": _PER_PAGE}
        queries = [
            {key: filters[key] for key in source.filters} | (paging if found == "page" else {})
            for found, source in sources.items()
        ]
        objects = await asyncio.gather(
            *(
                visit.api.get(source.path, source.kind, query)
                for source, query in zip(sources.values(), queries, strict=True)
            )
        )
        context: dict[str, object] = {"name": name, "names": list(_PAGES), "filters": filters}
        context |= {**dict(zip(sources, objects, strict=True)), "created": created, "scopes": list(Scope)}
        return self._renderer.page(visit, f"operator_{name}.html", context)

    async def _act(self, visit: Visit, *, name: str, route: str) -> Response:
        await visit.form()
        method, path = route.split(" ")
        await visit.api.act(method, path.format_map(visit.request.path_params))
        return RedirectResponse(link(f"/operator/{name}"), 303)

    async def _create_key(self, visit: Visit) -> Response:
        """Create a key, and show it on the page of keys: once, because the API does not show it again."""
        form = await visit.form()
        days = form.get("expires_in_days", "")
        if days and not (days.isdecimal() and len(days) <= _MAX_DIGITS):
            raise ApiError(400, "The number of days has to be a number.", param="expires_in_days")
        body = {
            "tenant": form.get("tenant", ""),
            "label": form.get("label", ""),
            "scopes": [scope for scope in Scope if f"scope_{scope}" in form],
            "expires_in_days": int(days) if days else None,
        }
        created = await visit.api.post("/admin/keys", CreatedKey, body)
        return await self._show(visit, name="keys", created=created)
