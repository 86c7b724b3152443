"""/admin/workers: list the running worker processes, for operators."""

from fastapi import APIRouter, Response

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.schemas.openai_objects import json_response
from batchwright.contracts.api_objects.operator import WorkerList, WorkerObject
from batchwright.database.records import WorkerHeartbeat
from batchwright.rules.worker_stats import FRESH_AGE, polled_queues, running_slices


class WorkerRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._workers = deps.database.workers

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin/workers", tags=["Operation"])
        router.add_api_route("", self.list, response_model=WorkerList)
        return router

    async def list(self) -> Response:
        """List the running workers. A worker counts as running if it has sent a heartbeat in the last 7.5
        seconds.
        """
        found = await self._workers.heartbeats(FRESH_AGE)
        return json_response(WorkerList(data=[_worker(heartbeat) for heartbeat in found]))


def _worker(heartbeat: WorkerHeartbeat) -> WorkerObject:
    running, started = running_slices(heartbeat.stats), heartbeat.started_at
    return WorkerObject(
        id=heartbeat.id,
        started_at=None if started is None else int(started.timestamp()),
        reported_at=int(heartbeat.beat_at.timestamp()),
        in_flight=int(heartbeat.stats.get("in_flight", 0)),
        slices=sum(running.values()),
        batches=len({batch_id for batch_id, _ in running}),
        queues=sorted(polled_queues([heartbeat.stats])),
        registry=heartbeat.registry,
    )
