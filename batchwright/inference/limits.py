"""Who may send now: permits per model first, then global (S0-25, S0-26), by tenant weight; and bytes held."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

_DECREASE_EVERY = 1.0  # seconds: the 429s of one instant are one signal


@dataclass(eq=False)
class Permit:
    """The right to have one request in flight; `release` gives it back once."""

    owner: "Permits"
    model: str
    released: bool = False

    def release(self) -> None:
        if not self.released:
            self.released = True
            self.owner.release(self.model)


@dataclass
class _Tenant:
    """Stride scheduling: the smallest `passed` goes next, each turn adds 1 / weight."""

    passed: float = 0.0
    waiting: deque["asyncio.Future[Permit]"] = field(default_factory=deque["asyncio.Future[Permit]"])


@dataclass
class _Model:
    limit: int
    ceiling: int
    used: int = 0
    passed: float = 0.0
    successes: int = 0
    lowered_at: float = float("-inf")
    weights: dict[str, float] = field(default_factory=dict[str, float])
    tenants: dict[str, _Tenant] = field(default_factory=dict[str, _Tenant])

    @property
    def is_waiting(self) -> bool:
        return any(tenant.waiting for tenant in self.tenants.values())


class Permits:
    """One a process. A model's limit is halved by congestion and grows back with answers."""

    def __init__(self, *, total: int, per_model: int, own: dict[str, int] | None = None) -> None:
        self._total, self._used = total, 0
        self._per_model, self._own = per_model, own or {}
        self._models: dict[str, _Model] = {}

    @property
    def used(self) -> int:
        return self._used

    def used_by(self, model: str) -> int:
        return self._model(model).used

    def limit_of(self, model: str) -> int:
        return self._model(model).limit

    def request(self, model: str, tenant: str, weight: float) -> "asyncio.Future[Permit]":
        """A permit as soon as there is one; done at once where there is. Cancel the future to withdraw."""
        place = self._model(model)
        place.weights[tenant] = weight
        lowest = min((t.passed for t in place.tenants.values() if t.waiting), default=place.passed)
        queue = place.tenants.setdefault(tenant, _Tenant())
        if not queue.waiting:
            queue.passed = max(queue.passed, lowest)
        future: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        queue.waiting.append(future)
        self._grant()
        return future

    def release(self, model: str) -> None:
        self._model(model).used -= 1
        self._used -= 1
        self._grant()

    def congested(self, model: str) -> None:
        """A 429 or 503: half the limit, at most once a second."""
        place, now = self._model(model), time.monotonic()
        if now - place.lowered_at >= _DECREASE_EVERY:
            place.limit, place.successes, place.lowered_at = max(1, place.limit // 2), 0, now

    def answered(self, model: str) -> None:
        """A normal answer: one more in flight after a quarter of the limit's worth of them."""
        place = self._model(model)
        if place.limit < place.ceiling:
            place.successes += 1
            if place.successes * 4 >= place.limit:
                place.limit, place.successes = place.limit + 1, 0
                self._grant()

    def _model(self, model: str) -> _Model:
        found = self._models.get(model)
        if found is None:
            # One permit stays for the other models: none can hold them all.
            ceiling = max(1, min(self._own.get(model, self._per_model), self._total - 1 or 1))
            found = self._models[model] = _Model(limit=ceiling, ceiling=ceiling)
        return found

    def _grant(self) -> None:
        while self._used < self._total:
            name = self._next_model()
            if name is None:
                return
            future = self._next_waiter(self._models[name])
            if future is not None:
                self._models[name].used += 1
                self._used += 1
                future.set_result(Permit(self, name))

    def _next_model(self) -> str | None:
        """Of the models with a waiter and room, the one that uses least."""
        ready = [name for name, m in self._models.items() if m.used < m.limit and m.is_waiting]
        return min(ready, key=lambda name: self._models[name].used, default=None)

    def _next_waiter(self, place: _Model) -> "asyncio.Future[Permit] | None":
        """The next of the tenant whose turn it is; None if that one has withdrawn."""
        ready = [name for name, tenant in place.tenants.items() if tenant.waiting]
        name = min(ready, key=lambda name: place.tenants[name].passed)
        tenant = place.tenants[name]
        future = tenant.waiting.popleft()
        if future.cancelled():
            return None
        place.passed = tenant.passed
        tenant.passed += 1.0 / place.weights[name]
        return future


class ByteBudget:
    """Bytes one process may hold: half for shards, which wait for room, half for answers, which are counted.

    Two halves, because answers leave only when a slice can go on: shards must not be able to starve them.
    """

    def __init__(self, total: int) -> None:
        self._half = total // 2
        self._shards = self._answers = 0
        self._changed = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """Whether another request may go out."""
        return self._answers < self._half

    async def take_shard(self, size: int) -> None:
        """Waits for room; a shard larger than all of it waits for an empty house."""
        while self._shards and self._shards + size > self._half:
            self._changed.clear()
            await self._changed.wait()
        self._shards += size

    def give_shard(self, size: int) -> None:
        self._shards -= size
        self._changed.set()

    def hold_answer(self, size: int) -> None:
        self._answers += size

    def drop_answer(self, size: int) -> None:
        self._answers -= size
