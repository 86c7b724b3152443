"""Access to the database. Each table has a Protocol, which is implemented in PostgreSQL and in memory."""

from dataclasses import dataclass
from typing import Protocol

from batchwright.database.tables.batches.batch_deletions import BatchDeletions
from batchwright.database.tables.batches.batch_ends import BatchEnds
from batchwright.database.tables.batches.batch_list import BatchList
from batchwright.database.tables.batches.batch_snapshots import BatchSnapshots
from batchwright.database.tables.batches.batches import BatchesTable
from batchwright.database.tables.batches.custom_ids import CustomIdsTable
from batchwright.database.tables.batches.dead_letters import DeadLettersTable
from batchwright.database.tables.batches.progress import ProgressTable
from batchwright.database.tables.batches.reruns import RerunsTable
from batchwright.database.tables.batches.waiting_reasons import WaitingReasonsTable
from batchwright.database.tables.callbacks import CallbacksTable
from batchwright.database.tables.calls import CallsTable
from batchwright.database.tables.files import FilesTable
from batchwright.database.tables.idempotency import IdempotencyTable
from batchwright.database.tables.models.holds import HoldsTable
from batchwright.database.tables.models.model_changes import ModelChangesTable
from batchwright.database.tables.models.models import ModelsTable
from batchwright.database.tables.models.rates import RatesTable
from batchwright.database.tables.operations.audit_log import AuditLogTable
from batchwright.database.tables.operations.consistency_checks import ConsistencyChecksTable
from batchwright.database.tables.operations.fleet import LiveBatches
from batchwright.database.tables.operations.forecasts import ForecastsTable
from batchwright.database.tables.operations.operator_batches import OperatorBatches
from batchwright.database.tables.operations.retention import RetentionTable
from batchwright.database.tables.operations.workers import WorkersTable
from batchwright.database.tables.schedules import SchedulesTable
from batchwright.database.tables.tenants.admissions import AdmissionsTable
from batchwright.database.tables.tenants.api_keys import ApiKeysTable
from batchwright.database.tables.tenants.budget_groups import BudgetGroupsTable
from batchwright.database.tables.tenants.quotas import QuotasTable
from batchwright.database.tables.tenants.sessions import SessionsTable
from batchwright.database.tables.tenants.tenants import TenantsTable
from batchwright.database.tables.uploads import UploadsTable
from batchwright.database.tables.webhooks.webhook_deliveries import WebhookDeliveriesTable
from batchwright.database.tables.webhooks.webhook_endpoints import WebhookEndpointsTable


class DatabaseServer(Protocol):
    """Connection to the database server. All tables use the same connection."""

    async def check(self) -> None:
        """Check that the database answers and accepts changes. Raises DatabaseUnavailable if it does not."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Database:
    """All tables of one database.

    Most methods are idempotent: a caller can safely call them again with the same arguments. Methods that
    count or record something each time are not idempotent, for example the method that records an attempt to
    deliver a webhook. Every method raises DatabaseUnavailable if the database does not answer.
    """

    server: DatabaseServer
    files: FilesTable
    uploads: UploadsTable
    idempotency: IdempotencyTable
    batches: BatchesTable
    batch_ends: BatchEnds
    batch_list: BatchList
    batch_snapshots: BatchSnapshots
    batch_deletions: BatchDeletions
    custom_ids: CustomIdsTable
    progress: ProgressTable
    reruns: RerunsTable
    dead_letters: DeadLettersTable
    waiting: WaitingReasonsTable
    forecasts: ForecastsTable
    callbacks: CallbacksTable
    calls: CallsTable
    fleet: LiveBatches
    operator_batches: OperatorBatches
    models: ModelsTable
    model_changes: ModelChangesTable
    rates: RatesTable
    holds: HoldsTable
    workers: WorkersTable
    schedules: SchedulesTable
    webhook_endpoints: WebhookEndpointsTable
    webhook_deliveries: WebhookDeliveriesTable
    retention: RetentionTable
    consistency_checks: ConsistencyChecksTable
    audit_log: AuditLogTable
    tenants: TenantsTable
    api_keys: ApiKeysTable
    sessions: SessionsTable
    budget_groups: BudgetGroupsTable
    admissions: AdmissionsTable
    quotas: QuotasTable

    async def check(self) -> None:
        """Check that the database answers and accepts changes. Raises DatabaseUnavailable if it does not."""
        await self.server.check()

    async def close(self) -> None:
        await self.server.close()
