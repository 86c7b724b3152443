"""Checks that webhooks about the ends of batches arrive, whatever is killed while they are delivered."""

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from openai import InvalidWebhookSignatureError

from batchwright.contracts.api_objects.webhooks import WebhookObject
from tests.chaos.check import Verdict
from tests.clients import http_client
from tests.e2e.batches import until
from tests.e2e.stack import Stack
from tests.fakes.webhook_receiver import ReceivedWebhook, WebhookReceiver, receiving

# A worker that is killed in an attempt is noticed after a minute, and a delivery that failed several times is
# attempted again after another one. All of that takes longer on a machine with other work.
_PATIENCE_SECONDS = 600.0
_MAX_AGE_SECONDS = 60.0
NETWORKS = {"BATCHWRIGHT_WEBHOOK_ALLOWED_NETWORKS": '["127.0.0.0/8"]'}


@dataclass
class EventCounts:
    """The counts of events about the ends of batches.

    Attributes:
        expected: batches that have ended.
        lost: expected events that were not delivered within ten minutes after the last batch.
        doubled: additional `webhook-id`s of the same event.
        repeated: attempts after the event was accepted. They have the same `webhook-id`, so receivers can
            drop them.
        attempts: all attempts. The first one of each event was refused.
        seconds: from the end of each batch to the acceptance of its event.
    """

    expected: int = 0
    lost: int = 0
    doubled: int = 0
    repeated: int = 0
    attempts: int = 0
    seconds: list[float] = field(default_factory=list[float])


class EventWitness(WebhookReceiver):
    """A server that receives the webhooks of all tenants. It refuses each event once, and then accepts it.

    So each event is pending for a while, in which parts of the stack are killed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._secrets: dict[str, str] = {}  # by tenant
        self._accepted: dict[str, float] = {}  # seconds after the batch's end, by batch and type of the event
        self._attempts: dict[str, list[ReceivedWebhook]] = defaultdict(list)  # by batch and type
        self.broken: list[str] = []

    async def register(self, stack: Stack, tenants: Iterable[str]) -> None:
        """Register this server as the webhook endpoint of each tenant, for the ends of all its batches."""
        async with http_client(stack.now.api) as http:
            for tenant in tenants:
                body = {"url": f"{self.url}?tenant={tenant}"}
                made = await http.post("/v1/x/webhooks", json=body, headers={"X-Tenant": tenant})
                webhook = WebhookObject.model_validate_json(made.raise_for_status().content)
                assert webhook.secret is not None
                self._secrets[tenant] = webhook.secret

    async def handle(self, request: web.Request) -> web.Response:
        webhook = ReceivedWebhook(dict(request.headers), await request.read())
        try:
            event = webhook.unwrap(self._secrets[request.query["tenant"]])
        except InvalidWebhookSignatureError as error:
            self.broken.append(f"the webhook {webhook.id} is not signed: {error}")
            return web.Response(status=400)
        if abs(time.time() - int(webhook.headers["webhook-timestamp"])) > _MAX_AGE_SECONDS:
            self.broken.append(f"the webhook {webhook.id} was not signed for its attempt")
        name = f"{event.data.to_dict()['id']} {event.type}"
        return web.Response(status=self.receive(name, webhook, event.created_at))

    def receive(self, event: str, attempt: ReceivedWebhook, created_at: float) -> int:
        """Record a valid attempt to deliver an event. Return the status to answer with: 503 first, then 200.

        Args:
            event: id of the batch and type of the event.
            attempt: the request that delivers the event.
            created_at: Unix time at which the event was created.
        """
        self._attempts[event].append(attempt)
        if len(self._attempts[event]) == 1:
            return 503
        self._accepted.setdefault(event, time.time() - created_at)
        return 200

    async def check(self, verdicts: Iterable[Verdict]) -> EventCounts:
        """Wait until the events of these batches have arrived. Check them, and return their counts.

        Problems are added to `broken`.
        """
        expected = {f"{verdict.seen.batch_id} batch.{verdict.status}" for verdict in verdicts}

        async def have_arrived() -> bool:
            return expected <= self._accepted.keys()

        try:
            await until(have_arrived, _PATIENCE_SECONDS)
        except TimeoutError:
            self.broken.append(f"events never arrived: {sorted(expected - self._accepted.keys())}")
        for event, attempts in self._attempts.items():
            if len({(attempt.id, attempt.body) for attempt in attempts}) > 1:
                self.broken.append(f"attempts of {event} have different ids or bodies")
            signatures = {attempt.headers["webhook-signature"] for attempt in attempts}
            if event in self._accepted and len(signatures) == 1:
                self.broken.append(f"all attempts of {event} have the same signature")
        return EventCounts(
            expected=len(expected),
            lost=len(expected - self._accepted.keys()),
            doubled=sum(len({each.id for each in found}) - 1 for found in self._attempts.values()),
            repeated=sum(len(self._attempts[event]) - 2 for event in self._accepted),
            attempts=sum(map(len, self._attempts.values())),
            seconds=list(self._accepted.values()),
        )


@asynccontextmanager
async def witnessed_events() -> AsyncGenerator[EventWitness]:
    """Run an `EventWitness` on a free port."""
    async with receiving(witness := EventWitness()):
        yield witness
