"""Pages of lists and acts on their items: files, and what operators see of all tenants.

Each list is one or more objects of the API and a template, and each act is one call of the API.
"""

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
from batchwright.contracts.objects import operator as shown
from batchwright.contracts.objects.audit_log import AuditLogPage
from batchwright.contracts.objects.keys import CreatedKey, KeyList
from batchwright.contracts.objects.openai import FilePage
from batchwright.contracts.objects.workers import WorkerList
from batchwright.rules.api_keys import Scope

_PER_PAGE = "50"
_MAX_DIGITS = 6  # of the days until a key expires


class _Source(NamedTuple):
    """Where a page gets its data: a path of the API, and query parameters that the page passes to it."""

    path: str
    kind: type[BaseModel]
    filters: tuple[str, ...] = ()
    fixed: Mapping[str, str] = {}


_COUNTS = _Source("/admin/batches/counts", shown.BatchCountsObject)
_BATCHES = ("tenant", "status", "model", "forecast")
_LOG = ("action", "actor", "target", "tenant", "outcome")
# The objects of each page, by its path and the name of its template. The object `page` has further pages.
_LISTS: Mapping[str, Mapping[str, _Source]] = {
    "/files": {"page": _Source("/v1/files", FilePage, ("purpose",), {"order": "desc"})},
    "/limits": {"limits": _Source("/v1/x/limits", shown.LimitsObject)},
    "/operator/batches": {
        "page": _Source("/admin/batches", shown.OperatorBatchPage, _BATCHES),
        "counts": _COUNTS,
    },
    "/operator/models": {
        "models": _Source("/admin/models", shown.RegisteredModels),
        "stats": _Source("/v1/stats", shown.StatsObject),
    },
    "/operator/workers": {"workers": _Source("/admin/workers", WorkerList)},
    "/operator/tenants": {
        "counts": _COUNTS,
        "quotas": _Source("/admin/quotas", shown.QuotaList),
        "groups": _Source("/admin/budget-groups", shown.BudgetGroupList),
    },
    "/operator/tenants/{tenant}/limits": {"limits": _Source("/admin/quotas/{tenant}", shown.LimitsObject)},
    "/operator/keys": {"keys": _Source("/admin/keys", KeyList, ("tenant",))},
    "/operator/dead-letters": {"page": _Source("/admin/dlq", shown.DeadLetterPage, ("tenant", "batch_id"))},
    "/operator/audit-log": {"page": _Source("/admin/audit-log", AuditLogPage, _LOG)},
}
# Forms that do one act: the API's route of the act, and the page to which they return.
_ACTS = {
    "/batches/{id}/cancel": ("POST /v1/batches/{id}/cancel", "/batches/{id}"),
    "/batches/{id}/pause": ("POST /v1/batches/{id}/x/pause", "/batches/{id}"),
    "/files/{id}/delete": ("DELETE /v1/files/{id}", "/files"),
    "/operator/batches/{id}/{action}": ("POST /admin/batches/{id}/{action}", "/operator/batches"),
    "/operator/keys/{id}/revoke": ("POST /admin/keys/{id}/revoke", "/operator/keys"),
    "/operator/dead-letters/{id}/retry": ("POST /admin/dlq/{id}/retry", "/operator/dead-letters"),
    "/operator/dead-letters/{id}/delete": ("DELETE /admin/dlq/{id}", "/operator/dead-letters"),
}


class ListPages:
    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def table(self) -> dict[str, Page]:
        acts = {f"POST {form}": partial(self._act, form=form) for form in _ACTS}
        lists = {f"GET {path}": partial(self._show, path=path) for path in _LISTS}
        return {**lists, **acts, "POST /operator/keys": self._create_key}

    async def _show(self, visit: Visit, *, path: str, created: CreatedKey | None = None) -> Response:
        sources, filters = _LISTS[path], dict[str, str]()
        for source in sources.values():
            filters |= {key: visit.argument(key) for key in source.filters}
        paging = {"after": visit.argument("after"), "limit": _PER_PAGE}
        found = await asyncio.gather(
            *(
                visit.api.get(
                    source.path.format_map(visit.request.path_params),
                    source.kind,
                    {key: filters[key] for key in source.filters}
                    | (paging | dict(source.fixed) if name == "page" else {}),
                )
                for name, source in sources.items()
            )
        )
        folder, _, name = path.rpartition("/")
        context: dict[str, object] = {"path": path, "name": name, "filters": filters, "created": created}
        tabs = [each.removeprefix("/operator/") for each in _LISTS if each.startswith("/operator/")]
        context["tabs"] = [each for each in tabs if "/" not in each]
        template = "operator.html" if folder else f"{name}.html"
        context |= dict(zip(sources, found, strict=True))
        return self._renderer.page(visit, template, {**context, "scopes": list(Scope)})

    async def _act(self, visit: Visit, *, form: str) -> Response:
        await visit.form()
        route, page = _ACTS[form]
        method, path = route.format_map(visit.request.path_params).split(" ")
        await visit.api.act(method, path)
        return RedirectResponse(link(page.format_map(visit.request.path_params)), 303)

    async def _create_key(self, visit: Visit) -> Response:
        """Create an API key, and show it on the page of keys. It is shown only this one time."""
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
        return await self._show(visit, path="/operator/keys", created=created)
