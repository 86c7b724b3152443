"""Data about each backend and about each model at a certain backend (upstream). The router uses it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from batchwright.contracts.model_registry.backend_job_config import JobConfig
from batchwright.contracts.terms import Endpoint
from batchwright.inference.backend_client import InferenceClient
from batchwright.inference.circuits.circuit_breaker import CircuitBreaker
from batchwright.inference.probes import ProbeResult, UpstreamProber
from batchwright.inference.transport.base import TargetUrl

_MAX_PATHS = 64  # paths of endpoints and jobs whose URLs are kept in parsed form


@dataclass(eq=False)
class Backend:
    """One backend, and what the last request for its list of models has shown about it.

    `url` has no trailing slash and no `/v1`.
    """

    url: str
    client: InferenceClient
    is_unreachable: bool = False  # True if it did not respond to the last request for its model list
    listing_failed: bool = False  # True if the last request for its model list failed
    ignored_models: int = 0  # number of ids in its last model list that were ignored
    has_responded: bool = False  # True if it has returned a model list; later silence is a failure
    probe_seconds: float | None = None  # duration of the last model list request; None before the first
    # Returns the parsed URL of a path at this backend, for example of `/v1/chat/completions`.
    endpoint: Callable[[str], TargetUrl] = field(init=False)

    def __post_init__(self) -> None:
        def parsed(path: str) -> TargetUrl:
            return TargetUrl.of(self.url + path)

        self.endpoint = lru_cache(_MAX_PATHS)(parsed)

    @property
    def is_healthy(self) -> bool:
        """True if the last request for the model list reached the backend. False before the first request."""
        return self.probe_seconds is not None and not self.is_unreachable

    async def is_reachable(self) -> bool:
        """Request the model list of the backend. Return True if the backend responds, even with an error."""
        responds = await self.client.is_reachable(self.url)
        self.has_responded = self.has_responded or responds
        return responds


@dataclass(eq=False)
class Upstream:
    """One model at one of its backends.

    Attributes:
        model: name of the model in Batchwright.
        upstream_model: name of the model at the backend.
        jobs: settings of jobs, which are requests whose results the backend returns later; None if requests
            to this model do not run as jobs.
        calls_back: True if the backend reports the end of a job by a callback.
        priority: value that is set in each request's body; None for no priority.
        in_flight: limit on the requests in flight at the backend, over the whole fleet; None for no limit.
        outstanding: number of requests that this process has in flight to the upstream.
    """

    model: str
    backend: Backend
    upstream_model: str
    weight: float
    circuit: CircuitBreaker
    outstanding: int = 0
    jobs: JobConfig | None = None
    calls_back: bool = False
    priority: int | None = None
    in_flight: int | None = None
    probes: UpstreamProber = field(default_factory=UpstreamProber)

    async def probe(self, endpoint: Endpoint) -> ProbeResult:
        """Send a small test request that shows if the model works at this backend. Return the result.

        If requests to this upstream run as jobs, whose results come later, request only the backend's health
        or model list, and not `endpoint`.
        """
        client, probed = self.backend.client, endpoint if self.jobs is None else None
        priority = self.priority if client.of_batches else None
        return await self.probes.probe(client, self.backend.url, self.upstream_model, probed, priority)

    @property
    def key(self) -> str:
        return f"{self.backend.url} {self.upstream_model}"
