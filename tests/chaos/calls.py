"""Users of single calls: jobs with a callback and responses in the background. Each acknowledged call must be
answered exactly once, whatever is killed.
"""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
from aiohttp import web
from openai import DefaultHttpxClient, InvalidWebhookSignatureError, NotFoundError, OpenAI

from batchwright.contracts.api_objects.calls import JobObject, NewJobObject
from tests.chaos.load import TROUBLES
from tests.chaos.user import User
from tests.chaos.witness import Entry
from tests.clients import http_client
from tests.e2e.stack import MODELS, Stack
from tests.fakes.webhook_receiver import ReceivedWebhook, WebhookReceiver, receiving

_MOST_AT_ONCE = 8
_PATIENCE_SECONDS = 600.0  # as for events
_AGAIN_SECONDS = 1.0
_LIVE = ("queued", "in_progress")
_OPENAI = OpenAI(api_key="none", http_client=DefaultHttpxClient(verify=False))


@dataclass
class CallCounts:
    """The counts of acknowledged calls.

    Attributes:
        lost: calls that were unknown later, or had no answer ten minutes after the last disturbance.
        doubled: calls that were sent as two lines, or whose callbacks or results differ.
        sent_again: calls that were sent to the backend after they had ended.
        seconds: from the acknowledgement of each call until its user had the answer. The first attempt of
            each callback is refused.
    """

    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    sent_again: int = 0
    seconds: list[float] = field(default_factory=list[float])


@dataclass
class Call:
    """A call (a single request of a user) that the API has acknowledged. Times are Unix seconds.

    Attributes:
        name: the end of the field `user` of the request. The backend's ledger knows the call by it.
        ended_at: time at which the user first received the information that the call has ended.
        answered_at: time at which the user had the answer.
    """

    name: str
    id: str
    secret: str | None = None
    acknowledged_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    answered_at: float | None = None
    attempts: list[ReceivedWebhook] = field(default_factory=list[ReceivedWebhook])

    @property
    def answers(self) -> set[tuple[str, bytes]]:
        return {(attempt.id, attempt.body) for attempt in self.attempts}


class CallWitness(WebhookReceiver):
    """A user who makes calls, and a server that receives their callbacks.

    The server refuses the first attempt of each callback, and accepts the second one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[str, Call] = {}  # by name
        self.broken: list[str] = []
        self._lost: set[str] = set()

    async def call(self, stack: Stack, users: Sequence[User], seed: str, calm: asyncio.Event) -> None:
        """Make groups of calls until `calm` is set. Each group begins when the group before it has been
        answered.

        Args:
            seed: determines the calls. Each user of single calls has another seed.
        """
        rng = random.Random(f"calls {seed}")
        group = 0
        while not calm.is_set():
            user = rng.choice(users)
            group += 1
            calls = [
                self._make(stack, user, rng.choice(TROUBLES), f"{seed}-{group}-{place}", rng.random())
                for place in range(rng.randint(1, _MOST_AT_ONCE))
            ]
            answering = asyncio.ensure_future(asyncio.gather(*calls))
            while not answering.done() and not calm.is_set():
                await asyncio.wait([answering], timeout=_AGAIN_SECONDS)
            try:
                await asyncio.wait_for(answering, _PATIENCE_SECONDS)
            except TimeoutError:
                return  # `count` finds the calls without an answer

    async def _make(self, stack: Stack, user: User, trouble: str, name: str, choice: float) -> None:
        """Make a call, and wait until it is answered."""
        model, marker = MODELS[int(choice * len(MODELS))], f"{trouble} {name}"
        if choice < 0.5:
            await self._follow(user, await self._respond(user, model, marker, name))
            return
        call = await self._submit(stack, user, model, marker, name)
        while call.answered_at is None:
            await asyncio.sleep(_AGAIN_SECONDS)
        result = (await self._job(stack, user, call)).result
        if call.answers and result != JobObject.model_validate_json(call.attempts[0].body).result:
            self.broken.append(f"the result of {call.id} is not the one of its callback")

    async def _respond(self, user: User, model: str, marker: str, name: str) -> Call:
        made = await user.insist(
            lambda client: client.responses.create(
                model=model,
                input=f"Say {name}.",
                user=marker,
                background=True,
                extra_headers={"Idempotency-Key": name},
            )
        )
        call = self.made[name] = Call(name, made.id)
        return call

    async def _follow(self, user: User, call: Call) -> None:
        while True:
            try:
                response = await user.insist(lambda client: client.responses.retrieve(call.id))
            except NotFoundError:
                self._lost.add(call.name)
                return
            if response.status not in _LIVE:
                call.ended_at = call.answered_at = time.time()
                if response.status != "completed":
                    self.broken.append(f"the response {call.id} ended as {response.status}: {response.error}")
                return
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _submit(self, stack: Stack, user: User, model: str, marker: str, name: str) -> Call:
        body = {
            "model": model,
            "payload": {"messages": [{"role": "user", "content": f"Say {name}."}], "user": marker},
            "callback_url": f"{self.url}?call={name}",
        }
        headers = {"Idempotency-Key": name, "X-Tenant": user.tenant}
        while True:
            try:
                async with http_client(stack.now.api, headers) as http:
                    made = await http.post("/queue/submit", json=body)
                    if made.status_code < 500:
                        job = NewJobObject.model_validate_json(made.raise_for_status().content)
                        call = self.made[name] = Call(name, job.job_id, job.callback_secret)
                        return call
            except httpx.TransportError:
                pass  # the API is being started again
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _job(self, stack: Stack, user: User, call: Call) -> JobObject:
        while True:
            try:
                async with http_client(stack.now.api, {"X-Tenant": user.tenant}) as http:
                    found = await http.get(f"/queue/{call.id}")
                    if found.status_code < 500:
                        return JobObject.model_validate_json(found.raise_for_status().content)
            except httpx.TransportError:
                pass
            await asyncio.sleep(_AGAIN_SECONDS)

    async def handle(self, request: web.Request) -> web.Response:
        webhook = ReceivedWebhook(dict(request.headers), await request.read())
        call = self.made.get(request.query["call"])
        if call is None:
            return web.Response(status=503)  # its user does not know its secret yet
        try:
            _OPENAI.webhooks.verify_signature(webhook.body, webhook.headers, secret=call.secret)
        except InvalidWebhookSignatureError as error:
            self.broken.append(f"the callback of {call.id} is not signed: {error}")
            return web.Response(status=400)
        call.ended_at = call.ended_at or time.time()
        call.attempts.append(webhook)
        if len(call.attempts) == 1:
            return web.Response(status=503)
        call.answered_at = call.answered_at or time.time()
        job = JobObject.model_validate_json(webhook.body)
        if (job.job_id, job.status) != (call.id, "completed"):
            self.broken.append(f"the job {call.id} ended as {job.status}: {job.error}")
        return web.Response(status=200)

    def count(self, ledger: Iterable[Entry]) -> CallCounts:
        """Compare the calls with the backend's ledger, and count them. Problems are added to `broken`."""
        sent: dict[str, list[Entry]] = defaultdict(list)
        for entry in ledger:
            name = (entry.user or "").rpartition(" ")[2]
            if name in self.made:
                sent[name].append(entry)
        unanswered = {call.name for call in self.made.values() if call.answered_at is None}
        lost = {call.id for call in self.made.values() if call.name in self._lost | unanswered}
        doubled = {
            call.id for call in self.made.values() if len(call.answers) > 1 or len(sent[call.name]) > 1
        }
        again = {
            call.id
            for call in self.made.values()
            for entry in sent[call.name]
            if call.ended_at is not None and entry.last_request_at > call.ended_at
        }
        never = {call.id for call in self.made.values() if not sent[call.name]} - lost
        for what, ids in {
            "were lost": lost,
            "were answered twice": doubled,
            "were sent again after they had ended": again,
            "were answered and never sent": never,
        }.items():
            if ids:
                self.broken.append(f"{len(ids)} calls {what}: {sorted(ids)[:5]}")
        return CallCounts(
            acknowledged=len(self.made),
            lost=len(lost),
            doubled=len(doubled),
            sent_again=len(again),
            seconds=[
                call.answered_at - call.acknowledged_at for call in self.made.values() if call.answered_at
            ],
        )


@asynccontextmanager
async def witnessed_calls() -> AsyncGenerator[CallWitness]:
    """Run a `CallWitness` on a free port."""
    async with receiving(witness := CallWitness()):
        yield witness
