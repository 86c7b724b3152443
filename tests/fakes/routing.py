"""Routers of a model to backends that do not exist, and helpers for tests of routing."""

from collections.abc import Sequence

import httpx

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.inference.backend_client import InferenceClient
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.router import Dispatch, ModelRouter
from batchwright.inference.transport.base import Header, TargetUrl
from batchwright.inference.transport.httpx_transport import HttpxTransport
from batchwright.inference.upstream import Backend, Upstream
from batchwright.rules.dispatch.retry_policy import SUCCESS, RetryPolicy
from tests.fakes.settings import load

URLS = ("http://a", "http://b", "http://c")
OK = Outcome(SUCCESS, 200, b'{"id": "1"}')


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Sender:
    """A fake client that returns `outcome` for each request, and records the request in `sent`."""

    def __init__(self, outcome: Outcome = OK) -> None:
        self.outcome = outcome
        self.sent: list[tuple[str, bytes]] = []

    async def send(
        self, target: TargetUrl, body: bytes, request_id: str, extra: Sequence[Header] = ()
    ) -> Outcome:
        self.sent.append((str(target.url), body))
        return self.outcome


def backend_at(url: str) -> Backend:
    settings = load()
    transport = httpx.MockTransport(lambda request: httpx.Response(500))
    return Backend(url, InferenceClient(HttpxTransport(transport, connect_seconds=1), settings))


def config_of(*backends: BackendConfig, **how: object) -> ModelConfig:
    return ModelConfig.model_validate({"backends": list(backends), **how})


def plain(urls: Sequence[str] = URLS, **how: object) -> ModelConfig:
    return config_of(*(BackendConfig(url=url) for url in urls), **how)


def route_of(clock: Clock, config: ModelConfig, model: str = "m") -> ModelRouter:
    route = ModelRouter(model, RetryPolicy(), 1, clock)
    route.update(config, [backend_at(backend.url) for backend in config.backends], RetryPolicy())
    return route


def begun(route: ModelRouter, prefix_hash: int = 0, **how: Sequence[Upstream]) -> Dispatch:
    sending = route.select(prefix_hash, exclude=how.get("without", ()))
    assert sending is not None
    return sending


def url_of(sending: Dispatch | None) -> str:
    return sending.upstream.backend.url if sending is not None else ""


def fail(lane: Upstream) -> None:
    sending = Dispatch(lane, lane.circuit.begin())
    lane.circuit.record_failure(sending.attempt, "503", at_once=True)


def fail_all(route: ModelRouter) -> None:
    for lane in route.upstreams:
        fail(lane)


def home_of(route: ModelRouter, prefix: int) -> str:
    """Return the URL of the backend that the router chooses for this prompt prefix if all are idle."""
    sending = begun(route, prefix)
    sending.end()
    return url_of(sending)
