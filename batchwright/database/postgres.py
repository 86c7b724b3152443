"""Connects a process to PostgreSQL, with one connection pool for all tables."""

from batchwright.database.database import Database
from batchwright.database.errors import SchemaMismatch
from batchwright.database.migrate import missing_names
from batchwright.database.pool import ConnectionPool, open_connection_pool
from batchwright.database.tables.batches.batch_deletions import PostgresBatchDeletions
from batchwright.database.tables.batches.batch_ends import PostgresBatchEnds
from batchwright.database.tables.batches.batch_list import PostgresBatchList
from batchwright.database.tables.batches.batch_snapshots import PostgresBatchSnapshots
from batchwright.database.tables.batches.batches import PostgresBatches
from batchwright.database.tables.batches.custom_ids import PostgresCustomIds
from batchwright.database.tables.batches.dead_letters import PostgresDeadLetters
from batchwright.database.tables.batches.progress import PostgresProgress
from batchwright.database.tables.batches.reruns import PostgresReruns
from batchwright.database.tables.batches.waiting_reasons import PostgresWaitingReasons
from batchwright.database.tables.callbacks import PostgresCallbacks
from batchwright.database.tables.calls import PostgresCalls
from batchwright.database.tables.files import PostgresFiles
from batchwright.database.tables.idempotency import PostgresIdempotency
from batchwright.database.tables.models.holds import PostgresHolds
from batchwright.database.tables.models.model_changes import PostgresModelChanges
from batchwright.database.tables.models.models import PostgresModels
from batchwright.database.tables.models.rates import PostgresRates
from batchwright.database.tables.operations.audit_log import PostgresAuditLog
from batchwright.database.tables.operations.consistency_checks import PostgresConsistencyChecks
from batchwright.database.tables.operations.fleet import PostgresLiveBatches
from batchwright.database.tables.operations.forecasts import PostgresForecasts
from batchwright.database.tables.operations.operator_batches import PostgresOperatorBatches
from batchwright.database.tables.operations.retention import PostgresRetention
from batchwright.database.tables.operations.workers import PostgresWorkers
from batchwright.database.tables.schedules import PostgresSchedules
from batchwright.database.tables.tenants.admissions import PostgresAdmissions
from batchwright.database.tables.tenants.api_keys import PostgresApiKeys
from batchwright.database.tables.tenants.budget_groups import PostgresBudgetGroups
from batchwright.database.tables.tenants.quotas import PostgresQuotas
from batchwright.database.tables.tenants.sessions import PostgresSessions
from batchwright.database.tables.tenants.tenants import PostgresTenants
from batchwright.database.tables.uploads import PostgresUploads
from batchwright.database.tables.webhooks.webhook_deliveries import PostgresWebhookDeliveries
from batchwright.database.tables.webhooks.webhook_endpoints import PostgresWebhookEndpoints
from batchwright.settings import Settings

_PATIENCE_SECONDS = 30.0


async def open_database(settings: Settings, *, patience_seconds: float = _PATIENCE_SECONDS) -> Database:
    """Connect to PostgreSQL, check that all migrations are applied, and return the database.

    Args:
        patience_seconds: how long to wait for a PostgreSQL server that is still starting.

    Raises:
        DatabaseUnavailable: PostgreSQL did not answer within `patience_seconds`, or rejected the login.
        SchemaMismatch: migrations are missing, and `batchwright migrate` has to run first. Or this version
            cannot use the tables.
    """
    pool = await open_connection_pool(
        settings.database_url, size=settings.database_pool_size, patience_seconds=patience_seconds
    )
    try:
        async for attempt in pool.patient(patience_seconds):
            with attempt:
                async with pool.session() as session:
                    missing = await missing_names(session)
                if missing:
                    names = ", ".join(missing)
                    raise SchemaMismatch(f"The database lacks {names}: run `batchwright migrate` first.")
    except BaseException:
        await pool.close()
        raise
    return postgres_database(pool)


def postgres_database(pool: ConnectionPool) -> Database:
    files = PostgresFiles(pool)
    admissions = PostgresAdmissions(pool)
    uploads = PostgresUploads(pool, files, admissions)
    dead_letters = PostgresDeadLetters(pool, files, admissions)
    batches = PostgresBatches(pool)
    batch_list = PostgresBatchList(pool)
    budget_groups = PostgresBudgetGroups(pool)
    return Database(
        server=pool,
        files=files,
        uploads=uploads,
        idempotency=PostgresIdempotency(pool, files, uploads, admissions),
        batches=batches,
        batch_ends=PostgresBatchEnds(pool, batches, files, dead_letters),
        batch_list=batch_list,
        batch_snapshots=PostgresBatchSnapshots(pool),
        batch_deletions=PostgresBatchDeletions(pool),
        custom_ids=PostgresCustomIds(pool),
        progress=PostgresProgress(pool),
        reruns=PostgresReruns(pool, files, admissions),
        dead_letters=dead_letters,
        waiting=PostgresWaitingReasons(pool),
        forecasts=PostgresForecasts(pool),
        callbacks=PostgresCallbacks(pool),
        calls=PostgresCalls(pool, admissions),
        fleet=PostgresLiveBatches(pool),
        operator_batches=PostgresOperatorBatches(pool),
        models=PostgresModels(pool),
        model_changes=PostgresModelChanges(pool),
        rates=PostgresRates(pool),
        holds=PostgresHolds(pool),
        workers=PostgresWorkers(pool),
        schedules=PostgresSchedules(pool),
        webhook_endpoints=PostgresWebhookEndpoints(pool),
        webhook_deliveries=PostgresWebhookDeliveries(pool),
        retention=PostgresRetention(pool),
        consistency_checks=PostgresConsistencyChecks(pool),
        audit_log=PostgresAuditLog(pool),
        tenants=PostgresTenants(pool),
        api_keys=PostgresApiKeys(pool, budget_groups),
        sessions=PostgresSessions(pool),
        budget_groups=budget_groups,
        admissions=admissions,
        quotas=PostgresQuotas(pool, batch_list, admissions),
    )
