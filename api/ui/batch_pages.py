"""Pages of batches: the list, one batch, its webhook deliveries, and streams that update these pages."""

import contextlib
from datetime import UTC, datetime, timedelta

from markupsafe import Markup
from starlette.responses import Response

from batchwright.api.errors import ApiError
from batchwright.api.ui.batch_view import is_live, throughput_chart
from batchwright.api.ui.live import Fragment, LiveFragments
from batchwright.api.ui.visit import Page, Visit
from batchwright.contracts.api_objects.openai import BatchObject, BatchPage, ThroughputObject
from batchwright.contracts.api_objects.webhooks import DeliveryPage, WebhookPage
from batchwright.contracts.terms import BatchStatus
from batchwright.settings import Settings

_FILTERS = ("status", "model", "created_after", "created_before")
_PER_PAGE = "25"
_MAX_WEBHOOKS = 100  # endpoints, and deliveries of each
_CHART_SECONDS = 15.0  # control workers take samples as often


class BatchPages:
    def __init__(self, settings: Settings, live: LiveFragments) -> None:
        self._live, base = live, settings.temporal_ui_url.rstrip("/")
        self._workflows = base and f"{base}/namespaces/{settings.temporal_namespace}/workflows/"

    def table(self) -> dict[str, Page]:
        """Return the functions that make the pages. The keys are method and path, such as `GET /batches`."""
        return {
            "GET /batches": self.list,
            "GET /batches/events": self.list_events,
            "GET /batches/{id}": self.one,
            "GET /batches/{id}/events": self.events,
            "GET /batches/{id}/webhooks": self.webhooks,
        }

    async def list(self, visit: Visit) -> Response:
        page, filters = await _page(visit), _filters(visit)
        context = {"filters": filters, "statuses": list(BatchStatus), "after": visit.argument("after")}
        return visit.page("batches.html", title="Batches", page=page, **context)

    async def list_events(self, visit: Visit) -> Response:
        async def rows() -> Fragment:
            return Fragment(visit.fragment("batch_rows.html", page=await _page(visit)))

        return await self._live.stream(visit, rows)

    async def one(self, visit: Visit) -> Response:
        batch = await _batch(visit)
        throughput = await self._throughput(visit)
        context = {"throughput": throughput, "workflows": self._workflows}
        return visit.page("batch.html", title=batch.id, batch=batch, **context)

    async def events(self, visit: Visit) -> Response:
        async def changing() -> Fragment:
            batch = await _batch(visit)
            throughput = await self._throughput(visit)
            html = visit.fragment("batch_live.html", batch=batch, throughput=throughput)
            return Fragment(html, is_last=not is_live(batch))

        return await self._live.stream(visit, changing)

    async def _throughput(self, visit: Visit) -> Markup:
        """Return the HTML of a batch's throughput chart; empty if there are too few samples or the API
        rejects the request.
        """
        path = f"{_api_path(visit)}/x/throughput"

        async def chart() -> Fragment:
            with contextlib.suppress(ApiError):
                samples = (await visit.api.get(path, ThroughputObject)).data
                return Fragment(visit.fragment("throughput.html", chart=throughput_chart(samples)))
            return Fragment(b"")

        return Markup((await self._live.latest(visit, path, chart, _CHART_SECONDS)).html.decode())

    async def webhooks(self, visit: Visit) -> Response:
        """Show the deliveries of events about a batch: each event that is sent to a webhook endpoint, with
        all attempts to send it.

        The events were sent to the batch's own endpoint, or to endpoints that get the events of all batches.
        """
        batch = await _batch(visit)
        most = {"limit": str(_MAX_WEBHOOKS)}
        endpoints = (await visit.api.get("/v1/x/webhooks", WebhookPage, {"batch_id": batch.id})).data
        endpoints += (await visit.api.get("/v1/x/webhooks", WebhookPage, most)).data
        found = [
            (endpoint, [each for each in page.data if each.batch_id == batch.id], page.has_more)
            for endpoint in endpoints
            for page in [await visit.api.get(f"/v1/x/webhooks/{endpoint.id}/deliveries", DeliveryPage, most)]
        ]
        return visit.page("webhooks.html", title=f"Webhooks of {batch.id}", batch=batch, endpoints=found)


async def _page(visit: Visit) -> BatchPage:
    query = {**_filters(visit), "after": visit.argument("after"), "limit": _PER_PAGE}
    query["created_after"] = _midnight("created_after", query["created_after"])
    query["created_before"] = _midnight("created_before", query["created_before"], days=1)
    return await visit.api.get("/v1/batches", BatchPage, query)


async def _batch(visit: Visit) -> BatchObject:
    return await visit.api.get(_api_path(visit), BatchObject)


def _api_path(visit: Visit) -> str:
    return f"/v1/batches/{visit.path('id')}"


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
    """Return the Unix time at which a day begins in UTC, as text. If `date` is empty, return an empty text.

    Args:
        name: name of the query parameter, for the error.
        date: the day, such as 2026-11-27.
        days: number of days to add to `date`.

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
