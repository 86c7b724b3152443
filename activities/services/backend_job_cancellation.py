"""Cancel jobs at backends."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from batchwright.contracts.model_registry.backend_job_config import JobConfig
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.inference.backend_headers import forwarded_headers
from batchwright.inference.router import ModelRouter
from batchwright.inference.transport.base import Header, TargetUrl
from batchwright.inference.upstream import Upstream
from batchwright.rules.backends.backend_job_reports import job_path
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
_CANCEL_SECONDS = 5.0
_CONCURRENT_CANCELS = 20


class RouterLookup(Protocol):
    def router_for(self, model: str) -> ModelRouter | None: ...


class RunningJob(NamedTuple):
    """A job that was still running at its backend when the last turn of its slice ended.

    A turn is one attempt to send the lines of a slice.

    Attributes:
        request_id: id of the line's request.
        upstream: identifies the backend and the model (`Upstream.key`).
        id: the job's id at the backend; may be empty if the backend calls back.
    """

    request_id: str
    upstream: str
    id: str


def kind_label(upstream: Upstream) -> str:
    """Return how the backend reports the end of a job, as a metric label: `callback` or `poll`."""
    return "callback" if upstream.calls_back else "poll"


async def cancel_job(
    upstream: Upstream, config: JobConfig, job_id: str, request_id: str, headers: Sequence[Header]
) -> bool:
    """Request that the backend cancels a job. Return False if no request was sent.

    No request is sent if the backend has no endpoint for cancelling jobs, or if the job has no id.
    """
    backend = upstream.backend
    if not config.cancel_endpoint_template or not job_id:
        return False
    target = TargetUrl.of(backend.url + job_path(config.cancel_endpoint_template, job_id))
    outcome = await backend.client.poll_job(config.cancel_method.encode(), target, request_id, headers)
    if not 200 <= outcome.status < 300:
        fields = {"backend": backend.url, "job": job_id, "error": outcome.operator_message}
        logger.info("job could not be cancelled at its backend", extra=fields)
    return True


class JobCanceller:
    """An object that cancels the jobs of an ended batch that still run at backends.

    A turn (one attempt to send lines of a slice) cancels its own jobs if the batch ends early during the
    turn. If the batch ends between two turns, the worker that writes the batch's files cancels the jobs with
    this class.
    """

    def __init__(self, routers: RouterLookup, metrics: Metrics) -> None:
        self._routers, self._metrics = routers, metrics

    async def cancel(self, order: BatchOrder, models: Iterable[str], jobs: Sequence[RunningJob]) -> None:
        """Cancel jobs of a batch at their backends. After 5 s, stop; the other jobs continue to run.

        Args:
            models: models of the batch, whose backends are searched for the jobs.
            jobs: the jobs to cancel.
        """
        if not jobs:
            return
        routers = filter(None, map(self._routers.router_for, models))
        upstreams = {upstream.key: upstream for router in routers for upstream in router.upstreams}
        headers = forwarded_headers(order.endpoint, order.policy.caller)
        limit = asyncio.Semaphore(_CONCURRENT_CANCELS)

        async def cancel(job: RunningJob) -> None:
            upstream = upstreams.get(job.upstream)
            if upstream is None or upstream.jobs is None:
                return
            async with limit:
                if await cancel_job(upstream, upstream.jobs, job.id, job.request_id, headers):
                    labels = self._metrics.models(upstream.model), kind_label(upstream)
                    self._metrics.jobs_ended.labels(*labels, "given_up").inc()

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                await asyncio.gather(*map(cancel, jobs))
