"""The API over fakes, asked in process by plain HTTP and by the official client."""

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TypeVar

import httpx
from openai import AsyncOpenAI
from pydantic import BaseModel, TypeAdapter

from api.app import build_app
from api.objects import BatchObject, ErrorDetails, ErrorObject, FileObject
from api.services import Services
from batchwright.contracts.batch import BatchOrder
from batchwright.settings import Settings, load
from batchwright.telemetry.metrics import Metrics
from tests.fakes.database import MemoryDatabase
from tests.fakes.gateway import MemoryGateway
from tests.fakes.rows import Rows
from tests.fakes.settings import source
from tests.fakes.storage import MemoryStorage

_MODELS = ("llama", "org/qwen:7b")
LINE = b'{"custom_id": "a", "body": {}}\n'
_JSON = TypeAdapter(dict[str, object])
_Object = TypeVar("_Object", bound=BaseModel)


class Served:
    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)

    async def served(self) -> frozenset[str]:
        return self.names


class _Ground:
    """The application, and the fakes it stands on."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = MemoryDatabase()
        self.storage = MemoryStorage()
        self.temporal = MemoryGateway()
        self.served, self.metrics = Served(*_MODELS), Metrics()
        parts = (settings, self.database, self.storage, self.temporal, self.served, self.metrics)
        self.app = build_app(Services(*parts, recent_seconds=0))

    def clear(self) -> None:
        """As new, but for metrics, which go on."""
        _renew(self.database.rows, Rows())
        _renew(self.storage, MemoryStorage())
        _renew(self.temporal, MemoryGateway())
        _renew(self.served, Served(*_MODELS))


# By what the settings come from: neither they nor the routes are made anew for each test.
_SPARE: dict[str, list[_Ground]] = defaultdict(list)


class House:
    """The API, what it stands on, and the calls that tests arrange with."""

    def __init__(self, **settings: object) -> None:
        self._source = source(settings)
        spare = _SPARE[self._source]
        self._ground = spare.pop() if spare else _Ground(load(**settings))
        self.settings = self._ground.settings
        self.database, self.storage = self._ground.database, self._ground.storage
        self.temporal, self.served = self._ground.temporal, self._ground.served
        self.app, self.metrics = self._ground.app, self._ground.metrics
        transport = httpx.ASGITransport(self.app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://api")

    @cached_property
    def openai(self) -> AsyncOpenAI:
        return AsyncOpenAI(
            base_url="http://api/v1",
            api_key="none",
            max_retries=0,
            http_client=self.http,  # pyright: ignore[reportArgumentType] - it takes httpx too, its types do not
        )

    def clear(self) -> None:
        """As new, but for metrics, which go on."""
        self._ground.clear()

    def leave(self) -> None:
        """The next house may stand here."""
        self.clear()
        _SPARE[self._source].append(self._ground)

    async def upload(
        self, content: bytes = LINE, purpose: str = "batch", tenant: str = "default"
    ) -> FileObject:
        answer = await self.http.post(
            "/v1/files",
            files={"file": ("input.jsonl", content)},
            data={"purpose": purpose},
            headers={"X-Tenant": tenant},
        )
        return read(answer, FileObject)

    async def post(self, body: object, tenant: str = "default") -> httpx.Response:
        return await self.http.post("/v1/batches", json=body, headers={"X-Tenant": tenant})

    async def create(self, tenant: str = "default") -> BatchObject:
        file = await self.upload(tenant=tenant)
        body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        return read(await self.post(body, tenant), BatchObject)

    def order(self, batch_id: str) -> BatchOrder:
        return self.temporal.orders[batch_id]


def read(answer: httpx.Response, kind: type[_Object]) -> _Object:
    """The object of an answer that succeeded."""
    assert answer.status_code == 200, answer.text
    return kind.model_validate_json(answer.content)


def error_of(answer: httpx.Response) -> ErrorDetails:
    """The error of an answer; all four keys are there."""
    assert not answer.is_success, answer.text
    return ErrorObject.model_validate_json(answer.content).error


def keys_of(answer: httpx.Response) -> set[str]:
    return set(_JSON.validate_json(answer.content))


@asynccontextmanager
async def open_house(**settings: object) -> AsyncGenerator[House]:
    house = House(**settings)
    async with house.http:
        yield house
    house.leave()


def _renew(old: object, fresh: object) -> None:
    vars(old).clear()
    vars(old).update(vars(fresh))
