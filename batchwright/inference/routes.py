"""Where the requests of a model go: its backends, each with a circuit, and the models it falls back on."""

import math
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from batchwright.contracts.jobs import JobConfig
from batchwright.contracts.openai import Endpoint
from batchwright.contracts.registry import Choice, ModelConfig
from batchwright.inference.circuit import Circuit, Try
from batchwright.inference.client import InferenceClient
from batchwright.inference.engine import Exchange, Header, Target
from batchwright.inference.outcomes import Outcome, unreadable
from batchwright.rules.choice import least_outstanding, prefix_affine
from batchwright.rules.renaming import with_model, with_model_at_least
from batchwright.rules.retries import SUCCESS, Retries
from batchwright.rules.usable import embeddings_problem


@dataclass(eq=False)
class Backend:
    """One URL, without a trailing slash or `/v1`, and what the last probe said of it."""

    url: str
    client: InferenceClient
    is_away: bool = False  # it did not answer
    is_silent: bool = False  # it does not tell its models
    was_heard: bool = False  # it has answered a listing, how is no matter: its silence means something
    probe_seconds: float | None = None  # of the last probe; None: there was none yet
    grouping: dict[tuple[str, Endpoint], "Sends"] = field(
        default_factory=dict[tuple[str, Endpoint], "Sends"]
    )  # what joins lines of a model
    _targets: dict[str, Target] = field(default_factory=dict[str, Target])

    @property
    def is_healthy(self) -> bool:
        """It answered its last probe."""
        return self.probe_seconds is not None and not self.is_away

    async def answers(self) -> bool:
        """Whether it answers a listing right now."""
        answers = await self.client.answers(self.url)
        self.was_heard = self.was_heard or answers
        return answers

    def endpoint(self, path: str) -> Target:
        """An endpoint such as `/v1/chat/completions`."""
        found = self._targets.get(path)
        if found is None:
            found = self._targets[path] = Target.of(self.url + path)
        return found


@dataclass(eq=False)
class Lane:
    """A model at one of its backends. `upstream` is the model's name there.

    `jobs` says how it is asked by jobs, None: not at all; `calls_back`: they tell of their end themselves.
    """

    model: str
    backend: Backend
    upstream: str
    weight: float
    circuit: Circuit
    outstanding: int = 0
    jobs: JobConfig | None = None
    calls_back: bool = False

    @property
    def key(self) -> str:
        return f"{self.backend.url} {self.upstream}"


class Sends(Protocol):
    def send(
        self, target: Target, body: bytes, request_id: str, extra: Sequence[Header] = ()
    ) -> Awaitable[Outcome]:
        """As `InferenceClient.send`."""
        ...


class Sending(Struct, eq=False):
    """One request under way on a lane; `end` is called once, whatever came of it."""

    lane: Lane
    begun: Try

    def end(self) -> None:
        self.lane.outstanding -= 1
        if not self.begun.is_told:
            self.lane.circuit.aborted(self.begun)


class Route:
    """Of one model. It stays the same object while the registry changes beneath it."""

    def __init__(
        self, model: str, retries: Retries, failures_to_open: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.model, self.retries = model, retries
        self.lanes: list[Lane] = []
        self.fallbacks: Sequence[Route] = ()
        self.in_flight: int | None = None  # requests at once per worker, where the registry says
        self.hedge_after = 0.0  # seconds after which a second backend is asked too; 0: never
        self._own_urls: list[str] = []
        self._choice: Choice = "least-outstanding"
        self._renames = False
        self._failures_to_open, self._clock = failures_to_open, clock

    def follow(self, config: ModelConfig, backends: Sequence[Backend], retries: Retries) -> None:
        """From now on as `config` says; `backends` are its own, in its order.

        Lanes that stay keep their state.
        """
        known = {(lane.backend, lane.upstream): lane for lane in self.lanes}
        lanes: dict[tuple[Backend, str], Lane] = {}
        for place, backend in zip(config.backends, backends, strict=True):
            upstream = place.model or self.model
            lane = known.get((backend, upstream)) or self._lane(backend, upstream)
            lane.weight = place.weight
            lane.jobs = None if config.kind == "sync" else config.jobs
            lane.calls_back = config.kind == "callback"
            lanes[backend, upstream] = lane
        self.lanes = list(lanes.values())
        self._own_urls = list(dict.fromkeys(lane.backend.url for lane in self.lanes))
        self.retries, self._choice, self._renames = retries, config.choice, bool(config.aliases)
        self.in_flight, self.hedge_after = config.limits.in_flight, config.hedge_after or 0.0

    def close(self) -> None:
        """The model was taken away: nothing goes out any more, and what is under way ends."""
        self.lanes, self._own_urls, self.fallbacks = [], [], ()

    @property
    def is_open(self) -> bool:
        """Whether the circuits of all its own backends are."""
        for lane in self.lanes:  # with `all` over a generator it would cost more than what it is asked for
            if not lane.circuit.is_open:
                return False
        return bool(self.lanes)

    @property
    def is_shut(self) -> bool:
        """Whether only trials go anywhere, to its own backends and to those of its fallbacks."""
        return self.is_open and all(lane.circuit.is_open for lane in self._reachable())

    @property
    def circuit(self) -> Circuit:
        """The one that lets a request through first: it stands for the model where one is asked for."""
        return min(self.lanes, key=lambda lane: (lane.circuit.is_open, lane.circuit.wait())).circuit

    def wait(self) -> float:
        """Seconds until a request may be tried somewhere; 0: now."""
        for lane in self.lanes:
            if not lane.circuit.is_open:
                return 0.0
        return min((lane.circuit.wait() for lane in self._reachable()), default=math.inf)

    @property
    def urls(self) -> Sequence[str]:
        """Of the backends that may get a request now; of all of them where none may."""
        for lane in self.lanes:
            if lane.circuit.is_open:
                break
        else:
            return self._own_urls
        open_to_us = [lane for lane in self._reachable() if not lane.circuit.wait()]
        return list(dict.fromkeys(lane.backend.url for lane in open_to_us or self.lanes))

    def begin(
        self,
        prefix_hash: int = 0,
        *,
        without: Collection[Lane] = (),
        rather_not: Lane | None = None,
        is_full: Callable[[str], bool] = lambda url: False,
    ) -> Sending | None:
        """A request goes out: on which lane. None where none that is not among `without` may be tried.

        `rather_not` is where the line failed last. Backends that are full, by their URL, get none while
        others are not.
        """
        if len(self.lanes) == 1 and not self.lanes[0].circuit.is_open and not without:
            lane = self.lanes[0]
        else:
            found = self._candidates(without, rather_not)
            if not found:
                return None
            if len(found) > 1:
                found = [lane for lane in found if not is_full(lane.backend.url)] or found
            lane = self._chosen(found, prefix_hash)
        lane.outstanding += 1
        return Sending(lane, lane.circuit.begin())

    def resume(self, key: str) -> Sending | None:
        """A job that runs on the lane of that key is taken up again; None where there is no such lane."""
        for route in (self, *self.fallbacks):
            for lane in route.lanes:
                if lane.key == key and lane.jobs is not None:
                    lane.outstanding += 1
                    circuit = lane.circuit
                    begun = Try(circuit.clock(), is_trial=False) if circuit.wait() else circuit.begin()
                    return Sending(lane, begun)
        return None

    async def send(
        self,
        sending: Sending,
        sender: "Sends",
        path: str,
        body: bytes,
        request_id: str,
        extra: Sequence[Header] = (),
    ) -> Outcome:
        """The body goes out as it is, but for the model's name where that backend knows it by another.

        `sender` reaches the lane's backend.
        """
        lane = sending.lane
        if self._renames or lane.upstream != self.model:
            body = with_model(body, lane.upstream)
        outcome = await sender.send(lane.backend.endpoint(path), body, request_id, extra)
        return self.shown(lane, path, body, outcome)

    def start(
        self,
        sending: Sending,
        path: str,
        body: bytes,
        request_id: str,
        extra: Sequence[Header],
        ended: Callable[[Outcome], None],
    ) -> Exchange | None:
        """The same, by the lane's own client, where it can go out at once.

        `ended` is told what came of it, which is yet to be `shown`. None: it cannot, and nothing was done.
        """
        lane = sending.lane
        backend = lane.backend
        if self._renames or lane.upstream != self.model:
            body = with_model(body, lane.upstream)
        return backend.client.begin(backend.endpoint(path), body, request_id, extra, ended)

    async def submit(
        self, lane: Lane, path: str, body: bytes, request_id: str, key: str, extra: Sequence[Header]
    ) -> Outcome:
        """The same of a job: what is answered is not the line's answer yet."""
        if self._renames or lane.upstream != self.model:
            body = with_model(body, lane.upstream)
        return await lane.backend.client.submit(lane.backend.endpoint(path), body, request_id, key, extra)

    def shown(self, lane: Lane, path: str, body: bytes, outcome: Outcome) -> Outcome:
        """An answer as its line shows it, checked: it names the model that answered in place of its own."""
        if path == Endpoint.EMBEDDINGS:
            outcome = _checked(body, outcome)
        if lane.model != self.model and 200 <= outcome.status < 300:
            return replace(outcome, body=with_model_at_least(outcome.body, lane.model))
        return outcome

    def _reachable(self) -> list[Lane]:
        """Its own lanes; while all their circuits are open, those of its fallbacks too."""
        if not self.is_open:
            return self.lanes
        return [*self.lanes, *(lane for route in self.fallbacks for lane in route.lanes)]

    def _candidates(self, without: Collection[Lane], rather_not: Lane | None) -> list[Lane]:
        """Trials that are due come first, then its own backends, then the first fallback that has some."""
        is_open = self.is_open
        for route in (self, *(self.fallbacks if is_open else ())):
            lanes = [lane for lane in route.lanes if lane not in without and not lane.circuit.wait()]
            lanes = [lane for lane in lanes if not lane.backend.is_away] or lanes
            lanes = [lane for lane in lanes if lane is not rather_not] or lanes
            if lanes:
                trials = [lane for lane in lanes if lane.circuit.is_open and not lane.backend.is_away]
                return trials[:1] or lanes
        return []

    def _chosen(self, lanes: Sequence[Lane], prefix_hash: int) -> Lane:
        if len(lanes) == 1:
            return lanes[0]
        if self._choice == "prefix-affine":
            return prefix_affine(lanes, prefix_hash)
        return least_outstanding(lanes)

    def _lane(self, backend: Backend, upstream: str) -> Lane:
        circuit = Circuit(self._failures_to_open, self._clock)
        return Lane(self.model, backend, upstream, 1.0, circuit)


def _checked(body: bytes, outcome: Outcome) -> Outcome:
    """A list of embeddings that does not fit what was asked is no answer."""
    if outcome.verdict is not SUCCESS:
        return outcome
    problem = embeddings_problem(body, outcome.body)
    return unreadable(problem) if problem else outcome
