"""Sessions of the web pages: during a long visit, the session is read from the database once a second."""

from types import SimpleNamespace

import pytest

from batchwright.api.auth import sessions
from batchwright.api.auth.sessions import Sessions
from tests.fakes.api_keys import NOW, create_key
from tests.fakes.memory_database import MemoryDatabase


async def test_a_long_visit_reads_its_session_once_a_second_and_ends_with_it(
    memory_database: MemoryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 100.0
    monkeypatch.setattr(sessions, "time", SimpleNamespace(monotonic=lambda: seconds))
    await create_key(memory_database, "blue")
    [key] = await memory_database.api_keys.all("blue")
    visits = Sessions(memory_database.sessions, lambda: NOW)
    token = await visits.start(key)
    read = visits.cached_key_reader(token, key)
    for at, limit, seen in ((100.9, 1, None), (101.0, 1, 1), (101.9, 2, 1), (102.0, 2, 2)):
        await memory_database.api_keys.limit(key.id, tokens_per_day=limit)
        seconds = at
        found = await read()
        assert found is not None
        assert (found.id, found.tokens_per_day) == (key.id, seen)
    await visits.end(token)
    seconds = 102.9
    assert await read() is not None
    seconds = 103.0
    assert [await read() for _ in range(2)] == [None, None]
