"""Microbatching: send several lines of one model in one request, if the model's settings allow it.

If the backend fails to process a shared request, the same request is sent again after a pause. If the second
request also fails, its lines are split into two halves, with one request for each half. A half that fails is
split again, until each line is sent alone. If the backend refuses a shared request as invalid, each of its
lines is sent alone at once. The failure of a shared request does not use up an attempt of its lines.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from batchwright.contracts.errors import LineCode
from batchwright.inference.backend_client import RequestSender, parse_response
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.transport.base import Header, TargetUrl
from batchwright.rules.backends.chat_microbatch import ChatAdapter
from batchwright.rules.backends.microbatch import (
    MicrobatchAdapter,
    MicrobatchFailed,
    MicrobatchPart,
    MicrobatchSize,
)
from batchwright.rules.dispatch import retry_policy
from batchwright.rules.dispatch.retry_policy import BACKEND_AT_FAULT, Budget, Category
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)


class NotSent(Exception):
    """Raised if a line is not sent now, because its slice must stop or a limit forbids more requests.

    Earlier, the line may have been sent in a shared request that failed.
    """


def repeat_always() -> bool:
    return True


LINGER_SECONDS = 0.01  # how long the first line waits for others to join


class MicrobatchPolicy(NamedTuple):
    """Limits for shared requests, which contain several lines of one model.

    Attributes:
        lines: maximum number of lines in one request.
        tokens: maximum number of input tokens in one request. Tokens are estimated.
        pause: called with the number of a retry, which is 1 for the first retry of a failed request. Returns
            the seconds to wait before this retry.
    """

    model: str
    lines: int
    tokens: int
    pause: Callable[[int], float]


class _MicrobatchKey(NamedTuple):
    """The properties that all lines of a shared request (one request with several lines) have in common.

    If lines of different tenants may share a request, `tenant` is empty.
    """

    target: TargetUrl
    extra: tuple[Header, ...]
    tenant: str


class _Member(NamedTuple):
    part: MicrobatchPart
    body: bytes
    request_id: str
    answered: "asyncio.Future[Outcome]"
    may_repeat: Callable[[], bool]


@dataclass
class _Microbatch:
    key: _MicrobatchKey
    members: list[_Member] = field(default_factory=list[_Member])
    tokens: int = 0
    timer: asyncio.TimerHandle | None = None


class MicrobatchSender:
    """A sender that joins several lines of one model into a shared request, and sends it to one backend.

    For the same model, backend and endpoint, all batches of the process use the same object.
    """

    def __init__(
        self,
        client: RequestSender,
        adapter: MicrobatchAdapter,
        policy: MicrobatchPolicy,
        metrics: Metrics,
    ) -> None:
        self._client, self._adapter, self.policy = client, adapter, policy
        self._size = MicrobatchSize(policy.lines)
        self._open: dict[tuple[_MicrobatchKey, bytes], _Microbatch] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._metrics, self._model = metrics, policy.model

    async def send(
        self,
        target: TargetUrl,
        body: bytes,
        request_id: str,
        extra: Sequence[Header] = (),
        tenant: str = "",
        may_repeat: Callable[[], bool] = repeat_always,
    ) -> Outcome:
        """Send one line, possibly together with other lines in one request. Return the outcome of this line.

        Only lines with the same `tenant` share a request. If the call is cancelled, the shared request
        continues for the other lines. `InferenceClient.send` explains the other parameters.

        Args:
            may_repeat: called when a shared request has failed. If it returns False, this line is not sent
                again.

        Raises:
            NotSent: a shared request failed, and `may_repeat` returned False.
        """
        part = self._eligible(body)
        if part is None:
            outcome = await self._client.send(target, body, request_id, extra)
            if outcome.verdict is retry_policy.SUCCESS:
                self._size.record_single_success()
            return outcome
        answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        key = _MicrobatchKey(target, tuple(extra), tenant)
        self._join(key, _Member(part, body, request_id, answered, may_repeat))
        return await answered

    def _eligible(self, body: bytes) -> MicrobatchPart | None:
        part, reason = None, "shrunk"
        if self._size.current > 1:
            part = self._adapter.part(body)
            reason = "shape" if part is None else "tokens"
            if part is not None and part.tokens <= self.policy.tokens:
                return part
        self._metrics.microbatch_ineligible.labels(self._model, reason).inc()
        self._count_chat_fallbacks(reason, 1)
        return None

    def _join(self, destination: _MicrobatchKey, member: _Member) -> None:
        key = (destination, member.part.shared)
        batch = self._open.get(key)
        if batch is not None and batch.tokens + member.part.tokens > self.policy.tokens:
            self._close(key)
            batch = None
        if batch is None:
            batch = self._open[key] = _Microbatch(destination)
            batch.timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._close, key)
        batch.members.append(member)
        batch.tokens += member.part.tokens
        if len(batch.members) >= self._size.current:
            self._close(key)

    def _close(self, key: tuple[_MicrobatchKey, bytes]) -> None:
        batch = self._open.pop(key)
        if batch.timer is not None:
            batch.timer.cancel()
        task = asyncio.create_task(self._run(batch))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        waiting = len(batch.members)  # two members may be the same line, if its first call was cancelled

        def leave(_: asyncio.Future[Outcome]) -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:  # no line waits for the outcome
                task.cancel()

        for member in batch.members:
            member.answered.add_done_callback(leave)

    async def _run(self, batch: _Microbatch) -> None:
        try:
            await self._send(batch.key, batch.members, repetitions=0)
        except Exception as error:  # each line's call raises it, as if the line had been sent alone
            for member in batch.members:
                if not member.answered.done():
                    member.answered.set_exception(error)

    async def _send(self, key: _MicrobatchKey, members: Sequence[_Member], repetitions: int) -> None:
        if repetitions:
            members = _drop_unsendable(members)
        if len(members) < 2:
            return await self._one_by_one(key, members)
        try:
            body = self._adapter.join([member.part for member in members])
        except MicrobatchFailed as error:
            return await self._split_up(key, members, "joined", str(error))
        outcome = await self._send_together(key, members, body)
        budget = outcome.verdict.budget
        if budget in BACKEND_AT_FAULT:
            self._size.record_failure()
            self._count_failed(outcome.verdict.category, "put_back")
            for member in members:
                _resolve(member, outcome)
        elif outcome.verdict is retry_policy.SUCCESS:
            await self._distribute(key, members, outcome)
        elif budget is Budget.ATTEMPT:
            await self._repeat(key, members, repetitions, outcome.verdict.category)
        else:  # an invalid line must not fail the other lines
            await self._split_up(key, members, "refused", "the backend refused them together")

    async def _repeat(
        self, key: _MicrobatchKey, members: Sequence[_Member], repetitions: int, category: Category
    ) -> None:
        """Send the lines `members` of a failed shared request again after a pause.

        The first retry sends the same request. Each later retry sends the lines in two halves.

        Args:
            repetitions: number of retries so far.
            category: the kind of the last failure.
        """
        self._size.record_failure()
        self._count_failed(category, "halved" if repetitions else "repeated")
        pause = self.policy.pause(repetitions + 1)
        self._metrics.microbatch_retry_seconds.labels(self._model, category).observe(pause)
        await asyncio.sleep(pause)
        if not repetitions:
            return await self._send(key, members, 1)
        middle = len(members) // 2
        halves = members[:middle], members[middle:]
        if middle == 1:
            self._metrics.microbatch_alone.labels(self._model).inc()
            self._count_chat_fallbacks("failed", sum(len(half) == 1 for half in halves))
        for half in halves:
            await self._send(key, half, repetitions + 1)

    async def _distribute(self, key: _MicrobatchKey, members: Sequence[_Member], outcome: Outcome) -> None:
        """Split the successful response to a request that contained several lines.

        Set the outcome of each of these lines.
        """
        try:
            results = self._adapter.split(outcome.body, [member.part for member in members])
        except MicrobatchFailed as error:
            return await self._split_up(key, members, "split", str(error))
        self._size.record_success()
        for member, result in zip(members, results, strict=True):
            if result.problem:
                code = LineCode.INVALID_RESPONSE
                alone = Outcome(retry_policy.INVALID_SHARE, code=code, message=result.problem)
            else:  # as if the line had been sent alone
                alone = parse_response(result.status, {}, result.body, member.body)
                alone = replace(alone, backend_request_id=outcome.backend_request_id)
            _resolve(member, alone)

    async def _split_up(
        self, key: _MicrobatchKey, members: Sequence[_Member], label: str, reason: str
    ) -> None:
        """Send each line in a request of its own, because the lines cannot share a request.

        Args:
            label: the reason why the lines cannot share a request, as a label of the metric.
            reason: the same reason, in words for the log.
        """
        self._size.record_failure()
        self._count_chat_fallbacks(label, len(members))
        self._metrics.microbatch_alone.labels(self._model).inc()
        logger.info("lines cannot share a request", extra={"model": self._model, "reason": reason})
        await self._one_by_one(key, _drop_unsendable(members))

    async def _one_by_one(self, key: _MicrobatchKey, members: Sequence[_Member]) -> None:
        async def send(member: _Member) -> None:
            _resolve(member, await self._client.send(key.target, member.body, member.request_id, key.extra))

        await asyncio.gather(*(send(member) for member in members))

    async def _send_together(self, key: _MicrobatchKey, members: Sequence[_Member], body: bytes) -> Outcome:
        ids = "\n".join(member.request_id for member in members)
        group_id = "group_" + hashlib.sha256(ids.encode()).hexdigest()[:24]
        outcome = await self._client.send(key.target, body, group_id, key.extra)
        self._metrics.microbatch_requests.labels(self._model, outcome.verdict.category).inc()
        self._metrics.microbatch_inputs.labels(self._model).inc(len(members))
        self._metrics.microbatch_size.labels(self._model).observe(len(members))
        if isinstance(self._adapter, ChatAdapter):
            status = "success" if outcome.verdict is retry_policy.SUCCESS else "error"
            self._metrics.chat_groups.labels(status).inc()
            self._metrics.chat_group_size.observe(len(members))
        return outcome

    def _count_failed(self, category: Category, result: str) -> None:
        self._metrics.microbatch_requeues.labels(self._model, category, result).inc()

    def _count_chat_fallbacks(self, reason: str, lines: int) -> None:
        if isinstance(self._adapter, ChatAdapter):
            self._metrics.chat_fallbacks.labels(reason).inc(lines)


def _drop_unsendable(members: Sequence[_Member]) -> list[_Member]:
    """Return the lines that may be sent again.

    A line is left out in two cases:

    - It already has an outcome or was cancelled.
    - Its `may_repeat` returns False. The call of `MicrobatchSender.send` for this line then raises NotSent.
    """
    waiting = [member for member in members if not member.answered.done()]
    sendable = [member for member in waiting if member.may_repeat()]
    for member in waiting:
        if member not in sendable:
            member.answered.set_exception(NotSent())
    return sendable


def _resolve(member: _Member, outcome: Outcome) -> None:
    if not member.answered.done():
        member.answered.set_result(outcome)
