"""What a control worker tells batches of the fleet: nobody does their next step, or it is others' turn."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta

from temporalio.service import RPCError

from activities.slices.waiting import Tell
from batchwright.contracts.batch import WaitingReason
from batchwright.contracts.names import IO_QUEUE, inference_queue
from batchwright.contracts.openai import BatchStatus
from batchwright.database.base import DatabaseLike
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.rows import Unsettled
from batchwright.database.waiting_base import Source, Waiting
from batchwright.rules.ids import safe_name
from batchwright.rules.polled import FRESH_SECONDS, nobody_polls, polled, running
from batchwright.rules.rates import Pacing
from worker.queues import Queues, QueueState

logger = logging.getLogger(__name__)
_EVERY_SECONDS = 2.5
_PATIENCE_SECONDS = 5.0  # a model that settles something at least so often does not wait
_HOLDS_SECONDS = 30.0
_FORGOTTEN = timedelta(hours=1)
_UNANSWERED = "its slices that run have had no answer lately, and its others wait for them"
_Part = tuple[str, str, str]  # tenant, batch, model; without a model: the whole batch
# What the next step of a batch is done by a worker that reads and writes files.
_FILES_ARE_NEXT = (BatchStatus.VALIDATING, BatchStatus.FINALIZING, BatchStatus.CANCELLING)


def _now() -> datetime:
    return datetime.now(UTC)


class Reasons:
    """Several control workers tell the same: of what is news, the first to write it down tells the run."""

    def __init__(
        self,
        database: DatabaseLike,
        queues: Queues,
        rates: Callable[[str], Pacing | None],
        queue_of: Callable[[str], str],
        tell: Tell,
        now: Callable[[], datetime] = _now,
    ) -> None:
        """`queue_of` names the queue of a model that has none of its own; empty: its own."""
        self._database, self._queues, self._rates, self._queue_of = database, queues, rates, queue_of
        self._tell, self._now = tell, now
        self._moved: dict[_Part, tuple[int, datetime]] = {}  # lines left, since when

    async def run(self) -> None:
        """Looks for ever."""
        while True:
            try:
                await self.look()
            except (DatabaseUnavailable, RPCError) as error:
                logger.info("why batches wait is not known now", extra={"error": str(error)})
            await asyncio.sleep(_EVERY_SECONDS)

    async def look(self) -> None:
        """Once. Raises DatabaseUnavailable, RPCError."""
        now = self._now()
        beats = await self._database.workers.beats(now - timedelta(seconds=FRESH_SECONDS))
        served = polled(beat.stats for beat in beats)
        reasons = await self._of_models(served, running(beat.stats for beat in beats), now)
        if IO_QUEUE not in served:
            reasons |= await self._of_files(now)
        for part, reason in reasons.items():
            await self._wait(part, reason, now)
        for told in await self._database.waiting.of_source(Source.FLEET, now):
            if (told.tenant, told.batch_id, told.model) not in reasons:
                await self._take_back(told)
        await self._database.waiting.forget(now - _FORGOTTEN)

    async def _of_files(self, now: datetime) -> dict[_Part, str]:
        """Why batches wait that need a worker that reads and writes files, where there is none."""
        reason = nobody_polls(IO_QUEUE)
        return {
            (each.tenant, each.id, ""): reason
            for each in await self._database.fleet.live()
            if each.status in _FILES_ARE_NEXT or each.expires_at <= now
        }

    async def _of_models(
        self, served: Collection[str], run: Collection[tuple[str, str]], now: datetime
    ) -> dict[_Part, str]:
        """`run` are the batches and models of which slices run."""
        unsettled = await self._database.fleet.unsettled()
        still = self._still(unsettled, now)
        queues = [self._queue_of(each.model) or inference_queue(safe_name(each.model)) for each in unsettled]
        batches = {(queue, each.batch_id) for queue, each in zip(queues, unsettled, strict=True)}
        sharing = Counter(queue for queue, _ in batches)
        states: dict[str, QueueState] = {}
        found: dict[_Part, str] = {}
        for each, queue in zip(unsettled, queues, strict=True):
            if queue not in served:
                found[_part(each)] = nobody_polls(queue)
            elif _part(each) in still:
                if queue not in states:
                    states[queue] = await self._queues.describe(queue)
                is_own = sharing[queue] == 1 or (each.batch_id, each.model) in run
                if reason := self._turn_of_others(each.model, states[queue], is_own=is_own):
                    found[_part(each)] = reason
        return found

    def _still(self, unsettled: list[Unsettled], now: datetime) -> set[_Part]:
        """What has not settled a line for a while."""
        before, self._moved = self._moved, {}
        for each in unsettled:
            left, since = before.get(_part(each), (each.lines_left, now))
            self._moved[_part(each)] = (each.lines_left, since if left == each.lines_left else now)
        patience = timedelta(seconds=_PATIENCE_SECONDS)
        return {part for part, (_, since) in self._moved.items() if now - since >= patience}

    def _turn_of_others(self, model: str, queue: QueueState, *, is_own: bool) -> str:
        """`is_own`: no others' turn, for slices of the batch run, or no other batch has any there."""
        if not queue.depth:
            return ""  # its slices run, or say themselves why not
        pacing = self._rates(model)
        if pacing is not None:
            return f"held by a rate of {pacing.requests_per_second:g} requests a second"
        return _UNANSWERED if is_own else _behind(queue.depth)

    async def _wait(self, part: _Part, reason: str, now: datetime) -> None:
        tenant, batch_id, model = part
        waiting = Waiting(
            tenant=tenant,
            batch_id=batch_id,
            model=model,
            source=Source.FLEET,
            reason=reason,
            since=now,
            until=now + timedelta(seconds=_HOLDS_SECONDS),
        )
        if await self._database.waiting.tell(waiting):
            logger.info("a batch waits", extra={"batch_id": batch_id, "model": model, "reason": reason})
            told = WaitingReason(model=model, reason=reason, since=now, stays=True)
            await self._tell(batch_id, told)

    async def _take_back(self, told: Waiting) -> None:
        if await self._database.waiting.take_back(told.tenant, told.batch_id, told.model, Source.FLEET):
            await self._tell(told.batch_id, WaitingReason(model=told.model, stays=True))


def _behind(slices: int) -> str:
    """In powers of ten: each other number would be news."""
    least = 10 ** (len(str(slices)) - 1)
    return f"behind {least:,} or more other slices in its queue" if least > 1 else "behind a few other slices"


def _part(each: Unsettled) -> _Part:
    return each.tenant, each.batch_id, each.model
