"""Read from the database how requests of tenants are limited, and which batches are sent first.

This module reads weights, caps and rates of tenants, caps of API keys, and holds. A hold is an instruction of
the operator to send no lines of a tenant or a model.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from batchwright.contracts.terms import HoldKind
from batchwright.database.database import Database
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import InteractiveRate
from batchwright.database.tables.tenants.quota_records import TenantShare
from batchwright.inference.limits.tenant_and_model_limits import NO_RATES, FleetRate, Rates, TenantSettings
from batchwright.rules.dispatch.batch_ranking import WaitingBatch
from batchwright.rules.limits.interactive_reserve import left_to_batches
from batchwright.rules.limits.limit_shares_of_workers import share_of, share_of_rate
from batchwright.rules.worker_stats import FRESH_AGE, INTERACTIVE_AGE
from batchwright.telemetry.outage_log import OutageLog

logger = logging.getLogger(__name__)
_REFRESH_SECONDS = 2.0


class StoredTenantSettings(TenantSettings):
    """The limits and weights of tenants, caps of API keys, holds, and the order in which batches are sent.

    This object reads all of them from the database every two seconds. A hold is an instruction of the
    operator to send no lines of a tenant or a model.

    A cap limits the requests in flight of a tenant or an API key. Each worker that runs slices of the tenant
    or the key gets a part of the cap. The other workers see a new worker only after its heartbeat, a few
    seconds later. Until then, the parts of all workers together may exceed the cap.

    A rate limits the requests or tokens of a tenant per minute. The part that interactive calls use is
    subtracted first, but batches always keep at least a tenth of the rate. The rest is divided between the
    workers that run slices of the tenant. A new worker gets no part until these workers know of it. So all
    parts together never exceed the rate.
    """

    def __init__(self, database: Database, worker_id: str) -> None:
        """Create the object. Before the first `refresh`, it knows no limits.

        Args:
            worker_id: id of this process in its heartbeats. Together with the ids of the other workers, it
                decides which part of a cap this worker gets.
        """
        super().__init__()
        self._table, self._fleet, self._holds = database.quotas, database.fleet, database.holds
        self._workers = database.workers
        self._worker_id = worker_id
        message = "weights and caps cannot be read: the last known ones stay in effect"
        self._outages = OutageLog(logger, message)
        self._is_read = asyncio.Event()

    async def refresh(self) -> None:
        """Read the limits, the holds, the weights, and the remaining lines of batches again.

        Raises:
            DatabaseUnavailable: the database does not respond. The last values stay in effect.
        """
        now = datetime.now(UTC)
        rows, keys = await self._table.shares(FRESH_AGE), await self._table.key_caps(FRESH_AGE)
        interactive = await self._workers.interactive_rates(INTERACTIVE_AGE)
        holds, backlogs = await self._holds.all(), await self._fleet.backlogs(now)
        self.weights = {row.tenant: row.weight for row in rows if row.weight is not None}
        self.max_in_flight = {
            row.tenant: part_of_cap(row.max_in_flight, row.workers, self._worker_id)
            for row in rows
            if row.max_in_flight is not None
        }
        self.key_max_in_flight = {
            row.key_id: part_of_cap(row.max_in_flight, row.workers, self._worker_id) for row in keys
        }
        used = {each.name: each for each in interactive if each.of_tenant}
        rates = {row.tenant: self._rates_of(row, used.get(row.tenant)) for row in rows}
        self.rates = {tenant: found for tenant, found in rates.items() if found is not NO_RATES}
        self.held_tenants = frozenset(hold.name for hold in holds if hold.kind is HoldKind.TENANT)
        self.held_models = frozenset(hold.name for hold in holds if hold.kind is HoldKind.MODEL)
        batches = [
            WaitingBatch(
                model=each.model,
                tenant=each.tenant,
                batch_id=each.batch_id,
                priority=each.priority,
                lines=each.lines_left,
                created_at=each.created_at.timestamp(),
                deadline=each.deadline.timestamp(),
            )
            for each in backlogs
            if not each.is_paused and each.held is None and each.deadline > now
        ]
        paused = {each.batch_id for each in backlogs if each.is_paused or each.held is not None}
        self.schedule.update(batches, now.timestamp(), paused)
        self._is_read.set()

    def _rates_of(self, row: TenantShare, interactive: InteractiveRate | None) -> Rates:
        def part(per_minute: int | None, used: float) -> FleetRate | None:
            if per_minute is None:
                return None
            left = left_to_batches(per_minute, used)
            return FleetRate(per_minute, share_of_rate(left, self._worker_id, row.workers, row.live_workers))

        if row.requests_per_minute is None and row.tokens_per_minute is None:
            return NO_RATES
        requests, tokens = (0.0, 0.0) if interactive is None else (interactive.requests, interactive.tokens)
        return Rates(part(row.requests_per_minute, requests), part(row.tokens_per_minute, tokens))

    async def wait_until_read(self) -> None:
        """Wait for the first successful `refresh`. Before that, no cap is known."""
        await self._is_read.wait()

    async def run(self) -> None:
        """Call `refresh` every two seconds until cancelled.

        While the database is unavailable, the last values stay in effect. This is logged once per outage.
        """
        while True:
            with self._outages.suppress(DatabaseUnavailable):
                await self.refresh()
            await asyncio.sleep(_REFRESH_SECONDS)


def part_of_cap(cap: int, workers: Sequence[str], worker_id: str) -> int:
    """Return the part of a tenant's or an API key's cap that one worker may use.

    The parts of all workers add up to the cap. But if the cap is lower than the number of workers, each
    worker gets 1, because a worker with a part of 0 would never finish its slices.

    Args:
        cap: number of requests that may be in flight in the whole fleet.
        workers: ids of the workers that are known to run slices of the tenant or key.
        worker_id: id of this worker. It gets a part even if it is not in `workers` yet.
    """
    return max(share_of(cap, worker_id, {*workers, worker_id}), 1)
