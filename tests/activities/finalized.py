"""Finalization of what ingestion planned, as a run asks for it."""

from typing import Protocol

from temporalio.testing import ActivityEnvironment

from activities.finalization import Finalization
from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.errors import LineCode
from batchwright.contracts.finalization import FinalizeRequest, FinalizeResult
from batchwright.contracts.ingestion import IngestResult
from batchwright.contracts.openai import BatchStatus
from batchwright.database.base import DatabaseLike
from batchwright.settings import load
from batchwright.storage.base import Storage
from batchwright.telemetry.metrics import Metrics


class Planned(Protocol):
    """A batch, and where it lies."""

    @property
    def order(self) -> BatchOrder: ...
    @property
    def database(self) -> DatabaseLike: ...
    @property
    def storage(self) -> Storage: ...
    @property
    def metrics(self) -> Metrics: ...


async def finalized(
    batch: Planned,
    result: IngestResult,
    status: BatchStatus = BatchStatus.COMPLETED,
    unsettled: LineCode = LineCode.BATCH_FAILED,
) -> FinalizeResult:
    request = FinalizeRequest(
        order=batch.order,
        prefix=result.prefix,
        models=result.models,
        total=result.total,
        status=status,
        unsettled=unsettled,
    )
    finalization = Finalization(batch.database, batch.storage, load(), batch.metrics)
    return await ActivityEnvironment().run(finalization.finalize, request)
