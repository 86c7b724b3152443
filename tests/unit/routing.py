"""Routes of a model to backends that are only names, and what tests do with them."""

from collections.abc import Sequence

import httpx

from batchwright.contracts.registry import BackendConfig, ModelConfig
from batchwright.inference.client import InferenceClient
from batchwright.inference.engine import Header, Target
from batchwright.inference.httpx_engine import HttpxEngine
from batchwright.inference.outcomes import Outcome
from batchwright.inference.routes import Backend, Lane, Route, Sending
from batchwright.rules.retries import SUCCESS, Retries
from tests.fakes.settings import load

URLS = ("http://a", "http://b", "http://c")
OK = Outcome(SUCCESS, 200, b'{"id": "1"}')


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Sender:
    """Answers with `outcome`, and remembers what it was given."""

    def __init__(self, outcome: Outcome = OK) -> None:
        self.outcome = outcome
        self.sent: list[tuple[str, bytes]] = []

    async def send(
        self, target: Target, body: bytes, request_id: str, extra: Sequence[Header] = ()
    ) -> Outcome:
        self.sent.append((str(target.url), body))
        return self.outcome


def backend_at(url: str) -> Backend:
    settings = load()
    transport = httpx.MockTransport(lambda request: httpx.Response(500))
    return Backend(url, InferenceClient(HttpxEngine(transport, connect_seconds=1), settings))


def config_of(*backends: BackendConfig, **how: object) -> ModelConfig:
    return ModelConfig.model_validate({"backends": list(backends), **how})


def plain(urls: Sequence[str] = URLS, **how: object) -> ModelConfig:
    return config_of(*(BackendConfig(url=url) for url in urls), **how)


def route_of(clock: Clock, config: ModelConfig, model: str = "m") -> Route:
    route = Route(model, Retries(), 1, clock)
    route.follow(config, [backend_at(backend.url) for backend in config.backends], Retries())
    return route


def begun(route: Route, prefix_hash: int = 0, **how: Sequence[Lane]) -> Sending:
    sending = route.begin(prefix_hash, without=how.get("without", ()))
    assert sending is not None
    return sending


def url_of(sending: Sending | None) -> str:
    return sending.lane.backend.url if sending is not None else ""


def fail(lane: Lane) -> None:
    sending = Sending(lane, lane.circuit.begin())
    lane.circuit.failed(sending.begun, "503", at_once=True)


def fail_all(route: Route) -> None:
    for lane in route.lanes:
        fail(lane)


def home_of(route: Route, prefix: int) -> str:
    """Where an idle route sends it."""
    sending = begun(route, prefix)
    sending.end()
    return url_of(sending)
