"""Fake backend that fails some lines, and quotes the failed line in its error message."""

import asyncio
import json
from collections import Counter

from tests.fakes import hostile_backends
from tests.fakes.hostile_backends import response
from tests.fakes.raw_servers import Serve, read_request

LISTING = response(b'{"object":"list","data":[{"id":"m"}]}')
DOWN = response(b'{"error":{"message":"down"}}', status=b"500 Internal Server Error")


class BadLines:
    """A backend that answers a request with status 500 if its content begins with "bad". The answer quotes
    the content.

    Args:
        listing: response to GET /v1/models.
        health: response to GET /health.
        good: response to all other requests.
    """

    def __init__(
        self, *, listing: Serve = LISTING, health: Serve = LISTING, good: Serve | None = None
    ) -> None:
        self._listing, self._health = listing, health
        self._good = good or response(hostile_backends.GOOD)
        self.request_counts: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await read_request(reader)
        again = asyncio.StreamReader()
        again.feed_data(head + body)
        serve = self._good
        if head.startswith(b"GET"):
            serve = self._health if head.startswith(b"GET /health") else self._listing
        else:
            content = json.loads(body)["messages"][0]["content"]
            self.request_counts[content] += 1
            if content.startswith("bad"):
                error = {"error": {"message": f"cannot answer {content!r}", "type": "server_error"}}
                serve = response(json.dumps(error).encode(), status=b"500 Internal Server Error")
        await serve(again, writer)
