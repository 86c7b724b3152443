"""Pages of batches: the list, one batch with its actions, its webhook deliveries, and streams of changes."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial

from starlette.responses import RedirectResponse, Response

from batchwright.api.errors import ApiError
from batchwright.api.ui.batch_view import ThroughputChart, remedy, throughput_chart, timeline, window_bar
from batchwright.api.ui.live import LiveFragments, batch_event
from batchwright.api.ui.rendering import Renderer, link
from batchwright.api.ui.visit import Forwarded, Visit
from batchwright.contracts.objects.openai import BatchObject, BatchPage, ThroughputObject
from batchwright.contracts.objects.operator import OperatorBatch
from batchwright.contracts.objects.webhooks import DeliveryPage, WebhookPage
from batchwright.contracts.terms import BatchStatus
from batchwright.settings import Settings

Page = Callable[[Visit], Awaitable[Response]]
_FILTERS = ("status", "model", "created_after", "created_before")
_PER_PAGE = "25"
_MAX_WEBHOOKS = 100  # endpoints, and deliveries of each
_CHART_SECONDS = 15.0  # control workers take samples as often


class BatchPages:
    def __init__(self, renderer: Renderer, settings: Settings, live: LiveFragments) -> None:
        self._renderer, self._settings, self._live = renderer, settings, live

    def table(self) -> dict[str, Page]:
        """Return the function for each page, by method and path, such as `GET /batches`."""
        one = "/batches/{batch_id}"
        actions = {
            "resume": partial(self._rerun, action="x/resume"),
            "retry": partial(self._rerun, action="x/retry"),
            "max_cost": self._change_max_cost,
            "priority": self._change_priority,
            "delete": self._delete,
        }
        return {
            "GET /batches": self.list,
            "GET /batches/events": self.list_events,
            f"GET {one}": self.one,
            f"GET {one}/events": self.events,
            f"GET {one}/webhooks": self.webhooks,
            **{f"POST {one}/{name}": action for name, action in actions.items()},
        }

    async def list(self, visit: Visit) -> Response:
        filters, statuses = _filters(visit), list(BatchStatus)
        context = {"page": await self._page(visit), "filters": filters, "statuses": statuses}
        return self._renderer.page(visit, "batches.html", {**context, "after": visit.argument("after")})

    async def list_events(self, visit: Visit) -> Response:
        async def rows() -> bytes:
            return self._renderer.fragment(visit, "batch_rows.html", {"page": await self._page(visit)})

        return await self._live.stream(visit, rows)

    async def _page(self, visit: Visit) -> BatchPage:
        query = {**_filters(visit), "after": visit.argument("after"), "limit": _PER_PAGE}
        query["created_after"] = _midnight("created_after", query["created_after"])
        query["created_before"] = _midnight("created_before", query["created_before"], days=1)
        return await visit.api.get("/v1/batches", BatchPage, query)

    async def one(self, visit: Visit) -> Response:
        batch = await visit.api.get(_api_path(visit), BatchObject)
        return self._renderer.page(visit, "batch.html", self._shown(batch, await _Throughput(visit).chart()))

    async def events(self, visit: Visit) -> Response:
        throughput = _Throughput(visit)

        async def fragment(batch: BatchObject) -> bytes:
            shown = self._shown(batch, await throughput.chart())
            return self._renderer.fragment(visit, "batch_live.html", shown)

        change = partial(batch_event, fragment=fragment)
        return Forwarded(visit, f"{_api_path(visit)}/x/events", ("last-event-id",), change)

    async def webhooks(self, visit: Visit) -> Response:
        """Show the deliveries of webhook events about a batch.

        These are deliveries to the batch's own endpoint, and to endpoints that get the events of all batches.
        """
        batch = await visit.api.get(_api_path(visit), BatchObject)
        most = {"limit": str(_MAX_WEBHOOKS)}
        endpoints = (await visit.api.get("/v1/x/webhooks", WebhookPage, {"batch_id": batch.id})).data
        endpoints += (await visit.api.get("/v1/x/webhooks", WebhookPage, most)).data
        found = [
            (endpoint, [each for each in page.data if each.batch_id == batch.id], page.has_more)
            for endpoint in endpoints
            for page in [await visit.api.get(f"/v1/x/webhooks/{endpoint.id}/deliveries", DeliveryPage, most)]
        ]
        return self._renderer.page(visit, "webhooks.html", {"batch": batch, "endpoints": found})

    def _shown(self, batch: BatchObject, throughput: ThroughputChart | None) -> dict[str, object]:
        settings, now = self._settings, self._renderer.clock().timestamp()
        temporal = settings.temporal_ui_url.rstrip("/")
        if temporal:
            temporal += f"/namespaces/{settings.temporal_namespace}/workflows/{batch.id}"
        return {
            "batch": batch,
            "steps": timeline(batch),
            "window": window_bar(batch, now),
            "waiting": [(why, remedy(why)) for why in batch.waiting],
            "temporal": temporal,
            "throughput": throughput,
        }

    async def _rerun(self, visit: Visit, *, action: str) -> Response:
        """Resume a paused batch.

        If the batch has ended, create a batch that sends its lines again, and show it.
        """
        form = await visit.form()
        body: Mapping[str, object] = {"codes": [form["code"]]} if form.get("code") else {}
        batch = await visit.api.post(f"{_api_path(visit)}/{action}", BatchObject, body)
        return _to_batch(batch.id)

    async def _change_max_cost(self, visit: Visit) -> Response:
        body = {"max_cost": (await visit.form()).get("max_cost") or None}
        await visit.api.post(f"{_api_path(visit)}/x/max_cost", BatchObject, body)
        return _to_batch(visit.path("batch_id"))

    async def _change_priority(self, visit: Visit) -> Response:
        text = (await visit.form()).get("priority", "")
        if not re.fullmatch("[0-9]{1,9}", text):
            raise ApiError(400, "The priority has to be a number.", param="priority")
        path = f"/admin/batches/{visit.path('batch_id')}/priority"
        await visit.api.post(path, OperatorBatch, {"priority": int(text)})
        return _to_batch(visit.path("batch_id"))

    async def _delete(self, visit: Visit) -> Response:
        form = await visit.form()
        await visit.api.act(
            "DELETE", _api_path(visit), {"keep_files": "true" if "keep_files" in form else "false"}
        )
        return RedirectResponse(link("/batches"), 303)


class _Throughput:
    """Reads the throughput of a batch for a chart on a page. The chart is at most `_CHART_SECONDS` old."""

    def __init__(self, visit: Visit) -> None:
        self._visit, self._chart, self._until = visit, None, 0.0

    async def chart(self) -> ThroughputChart | None:
        """Return the chart; None if there is none.

        If a later read of the API fails, return the last chart.
        """
        now = asyncio.get_running_loop().time()
        if now >= self._until:
            self._until = now + _CHART_SECONDS
            with contextlib.suppress(ApiError):
                found = await self._visit.api.get(f"{_api_path(self._visit)}/x/throughput", ThroughputObject)
                self._chart = throughput_chart(found.data)
        return self._chart


def _filters(visit: Visit) -> dict[str, str]:
    found = {name: visit.argument(name) for name in _FILTERS}
    found |= {
        name: value
        for name in visit.request.query_params
        if name.startswith("metadata[") and (value := visit.argument(name))
    }
    key, value = visit.argument("key"), visit.argument("value")
    return found | ({f"metadata[{key}]": value} if key else {})


def _midnight(name: str, date: str, *, days: int = 0) -> str:
    """Return the Unix time at which a day begins, plus a number of days; an empty text if `date` is empty.

    Raises:
        ApiError: `date` is not a date such as 2026-11-27.
    """
    if not date:
        return ""
    try:
        time = datetime.strptime(date, "%Y-%m-%d").replace(tzinfo=UTC) + timedelta(days=days)
    except (ValueError, OverflowError):
        raise ApiError(400, f"{date!r} is not a date such as 2026-11-27.", param=name) from None
    return str(int(time.timestamp()))


def _api_path(visit: Visit) -> str:
    return f"/v1/batches/{visit.path('batch_id')}"


def _to_batch(batch_id: str) -> Response:
    return RedirectResponse(link(f"/batches/{batch_id}"), 303)
