"""Unusual responses to /v1/models: model discovery continues, and no invalid name reaches the database."""

import json
import logging
from datetime import UTC, datetime

import pytest

from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.client_pool import ClientPool
from batchwright.inference.discovery import ListingFailed
from batchwright.inference.registry.backend_registry import BackendRegistry
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.raw_servers import answering, client, served
from tests.fakes.settings import load
from tests.fakes.tables.models.models import MemoryModels


def listing(*ids: object, date: str = "") -> bytes:
    body = json.dumps({"data": [{"id": id} for id in ids]}).encode()
    date_header = f"date: {date}\r\n" if date else ""
    return f"HTTP/1.1 200 OK\r\n{date_header}content-length: {len(body)}\r\n\r\n".encode() + body


def raw(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    "date",
    [
        "Mon, 23 Nov 20262026202620262026 09:00:00 GMT",
        "Mon, 23 Nov 2026 09:00:00 +99999999999999999999",
        "Mon, 99 Xyz 2026",
        "",
    ],
)
async def test_an_unreadable_date_is_ignored(date: str) -> None:
    async with served(answering(listing("a", date=date))) as url, client() as sender:
        found = await sender.listing(f"http://{url.authority.decode()}")
    assert (found.models, found.backend_time) == (["a"], None)


async def test_a_date_without_a_time_zone_is_utc() -> None:
    date_header = listing("a", date="Mon, 23 Nov 2026 09:00:00 -0000")
    async with served(answering(date_header)) as url, client() as sender:
        found = await sender.listing(f"http://{url.authority.decode()}")
    assert found.backend_time == datetime(2026, 11, 23, 9, tzinfo=UTC)


async def test_invalid_model_ids_are_ignored_and_counted() -> None:
    odd = ["", "a\x00b", "x" * 257, "x" * 9000, "line\nbreak", "\x1b[2J", "\ufdd0", "a\ufffd"]
    async with served(answering(listing("good", *odd, "\u00fc/1:b", "good"))) as url, client() as sender:
        found = await sender.listing(f"http://{url.authority.decode()}")
    assert (found.models, found.ignored) == (["good", "\u00fc/1:b"], len(odd))


async def test_a_name_of_the_maximum_length_is_accepted() -> None:
    async with served(answering(listing("x" * 256))) as url, client() as sender:
        assert await sender.models(f"http://{url.authority.decode()}") == ["x" * 256]


async def test_of_too_many_models_the_first_in_sorted_order_are_served() -> None:
    many = [f"m{number:02}" for number in range(30)]
    async with (
        served(answering(listing(*reversed(many)))) as url,
        client(max_listed_models=20) as sender,
    ):
        found = await sender.listing(f"http://{url.authority.decode()}")
    assert (found.models, found.ignored) == (many[:20], 10)


@pytest.mark.parametrize(
    "body",
    [
        b'{"data":[{"id":"\\ud800"}]}',
        b"[" * 100_000,
        b'{"data":[' + b",".join([b'{"id":1}'] * 20_000) + b"]}",
        b'{"data":' + b"9" * 100_000 + b"}",
        b"\xff\xfe",
    ],
    ids=["lone surrogate", "nested", "no names", "a number", "no text"],
)
async def test_a_response_that_is_not_a_model_list_is_a_failed_listing_with_a_short_error(
    body: bytes,
) -> None:
    async with served(answering(raw(body))) as url, client() as sender:
        with pytest.raises(ListingFailed) as failed:
            await sender.listing(f"http://{url.authority.decode()}")
    assert len(str(failed.value)) < 500


async def test_an_unexpected_exception_is_a_failed_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise MemoryError("a bug in what unpacks answers")

    monkeypatch.setattr("batchwright.inference.discovery.decode_content", broken)
    async with served(answering(listing("a"))) as url, client() as sender:
        with pytest.raises(ListingFailed, match="MemoryError: a bug in what unpacks answers"):
            await sender.listing(f"http://{url.authority.decode()}")


class RefusingModels(MemoryModels):
    """A table that rejects the models of one backend, as PostgreSQL rejects text that it cannot store."""

    def __init__(self, database: MemoryDatabase, refused: str) -> None:
        super().__init__(database.rows)
        self._refused = refused

    async def replace_models(self, backend_url: str, names: list[str], at: datetime) -> None:
        if backend_url == self._refused:
            raise ValueError("index row size 2784 exceeds btree version 4 maximum 2704")
        await super().replace_models(backend_url, names, at)


async def test_model_names_refused_by_the_database_fail_only_their_backend(
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = MemoryDatabase()
    async with (
        served(answering(listing("bad"))) as one,
        served(answering(listing("good"))) as two,
    ):
        urls = [f"http://{each.authority.decode()}" for each in (one, two)]
        settings = load(backends=urls)
        clients = ClientPool(settings)
        registry = BackendRegistry(
            settings,
            RefusingModels(database, urls[0]),
            database.model_changes,
            clients,
            unavailable=DatabaseUnavailable,
        )
        await registry.refresh()
        assert await registry.served() == {"good"}
        await clients.aclose()
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.message == "the model list of a backend cannot be stored"


async def test_ignored_names_are_logged_once_and_the_others_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = MemoryDatabase()
    async with served(answering(listing("a", "b\x00"))) as url:
        settings = load(backends=[f"http://{url.authority.decode()}"])
        clients = ClientPool(settings)
        registry = BackendRegistry(
            settings, database.models, database.model_changes, clients, unavailable=DatabaseUnavailable
        )
        await registry.refresh()
        await registry.refresh()
        assert await registry.served() == {"a"}
        await clients.aclose()
    assert [record.message for record in caplog.records if "are ignored" in record.message] == [
        "some listed models are ignored: their names are not 1 to 256 printable "
        "characters, or there are more than BATCHWRIGHT_MAX_LISTED_MODELS"
    ]
