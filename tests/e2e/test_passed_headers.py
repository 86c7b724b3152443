"""Headers of a batch's creation through the whole stack: where those on the list are, and no other is."""

import json
from collections.abc import AsyncGenerator, Iterator

import pytest

from batchwright.database.driver import connect
from simulator.exchange import Answer, Exchange, Request
from tests.e2e.batches import chat_lines, check_conservation, ended, submit
from tests.e2e.jobs import Kind, config_of, register
from tests.e2e.stack import Stack, dev
from tests.e2e.test_keys import kept_by_temporal
from tests.unit.simulators import serving

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
    settings = {"BATCHWRIGHT_PASS_HEADERS": "X-Team", "BATCHWRIGHT_MODEL_REFRESH_SECONDS": "0.5"}
    with dev(data=None, **settings) as stack:
        yield stack


class Heard:
    """A backend that answers at once, with a job's end to whoever asks after one; `requests` are its own."""

    def __init__(self, model: str, kind: Kind) -> None:
        self._model, self._kind = model, kind
        self.requests: list[Request] = []

    def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.path == "/v1/models":
            models = {"object": "list", "data": [{"id": self._model, "object": "model"}]}
            return exchange.answer(Answer(200, json.dumps(models).encode()))
        self.requests.append(request)
        said: dict[str, object] = {"choices": []}
        if request.path.startswith("/status/"):
            said = {"status": "completed", "result": said}
        elif self._kind == "poll":
            said = {"status": "running", "job_id": str(len(self.requests))}
        exchange.answer(Answer(200, json.dumps(said).encode()))


@pytest.mark.parametrize("kind", ["sync", "poll"])
async def test_a_header_on_the_list_reaches_the_backend_and_others_are_kept_nowhere(
    stack: Stack, kind: Kind
) -> None:
    model = f"heard-{kind}"
    backend, lines = Heard(model, kind), chat_lines([model], each=5)
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
    kept = {
        "files": b"".join(path.read_bytes() for path in stack.objects.rglob("*") if path.is_file()).decode(),
        "tables": "".join([row async for row in tables(stack)]),
        "Temporal": "".join([text async for text in kept_by_temporal(stack)]),
        "logs": "".join(log.read_text() for log in (stack.now.data / "logs").iterdir()),
    }
    expected = {"files": "line-00000", "tables": batch.id, "Temporal": batch.id, "logs": batch.id}
    assert [place for place, text in kept.items() if expected[place] not in text] == []
    assert [(place, word) for place, text in kept.items() for word in WORDS if word in text] == []
    assert [place for place, text in kept.items() if TEAM in text] == ["tables", "Temporal"]


async def tables(stack: Stack) -> AsyncGenerator[str]:
    """Every row of every table, as text."""
    connection = await connect(stack.now.postgres)
    try:
        query = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        for table in await connection.fetch(query):
            for row in await connection.fetch(f'SELECT t::text AS row FROM "{table["tablename"]}" t'):
                yield row["row"]
    finally:
        await connection.close()
