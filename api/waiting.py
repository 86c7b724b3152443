"""Why a batch waits, as the API shows it: what was told, and what nobody is there to tell."""

from collections.abc import Collection
from datetime import timedelta
from typing import NamedTuple

from api.objects import WaitingObject
from api.recent import Recent
from api.services import Services
from batchwright.contracts.names import CONTROL_QUEUE, IO_QUEUE
from batchwright.contracts.openai import BatchStatus
from batchwright.database.rows import BatchRow
from batchwright.database.waiting_base import Source, Waiting
from batchwright.rules.polled import FRESH_SECONDS, is_unpolled, nobody_polls, polled
from batchwright.rules.rates import Rates, effective
from batchwright.rules.states import LIVE

PAUSED = "paused"
_FRESH = timedelta(seconds=FRESH_SECONDS)


class Served(NamedTuple):
    """The queues that some worker polls, and the rates that decide on which of them a model's slices are."""

    queues: Collection[str]
    rates: Rates


class Reasons:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._table = services.database.waiting
        self._served = Recent(self._polled, services.recent_seconds)

    async def served(self) -> Served:
        return await self._served.get(_FRESH)

    def of(self, row: BatchRow, told: list[Waiting], served: Served) -> list[WaitingObject]:
        """Of a batch that has not ended; none where all goes on. A model has at most one of each source."""
        if row.status not in LIVE:
            return []
        said = {each.reason for each in told if not each.model}
        known = {each.model for each in told if each.model and is_unpolled(each.reason)}
        unserved = [
            each
            for each in _unserved(row, served)
            if each.model not in known and (each.model or each.reason not in said)
        ]
        return [*map(_object, told), *unserved]

    async def paused(self, row: BatchRow) -> None:
        order, now = row.order, self._services.clock()
        await self._table.tell(
            Waiting(
                tenant=order.tenant,
                batch_id=order.batch_id,
                source=Source.USER,
                reason=PAUSED,
                since=now,
                until=order.expires_at + timedelta(days=1),
            )
        )

    async def resumed(self, row: BatchRow) -> None:
        await self._table.take_back(row.order.tenant, row.order.batch_id, "", Source.USER)

    async def _polled(self, fresh: timedelta) -> Served:
        database = self._services.database
        beats = await database.workers.beats(self._services.clock() - fresh)
        changes = {row.model: row.requests_per_second for row in await database.rates.all()}
        rates = effective(self._services.settings.rates, changes)
        return Served(polled(beat.stats for beat in beats), rates)


def _unserved(row: BatchRow, served: Served) -> list[WaitingObject]:
    """Of queues that no worker polls: with no worker at all there is nobody else to say so."""
    missing = [queue for queue in (CONTROL_QUEUE, IO_QUEUE) if queue not in served.queues]
    found = [WaitingObject(model=None, reason=nobody_polls(queue)) for queue in missing]
    if row.status is BatchStatus.IN_PROGRESS:
        left = [each.model for each in row.models if each.lines > each.completed + each.failed]
        found += [
            WaitingObject(model=model, reason=nobody_polls(queue))
            for model in left
            if (queue := served.rates.queue_of(model)) not in served.queues
        ]
    return found


def _object(told: Waiting) -> WaitingObject:
    return WaitingObject(model=told.model or None, reason=told.reason, since=int(told.since.timestamp()))
