"""The API with fake dependencies, in the test's process, called by OpenAI's and Anthropic's clients."""

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import httpx
import httpx2
from openai import AsyncOpenAI
from pydantic import BaseModel, TypeAdapter

from batchwright.api.app import build_app
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.running_batches import RunningBatches
from batchwright.api.services.batches.progress_events import BatchEvents
from batchwright.background import BackgroundTasks
from batchwright.contracts.api_objects.openai import BatchObject, ErrorDetails, ErrorObject, FileObject
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.oidc.issuer_keys import IssuerKeys
from batchwright.settings import Settings, load
from batchwright.telemetry.metrics import Metrics
from tests.fakes.batch_schedules import MemoryBatchSchedules
from tests.fakes.gateway import MemoryGateway
from tests.fakes.issuer import FakeIssuer
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.settings import source
from tests.fakes.storage import MemoryStorage
from tests.fakes.tables.rows import Rows

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

_MODELS = ("llama", "org/qwen:7b")
LINE = b'{"custom_id": "a", "body": {}}\n'
_JSON = TypeAdapter(dict[str, object])
_Object = TypeVar("_Object", bound=BaseModel)


class Served:
    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)
        self.prices: dict[str, PriceConfig] = {}

    async def served_now(self) -> frozenset[str]:
        return self.names

    def canonical(self, name: str) -> str:
        return name

    def prices_of(self, model: str) -> PriceConfig | None:
        return self.prices.get(model)

    async def served(self) -> frozenset[str]:
        return self.names

    def accepts_unlisted(self, model: str) -> bool:
        return False


class _ReusableApp:
    """The API application with its fakes. Tests with equal settings use the same one, one after another."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = MemoryDatabase()
        self.storage = MemoryStorage()
        self.schedules = MemoryBatchSchedules()
        self.temporal = MemoryGateway(self.schedules)
        self.served, self.metrics = Served(*_MODELS), Metrics()
        parts = (settings, self.database, self.storage, self.temporal, self.served, self.metrics)
        self.background = BackgroundTasks()
        self.issuer = FakeIssuer()
        self.issuer_keys = IssuerKeys(self.issuer.fetch)
        deps = ApiDependencies(
            *parts,
            background=self.background,
            recent_seconds=0,
            issuer_keys=self.issuer_keys if settings.oidc_issuer else None,
        )
        self.stopping, self.input_objects = deps.stopping, deps.input_objects
        self.held_bytes, self.running_batches = deps.held_bytes, deps.running_batches
        self.clock = deps.clock
        self.events = BatchEvents(deps)  # it has no state while no test listens
        self.app = build_app(deps, self.events)

    def clear(self) -> None:
        """Reset all fakes to their initial state, except the metrics, which continue to count."""
        _renew(self.database.rows, Rows())
        _renew(self.storage, MemoryStorage())
        _renew(self.schedules, MemoryBatchSchedules())
        _renew(self.temporal, MemoryGateway(self.schedules))
        _renew(self.running_batches, RunningBatches(self.temporal, self.settings, self.clock))
        _renew(self.served, Served(*_MODELS))
        _renew(self.background, BackgroundTasks())
        _renew(self.issuer, FakeIssuer())
        _renew(self.issuer_keys, IssuerKeys(self.issuer.fetch))


# Applications by the source of their settings: settings and routes are not built again for each test.
_SPARE: dict[str, list[_ReusableApp]] = defaultdict(list)


class ApiFixture:
    """The API with its fakes, and helper methods with which tests upload files and create batches."""

    def __init__(self, **settings: object) -> None:
        self._source = source(settings)
        spare = _SPARE[self._source]
        self._ground = spare.pop() if spare else _ReusableApp(load(**settings))
        self.settings = self._ground.settings
        self.database, self.storage = self._ground.database, self._ground.storage
        self.temporal, self.served = self._ground.temporal, self._ground.served
        self.schedules = self._ground.schedules
        self.app, self.metrics = self._ground.app, self._ground.metrics
        self.background, self.events = self._ground.background, self._ground.events
        self.stopping, self.issuer = self._ground.stopping, self._ground.issuer
        self.input_objects, self.held_bytes = self._ground.input_objects, self._ground.held_bytes
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

    @cached_property
    def anthropic(self) -> "AsyncAnthropic":
        from anthropic import AsyncAnthropic  # a second of imports, of which most tests have no use

        return AsyncAnthropic(
            base_url="http://api",
            api_key="none",
            max_retries=0,
            http_client=httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app)),
        )

    def clear(self) -> None:
        """Reset all fakes to their initial state, except the metrics, which continue to count."""
        self._ground.clear()

    def leave(self) -> None:
        """Reset the fakes, and put the application back, so that later tests with equal settings
        can use it.
        """
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

    async def create(self, tenant: str = "default", **fields: object) -> BatchObject:
        file = await self.upload(tenant=tenant)
        body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        return read(await self.post({**body, **fields}, tenant), BatchObject)

    def order(self, batch_id: str) -> BatchOrder:
        return self.temporal.orders[batch_id]


def read(answer: httpx.Response, kind: type[_Object]) -> _Object:
    """Check that the response is a success. Parse its body as `kind` and return it."""
    assert answer.status_code == 200, answer.text
    return kind.model_validate_json(answer.content)


def error_of(answer: httpx.Response) -> ErrorDetails:
    """Check that the response is an error with all four keys of OpenAI's error object. Return the error."""
    assert not answer.is_success, answer.text
    return ErrorObject.model_validate_json(answer.content).error


def keys_of(answer: httpx.Response) -> set[str]:
    return set(_JSON.validate_json(answer.content))


@asynccontextmanager
async def open_api(**settings: object) -> AsyncGenerator[ApiFixture]:
    api = ApiFixture(**settings)
    async with api.http, aclosing(api.input_objects):
        yield api
    api.leave()


@asynccontextmanager
async def open_own_api(**settings: object) -> AsyncGenerator[ApiFixture]:
    """Context manager that yields an API that no other test uses.

    A test needs it if it changes constants that the API reads when it is created.
    """
    spare = _SPARE.pop(source(settings), [])
    api = ApiFixture(**settings)
    async with api.http:
        yield api
    _SPARE[source(settings)] = spare


def _renew(old: object, fresh: object) -> None:
    vars(old).clear()
    vars(old).update(vars(fresh))
