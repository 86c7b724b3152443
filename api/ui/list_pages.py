"""Pages that show lists, such as files, and forms with which a visitor changes something.

Each list shows one or more objects of the API with a template. Each form sends one request to the API.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from pydantic import BaseModel
from starlette.responses import Response

from batchwright.api.ui.visit import Page, Visit, see_other, whole_number
from batchwright.contracts.api_objects import operator as shown
from batchwright.contracts.api_objects import quotas
from batchwright.contracts.api_objects.audit_log import AuditLogPage
from batchwright.contracts.api_objects.openai import FilePage
from batchwright.contracts.temporal_payloads.batch import WindowFit
from batchwright.contracts.terms import BatchStatus
from batchwright.rules.tenants.scopes import Scope

_PER_PAGE = "50"
Form = Mapping[str, str]


class _Source(NamedTuple):
    """The source of a page's data: a path of the API, and the query parameters to send.

    Attributes:
        kind: type of the object that the API returns.
        filters: names of query parameters in the page's URL that are also sent to the API.
        fixed: query parameters that are always sent.
    """

    path: str
    kind: type[BaseModel]
    filters: tuple[str, ...] = ()
    fixed: Mapping[str, str] = {}


_COUNTS = _Source("/admin/batches/counts", shown.BatchCountsObject)
_BATCHES = ("tenant", "status", "model", "forecast")
# Filters with few values, which the pages offer as choices.
_CHOICES = {
    "status": ["live", *(status.value for status in BatchStatus)],
    "forecast": [window.value for window in WindowFit],
}
_LOG = ("action", "actor", "target", "tenant", "outcome")
# The objects of each page, by its path and the name of its template. The object `page` has further pages.
_LISTS: Mapping[str, Mapping[str, _Source]] = {
    "/files": {"page": _Source("/v1/files", FilePage, ("purpose",), {"order": "desc"})},
    "/limits": {"limits": _Source("/v1/x/limits", quotas.LimitsObject)},
    "/operator/batches": {
        "page": _Source("/admin/batches", shown.OperatorBatchPage, _BATCHES),
        "counts": _COUNTS,
    },
    "/operator/models": {
        "models": _Source("/admin/models", shown.RegisteredModels),
        "stats": _Source("/v1/stats", shown.StatsObject),
    },
    "/operator/workers": {"workers": _Source("/admin/workers", shown.WorkerList)},
    "/operator/tenants": {
        "counts": _COUNTS,
        "quotas": _Source("/admin/quotas", quotas.QuotaList),
        "groups": _Source("/admin/budget-groups", quotas.BudgetGroupList),
    },
    "/operator/tenants/{tenant}/limits": {"limits": _Source("/admin/quotas/{tenant}", quotas.LimitsObject)},
    "/operator/keys": {"keys": _Source("/admin/keys", shown.KeyList, ("tenant",))},
    "/operator/dead-letters": {"page": _Source("/admin/dlq", shown.DeadLetterPage, ("tenant", "batch_id"))},
    "/operator/audit-log": {"page": _Source("/admin/audit-log", AuditLogPage, _LOG)},
}
_OPERATOR = "/operator/"
_TABS = [path.removeprefix(_OPERATOR) for path in _LISTS if path.startswith(_OPERATOR) and "{" not in path]


class _Changed(BaseModel):
    id: str = ""


class _Action(NamedTuple):
    """The effect of a form that a visitor submits: a request to the API, and the page that the browser then
    shows.

    Attributes:
        route: method and path of the request to the API.
        page: path of the page. `{id}` stands for the id of the object that the API has returned.
        body: function that returns the body of the request; None if the request has no body.
        query: fields of the form to send as query parameters of the request.
    """

    route: str
    page: str
    body: Callable[[Form], object] | None = None
    query: tuple[str, ...] = ()


def _code(form: Form) -> object:
    return {"codes": [form["code"]]} if form.get("code") else {}


def _max_cost(form: Form) -> object:
    return {"max_cost": form.get("max_cost") or None}


def _priority(form: Form) -> object:
    return {"priority": whole_number(form.get("priority", ""), "priority")}


_BATCH = "/batches/{id}"
_ACTIONS = {
    "/batches/{id}/cancel": _Action("POST /v1/batches/{id}/cancel", _BATCH),
    "/batches/{id}/pause": _Action("POST /v1/batches/{id}/x/pause", _BATCH),
    "/batches/{id}/resume": _Action("POST /v1/batches/{id}/x/resume", _BATCH),
    "/batches/{id}/retry": _Action("POST /v1/batches/{id}/x/retry", _BATCH, _code),
    "/batches/{id}/max_cost": _Action("POST /v1/batches/{id}/x/max_cost", _BATCH, _max_cost),
    "/batches/{id}/priority": _Action("POST /admin/batches/{id}/priority", _BATCH, _priority),
    "/batches/{id}/delete": _Action("DELETE /v1/batches/{id}", "/batches", query=("keep_files",)),
    "/files/{id}/delete": _Action("DELETE /v1/files/{id}", "/files"),
    "/operator/batches/{id}/{action}": _Action("POST /admin/batches/{id}/{action}", "/operator/batches"),
    "/operator/keys/{id}/revoke": _Action("POST /admin/keys/{id}/revoke", "/operator/keys"),
    "/operator/dead-letters/{id}/retry": _Action("POST /admin/dlq/{id}/retry", "/operator/dead-letters"),
    "/operator/dead-letters/{id}/delete": _Action("DELETE /admin/dlq/{id}", "/operator/dead-letters"),
}


def list_pages() -> dict[str, Page]:
    """Return the functions that show the list pages, and the functions that handle submitted forms.

    The keys are method and path: `GET /files` shows a list, `POST /files/{id}/delete` handles a form.
    """
    actions = {f"POST {form}": partial(_perform, action=action) for form, action in _ACTIONS.items()}
    lists = {f"GET {path}": partial(_show, path=path) for path in _LISTS}
    return {**lists, **actions, "POST /operator/keys": _create_key}


async def _show(visit: Visit, *, path: str, created: shown.CreatedKey | None = None) -> Response:
    sources, names = _LISTS[path], [name for source in _LISTS[path].values() for name in source.filters]
    filters = {name: visit.argument(name) for name in names}
    paging = {"after": visit.argument("after"), "limit": _PER_PAGE}

    async def found(name: str, source: _Source) -> BaseModel:
        query = {key: filters[key] for key in source.filters}
        query |= {**paging, **source.fixed} if name == "page" else {}
        return await visit.api.get(source.path.format_map(visit.request.path_params), source.kind, query)

    objects = await asyncio.gather(*(found(name, source) for name, source in sources.items()))
    folder, _, name = path.rpartition("/")
    context: dict[str, object] = {"path": path, "name": name, "filters": filters, "created": created}
    context |= {"title": name.replace("-", " ").capitalize(), "tabs": _TABS, "scopes": list(Scope)}
    context["choices"] = _CHOICES
    template = "operator.html" if folder else f"{name}.html"
    return visit.page(template, **context, **dict(zip(sources, objects, strict=True)))


async def _perform(visit: Visit, *, action: _Action) -> Response:
    form = await visit.form()
    method, _, path = action.route.format_map(visit.request.path_params).partition(" ")
    query, body = {name: form.get(name) for name in action.query}, action.body(form) if action.body else None
    response = await visit.api.send(method, path, query, body)
    changed = _Changed.model_validate_json(response or b"{}")
    return see_other(action.page.format(id=changed.id))


async def _create_key(visit: Visit) -> Response:
    """Create an API key, and show it on the page of keys. The key cannot be shown again later."""
    form = await visit.form()
    body = {
        "tenant": form.get("tenant", ""),
        "label": form.get("label", ""),
        "scopes": [scope for scope in Scope if f"scope_{scope}" in form],
        "expires_in_days": whole_number(form.get("expires_in_days", ""), "expires_in_days"),
    }
    created = await visit.api.post("/admin/keys", shown.CreatedKey, body)
    return await _show(visit, path="/operator/keys", created=created)
