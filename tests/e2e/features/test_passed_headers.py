"""Headers that reach the backends of a stack.

Headers of the request that creates a batch reach them only if they are listed in a setting. Headers and a
priority that the registry sets for a backend reach this backend, too.
"""

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from batchwright.database.driver import connect
from batchwright.simulator.exchange import HttpExchange, HttpRequest, HttpResponse
from tests.constants import with_constants
from tests.e2e.batches import chat_line, chat_lines, check_conservation, ended, submit
from tests.e2e.jobs import Kind, config_of, register
from tests.e2e.stack import Stack, dev
from tests.e2e.tenants.test_keys import stored_in_temporal
from tests.unit.simulator.simulators import serving

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
TEAM = "team-of-the-caller"
SECRETS = {
    "Authorization": "Bearer sk-planted-by-the-caller",
    "X-Api-Key": "planted-api-key",
    "Cookie": "session=planted-cookie",
    "X-Other": "planted-but-not-on-the-list",
}
WORDS = ("sk-planted-by-the-caller", "planted-api-key", "planted-cookie", "planted-but-not-on-the-list")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    settings = {
        "BATCHWRIGHT_PASS_HEADERS": "X-Team",
        "BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": "60",  # a worker on a busy machine must not count as lost
        **with_constants(refresh_seconds=0.5),
    }
    with dev(data=None, **settings) as stack:
        yield stack


class ReceivedHeaders:
    """A backend that answers immediately, and reports each job as ended. `requests` has the requests that it
    received.
    """

    def __init__(self, model: str, kind: Kind) -> None:
        self._model, self._kind = model, kind
        self.requests: list[HttpRequest] = []

    def __call__(self, exchange: HttpExchange) -> None:
        request = exchange.request
        if request.path == "/v1/models":
            models = {"object": "list", "data": [{"id": self._model, "object": "model"}]}
            return exchange.respond(HttpResponse(200, json.dumps(models).encode()))
        self.requests.append(request)
        response_body: dict[str, object] = {"choices": []}
        if request.path.startswith("/status/"):
            response_body = {"status": "completed", "result": response_body}
        elif self._kind == "poll":
            response_body = {"status": "running", "job_id": str(len(self.requests))}
        exchange.respond(HttpResponse(200, json.dumps(response_body).encode()))


@pytest.mark.parametrize("kind", ["sync", "poll"])
async def test_a_listed_header_reaches_the_backend_and_others_are_not_stored(
    stack: Stack, kind: Kind
) -> None:
    model = f"heard-{kind}"
    backend, lines = ReceivedHeaders(model, kind), chat_lines([model], each=5)
    async with serving(backend) as url, stack.client() as client:
        await register(stack, model, config_of(kind, url))
        with_headers = client.with_options(default_headers={"X-Team": TEAM, **SECRETS})
        batch = await submit(with_headers, lines)
        batch = await ended(client, batch.id)
        await check_conservation(client, batch, lines)
        assert batch.status == "completed"
    assert {request.method for request in backend.requests} == (
        {"POST"} if kind == "sync" else {"GET", "POST"}
    )
    for request in backend.requests:
        assert request.header(b"x-team") == TEAM
        for name in SECRETS:
            assert request.header(name.lower().encode()) is None
    stored = {
        "files": b"".join(contents(stack.objects)).decode("latin-1"),
        "tables": "".join([row async for row in tables(stack)]),
        "Temporal": "".join([text async for text in stored_in_temporal(stack)]),
        "logs": "".join(log.read_text() for log in (stack.now.data / "logs").iterdir()),
    }
    expected = {"files": "line-00000", "tables": batch.id, "Temporal": batch.id, "logs": batch.id}
    assert [place for place, text in stored.items() if expected[place] not in text] == []
    assert [(place, word) for place, text in stored.items() for word in WORDS if word in text] == []
    assert [place for place, text in stored.items() if TEAM in text] == ["tables", "Temporal"]


@pytest.mark.parametrize("kind", ["sync", "poll"])
async def test_the_priority_and_the_headers_of_a_backend_reach_it(stack: Stack, kind: Kind) -> None:
    model = f"prioritized-{kind}"
    backend, lines = ReceivedHeaders(model, kind), chat_lines([model], each=20)
    lines[3] = chat_line("line-00003", model, priority="-1000")  # must not put this line first
    marks = {"priority": 10, "headers": {"X-Gateway-Inference-Objective": "batch"}}
    async with serving(backend) as url, stack.client() as client:
        config = config_of(kind, url)
        config["backends"] = [{"url": url, **marks}]
        await register(stack, model, config)
        batch = await ended(client, (await submit(client, lines)).id)
        await check_conservation(client, batch, lines)
        assert batch.status == "completed"
    sent = [json.loads(request.body)["priority"] for request in backend.requests if request.method == "POST"]
    assert sent == [10] * 20
    objectives = {request.header(b"x-gateway-inference-objective") for request in backend.requests}
    assert objectives == {"batch"}


def contents(folder: Path) -> Iterator[bytes]:
    """Yield the content of each file in the folder.

    Skip files that are deleted meanwhile: workers write and delete a small file every few seconds, to check
    the storage.
    """
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):
            yield path.read_bytes()


async def tables(stack: Stack) -> AsyncGenerator[str]:
    """Yield each row of each database table as text."""
    connection = await connect(stack.now.postgres)
    try:
        query = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        for table in await connection.fetch(query):
            for row in await connection.fetch(f'SELECT t::text AS row FROM "{table["tablename"]}" t'):
                yield row["row"]
    finally:
        await connection.close()
