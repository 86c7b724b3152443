"""Lines of one model sent several in a request, where its settings say so (S1-194 to S1-209).

A group that fails costs no line anything: it is asked again as a group, then as halves, then line by line;
only an answer to a line alone counts against that line.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from batchwright.contracts.errors import LineCode
from batchwright.inference.engine import Header, Target
from batchwright.inference.outcomes import Outcome, judged
from batchwright.rules import retries
from batchwright.rules.chat_groups import Chats
from batchwright.rules.microbatch import Adapter, CannotShare, ChunkSize, Part, Result
from batchwright.rules.retries import Budget, Category
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
LINGER_SECONDS = 0.01  # a slice hands its lines over one after the other


class Sender(Protocol):
    def send(
        self, target: Target, body: bytes, request_id: str, extra: Sequence[Header] = ()
    ) -> Awaitable[Outcome]:
        """As `InferenceClient.send`."""
        ...


class _Place(NamedTuple):
    """Where a request goes, and the headers of its batch: only lines that have both in common meet."""

    target: Target
    extra: tuple[Header, ...]


class _Member(NamedTuple):
    part: Part
    body: bytes
    request_id: str
    answered: "asyncio.Future[Outcome]"


@dataclass
class _Group:
    place: _Place
    members: list[_Member] = field(default_factory=list[_Member])
    tokens: int = 0
    timer: asyncio.TimerHandle | None = None


class GroupingSender:
    """Of one model; one in a process, so that lines of all its slices and batches meet.

    `most` lines and `tokens` estimated input tokens share a request; `pause(n)`: seconds before the n-th
    repetition of a group.
    """

    def __init__(
        self,
        sender: Sender,
        adapter: Adapter,
        *,
        model: str,
        most: int,
        tokens: int,
        pause: Callable[[int], float],
        metrics: Metrics,
    ) -> None:
        self._sender, self._adapter, self._tokens, self._pause = sender, adapter, tokens, pause
        self._size = ChunkSize(most)
        self._open: dict[tuple[_Place, bytes], _Group] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._metrics, self._model = metrics, model

    async def send(
        self, target: Target, body: bytes, request_id: str, extra: Sequence[Header] = ()
    ) -> Outcome:
        """As `InferenceClient.send`; a call that is cancelled leaves its group to the others."""
        part = self._eligible(body)
        if part is None:
            outcome = await self._sender.send(target, body, request_id, extra)
            if outcome.verdict is retries.SUCCESS:
                self._size.succeeded_alone()
            return outcome
        answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._join(_Place(target, tuple(extra)), _Member(part, body, request_id, answered))
        return await answered

    def _eligible(self, body: bytes) -> Part | None:
        part, reason = None, "shrunk"
        if self._size.now > 1:
            part = self._adapter.part(body)
            reason = "shape" if part is None else "tokens"
            if part is not None and part.tokens <= self._tokens:
                return part
        self._metrics.microbatch_ineligible.labels(self._model, reason).inc()
        self._count_alone(reason, 1)
        return None

    def _join(self, place: _Place, member: _Member) -> None:
        key = (place, member.part.shared)
        group = self._open.get(key)
        if group is not None and group.tokens + member.part.tokens > self._tokens:
            self._close(key)
            group = None
        if group is None:
            group = self._open[key] = _Group(place)
            group.timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._close, key)
        group.members.append(member)
        group.tokens += member.part.tokens
        if len(group.members) >= self._size.now:
            self._close(key)

    def _close(self, key: tuple[_Place, bytes]) -> None:
        group = self._open.pop(key)
        if group.timer is not None:
            group.timer.cancel()
        task = asyncio.create_task(self._answer(group))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        waiting = {member.request_id for member in group.members}
        for member in group.members:
            member.answered.add_done_callback(lambda _, one=member: self._left(one, waiting, task))

    def _left(self, member: _Member, waiting: set[str], task: "asyncio.Task[None]") -> None:
        """Answered or withdrawn; a request that nobody waits for any more is not finished."""
        waiting.discard(member.request_id)
        if not waiting:
            task.cancel()

    async def _answer(self, group: _Group) -> None:
        try:
            await self._ask(group.place, group.members, repetitions=0)
        except Exception as error:  # each line's own to tell, as if it had been sent alone
            for member in group.members:
                if not member.answered.done():
                    member.answered.set_exception(error)

    async def _ask(self, place: _Place, members: Sequence[_Member], repetitions: int) -> None:
        members = [member for member in members if not member.answered.done()]
        if len(members) < 2:
            return await self._one_by_one(place, members)
        try:
            body = self._adapter.join([member.part for member in members])
        except CannotShare as error:
            return await self._apart(place, members, "joined", str(error))
        outcome = await self._send_group(place, members, body)
        budget = outcome.verdict.budget
        if budget in (Budget.CAPACITY, Budget.BLOCKED):
            self._size.failed()
            self._count_failed(outcome.verdict.category, "put_back")
            for member in members:
                _tell(member, outcome)
        elif outcome.verdict is retries.SUCCESS:
            await self._share(place, members, outcome)
        elif budget is Budget.ATTEMPT:
            await self._again(place, members, repetitions, outcome.verdict.category)
        else:  # one line's mistake must not be the others' end
            await self._apart(place, members, "refused", "the backend refused them together")

    async def _again(
        self, place: _Place, members: Sequence[_Member], repetitions: int, category: Category
    ) -> None:
        """Once as it was, then in halves (S1-205)."""
        self._size.failed()
        self._count_failed(category, "halved" if repetitions else "repeated")
        pause = self._pause(repetitions + 1)
        self._metrics.microbatch_retry_seconds.labels(self._model, category).observe(pause)
        await asyncio.sleep(pause)
        if not repetitions:
            return await self._ask(place, members, 1)
        middle = len(members) // 2
        halves = members[:middle], members[middle:]
        if middle == 1:
            self._metrics.microbatch_alone.labels(self._model).inc()
            self._count_alone("failed", sum(len(half) == 1 for half in halves))
        for half in halves:
            await self._ask(place, half, repetitions + 1)

    async def _share(self, place: _Place, members: Sequence[_Member], outcome: Outcome) -> None:
        try:
            results = self._adapter.split(outcome.body, [member.part for member in members])
        except CannotShare as error:
            return await self._apart(place, members, "split", str(error))
        self._size.succeeded()
        for member, result in zip(members, results, strict=True):
            _tell(member, _own(outcome, result))

    async def _apart(self, place: _Place, members: Sequence[_Member], reason: str, why: str) -> None:
        """Line by line (S1-204). `reason` is one of the metric's, `why` in words."""
        self._size.failed()
        self._count_alone(reason, len(members))
        self._metrics.microbatch_alone.labels(self._model).inc()
        logger.info("lines cannot share a request", extra={"model": self._model, "reason": why})
        await self._one_by_one(place, members)

    async def _one_by_one(self, place: _Place, members: Sequence[_Member]) -> None:
        async def ask(member: _Member) -> None:
            _tell(member, await self._sender.send(place.target, member.body, member.request_id, place.extra))

        await asyncio.gather(*(ask(member) for member in members))

    async def _send_group(self, place: _Place, members: Sequence[_Member], body: bytes) -> Outcome:
        ids = "\n".join(member.request_id for member in members)
        group_id = "group_" + hashlib.sha256(ids.encode()).hexdigest()[:24]
        outcome = await self._sender.send(place.target, body, group_id, place.extra)
        self._metrics.microbatch_requests.labels(self._model, outcome.verdict.category).inc()
        self._metrics.microbatch_inputs.labels(self._model).inc(len(members))
        self._metrics.microbatch_size.labels(self._model).observe(len(members))
        if isinstance(self._adapter, Chats):
            status = "success" if outcome.verdict is retries.SUCCESS else "error"
            self._metrics.chat_groups.labels(status).inc()
            self._metrics.chat_group_size.observe(len(members))
        return outcome

    def _count_failed(self, category: Category, result: str) -> None:
        self._metrics.microbatch_requeues.labels(self._model, category, result).inc()

    def _count_alone(self, reason: str, lines: int) -> None:
        """Of chats only: `reason` is one of the metric's."""
        if isinstance(self._adapter, Chats):
            self._metrics.chat_fallbacks.labels(reason).inc(lines)


def _tell(member: _Member, outcome: Outcome) -> None:
    if not member.answered.done():
        member.answered.set_result(outcome)


def _own(whole: Outcome, result: Result) -> Outcome:
    """A line's share, judged as if the backend had answered it alone (S1-225, S1-226)."""
    if result.problem:
        return Outcome(retries.BROKEN_SHARE, code=LineCode.INVALID_RESPONSE, message=result.problem)
    alone = judged(result.status, {}, result.body)
    return replace(alone, backend_request_id=whole.backend_request_id)
