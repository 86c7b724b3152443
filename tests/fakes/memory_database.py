"""Fake database in memory. It passes the same tests as the database on PostgreSQL."""

from batchwright.database.database import Database, DatabaseServer
from tests.fakes.tables.batches.batch_deletions import MemoryBatchDeletions
from tests.fakes.tables.batches.batch_ends import MemoryBatchEnds
from tests.fakes.tables.batches.batch_list import MemoryBatchList, MemoryBatchSnapshots
from tests.fakes.tables.batches.batches import MemoryBatches
from tests.fakes.tables.batches.custom_ids import MemoryCustomIds
from tests.fakes.tables.batches.dead_letters import MemoryDeadLetters
from tests.fakes.tables.batches.progress import MemoryProgress
from tests.fakes.tables.batches.reruns import MemoryReruns
from tests.fakes.tables.batches.waiting_reasons import MemoryWaitingReasons
from tests.fakes.tables.callbacks import MemoryCallbacks
from tests.fakes.tables.calls import MemoryCalls
from tests.fakes.tables.files import MemoryFiles
from tests.fakes.tables.models.holds import MemoryHolds
from tests.fakes.tables.models.models import MemoryModelChanges, MemoryModels, MemoryRates
from tests.fakes.tables.operations.audit_log import MemoryAuditLog
from tests.fakes.tables.operations.consistency_checks import MemoryConsistencyChecks
from tests.fakes.tables.operations.fleet import MemoryLiveBatches
from tests.fakes.tables.operations.forecasts import MemoryForecasts
from tests.fakes.tables.operations.operator_batches import MemoryOperatorBatches
from tests.fakes.tables.operations.retention import MemoryRetention
from tests.fakes.tables.operations.workers import MemoryWorkers
from tests.fakes.tables.rows import Rows
from tests.fakes.tables.schedules import MemorySchedules
from tests.fakes.tables.tenants.admissions import MemoryAdmissions
from tests.fakes.tables.tenants.quotas import MemoryQuotas
from tests.fakes.tables.tenants.tenants import (
    MemoryApiKeys,
    MemoryBudgetGroups,
    MemorySessions,
    MemoryTenants,
)
from tests.fakes.tables.uploads import MemoryIdempotency, MemoryUploads
from tests.fakes.tables.webhooks import MemoryWebhookDeliveries, MemoryWebhookEndpoints


class MemoryServer(DatabaseServer):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def check(self) -> None:
        self._rows.enter()

    async def close(self) -> None:
        return None


class MemoryDatabase(Database):
    """A database whose tables are dictionaries in `rows`, which tests may read and change.

    If a test sets `rows.failing` to an exception, such as `DatabaseUnavailable(...)`, each call raises it.
    """

    rows: Rows
    callbacks: MemoryCallbacks

    def __init__(self) -> None:
        rows = Rows()
        self.rows = rows
        super().__init__(
            server=MemoryServer(rows),
            files=MemoryFiles(rows),
            uploads=MemoryUploads(rows),
            idempotency=MemoryIdempotency(rows),
            batches=MemoryBatches(rows),
            batch_ends=MemoryBatchEnds(rows),
            batch_list=MemoryBatchList(rows),
            batch_snapshots=MemoryBatchSnapshots(rows),
            batch_deletions=MemoryBatchDeletions(rows),
            custom_ids=MemoryCustomIds(rows, MemoryBatchList(rows)),
            progress=MemoryProgress(rows),
            reruns=MemoryReruns(rows),
            dead_letters=MemoryDeadLetters(rows),
            waiting=MemoryWaitingReasons(rows),
            forecasts=MemoryForecasts(rows),
            callbacks=MemoryCallbacks(rows),
            calls=MemoryCalls(rows),
            fleet=MemoryLiveBatches(rows),
            operator_batches=MemoryOperatorBatches(rows),
            models=MemoryModels(rows),
            model_changes=MemoryModelChanges(rows),
            rates=MemoryRates(rows),
            holds=MemoryHolds(rows),
            workers=MemoryWorkers(rows),
            schedules=MemorySchedules(rows),
            webhook_endpoints=MemoryWebhookEndpoints(rows),
            webhook_deliveries=MemoryWebhookDeliveries(rows),
            retention=MemoryRetention(rows),
            consistency_checks=MemoryConsistencyChecks(rows),
            audit_log=MemoryAuditLog(rows),
            tenants=MemoryTenants(rows),
            api_keys=MemoryApiKeys(rows),
            sessions=MemorySessions(rows),
            budget_groups=MemoryBudgetGroups(rows),
            admissions=MemoryAdmissions(rows),
            quotas=MemoryQuotas(rows),
        )
