"""Runs finalization on the result of ingestion, as the workflow does."""

from typing import Protocol

from temporalio.testing import ActivityEnvironment

from batchwright.activities.finalization.activity import Finalization
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.finalization import FinalizeRequest, FinalizeResult
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.settings import load
from batchwright.storage.base import Storage
from batchwright.telemetry.metrics import Metrics
from tests.fakes.routers import NoRouters


class PlannedBatch(Protocol):
    """A batch after ingestion, with the database and the storage that hold it."""

    @property
    def order(self) -> BatchOrder: ...
    @property
    def database(self) -> Database: ...
    @property
    def storage(self) -> Storage: ...
    @property
    def metrics(self) -> Metrics: ...


async def finalized(
    batch: PlannedBatch,
    result: IngestResult,
    status: BatchStatus = BatchStatus.COMPLETED,
    missing_line_code: LineCode = LineCode.BATCH_FAILED,
) -> FinalizeResult:
    request = FinalizeRequest(
        order=batch.order,
        ingest_prefix=result.ingest_prefix,
        models=result.models,
        total=result.total,
        status=status,
        missing_line_code=missing_line_code,
    )
    finalization = Finalization(batch.database, batch.storage, load(), batch.metrics, NoRouters())
    return await ActivityEnvironment().run(finalization.finalize, request)
