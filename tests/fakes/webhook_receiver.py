"""A receiver of webhooks on a real socket. `LOOPBACK` has the networks that webhooks must be allowed to reach
for it.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiohttp import web
from openai import OpenAI
from openai.types.webhooks import UnwrapWebhookEvent

from batchwright.rules.webhooks.ssrf_rules import parse_networks

LOOPBACK = parse_networks(["127.0.0.0/8", "::1/128"])


class ReceivedWebhook(NamedTuple):
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def type(self) -> str:
        return json.loads(self.body)["type"]

    def unwrap(self, secret: str) -> UnwrapWebhookEvent:
        """Verify the webhook with the official client, and return its event."""
        return OpenAI(api_key="none").webhooks.unwrap(self.body.decode(), dict(self.headers), secret=secret)


class WebhookReceiver:
    """A server that receives webhooks and answers each with `status`. `url` is its address."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.received: list[ReceivedWebhook] = []
        self._changed = asyncio.Condition()

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        async with self._changed:
            self.received.append(ReceivedWebhook(dict(request.headers), body))
            self._changed.notify_all()
        return web.Response(status=self.status)

    async def wait_for(self, count: int) -> list[ReceivedWebhook]:
        """Wait until `count` webhooks were received, and return all of them."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.received) >= count)
        return self.received


@asynccontextmanager
async def receiving(receiver: WebhookReceiver | None = None) -> AsyncGenerator[WebhookReceiver]:
    """Context manager that runs a receiver on a free port of the loopback address, and yields it.

    If `receiver` is None, a new one is made.
    """
    receiver = receiver or WebhookReceiver()
    app = web.Application()
    app.router.add_post("/hook", receiver.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    receiver.url = f"http://{host}:{port}/hook"
    try:
        yield receiver
    finally:
        await runner.cleanup()
