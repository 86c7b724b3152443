"""Who may send now: permits per model first, then global (S0-25, S0-26), by tenant weight; and bytes held."""

import math
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from msgspec import Struct

from batchwright.inference.adaptive import BackendLimits, Placed
from batchwright.inference.outcomes import Outcome
from batchwright.inference.waiters import Queue, Waiter
from batchwright.rules.fairness import Shares
from batchwright.rules.retries import SUCCESS

_FIRST_ESTIMATE = 64 * 1024
_LOOK_EVERY_SECONDS = 0.02


@dataclass(slots=True, eq=False)
class _Model:
    """`most` and `urls`: how many it was allowed, at which backends, when that was `looked_at` last."""

    name: str
    used: int = 0
    granted_at: int = 0  # counted in grants of all models
    most: int = 0
    urls: Collection[str] = ()
    looked_at: float = -math.inf
    shares: Shares = field(default_factory=Shares)
    waiting: dict[str, Queue["Permit"]] = field(default_factory=dict[str, Queue["Permit"]])


class Permit(Struct, eq=False):
    """The right to have one request in flight; `release` gives it back once.

    `place` says which backend gets the request, and `tell` what it answered: its limit learns from that.
    """

    owner: "Permits"
    of: _Model
    placed: Placed | None = None
    released: bool = False

    @property
    def model(self) -> str:
        return self.of.name

    def place(self, url: str) -> None:
        """May be called again: then the request goes elsewhere."""
        self.placed = self.owner.backends.place(self.of.name, url, self.placed)

    def tell(self, outcome: Outcome) -> None:
        if outcome.verdict is not SUCCESS:
            self.of.looked_at = -math.inf  # a circuit may open
        if self.placed is not None:
            self.owner.backends.tell(self.placed, outcome)

    def release(self) -> None:
        self.owner.release(self)


PermitWaiter = Waiter[Permit]


class Permits:
    """One a process. A model's own limit is fixed; those of its backends move beneath it.

    A slice lines up for one permit at a time; who of those that wait gets the next one: `waiters`.
    """

    def __init__(
        self,
        *,
        total: int,
        per_model: int,
        backends: BackendLimits,
        own: Callable[[str], int | None] = lambda model: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A model's `own` limit may change at any time; where it has none, `per_model` holds."""
        self._clock = clock
        self.backends = backends
        self._total, self._used = total, 0
        self._per_model, self._own = per_model, own
        self._models: dict[str, _Model] = {}
        self._waiting: dict[str, _Model] = {}  # those of which somebody waits
        self._grants = 0
        self._is_granting = False

    @property
    def used(self) -> int:
        return self._used

    def used_by(self, model: str) -> int:
        return self._model(model).used

    def limit_of(self, model: str) -> int:
        """What its own limit and those of its backends leave it, were it alone."""
        most = self.backends.most_of(model)
        own = self._limit(model)
        return own if most is None else min(own, most)

    def line_up(self, waiter: PermitWaiter) -> None:
        """It gets a permit as soon as there is one, once; at once where there is."""
        model = self._models.get(waiter.model) or self._model(waiter.model)
        queue = model.waiting.get(waiter.tenant)
        if queue is None:
            queue = model.waiting[waiter.tenant] = Queue()
        queue.add(waiter)
        self._waiting[waiter.model] = model
        if not (self._is_granting and model.most):
            self._look(model)

    def spare(self, name: str, url: str) -> "Permit | None":
        """One for that backend that nobody waits for; None: there is none now."""
        model = self._models.get(name) or self._model(name)
        if model.waiting or self._used >= self._total or model.used >= self._limit(name):
            return None
        return self._permit(model) if self.backends.has_room([url]) else None

    def look_again(self, name: str) -> None:
        """What a model may use, and where, changes without a word: whoever waits for it asks again."""
        model = self._waiting.get(name)
        if model is not None:
            self._look(model)

    def withdraw(self, waiter: PermitWaiter) -> None:
        """One that is in the queue leaves it."""
        model = self._model(waiter.model)
        model.waiting[waiter.tenant].remove(waiter)
        self._tidy(model, waiter.tenant)

    def release(self, permit: Permit) -> None:
        """Once; a second time is none."""
        if permit.released:
            return
        permit.released = True
        self.backends.leave(permit.placed)
        model = permit.of
        model.used -= 1
        self._used -= 1
        if model.waiting and self._clock() - model.looked_at >= _LOOK_EVERY_SECONDS:
            self._look(model)
        elif not self._is_granting:
            self._grant()

    def keep(self, models: Collection[str], urls: Collection[str]) -> None:
        """Forgets all others that nothing is in flight of."""
        idle = [name for name, model in self._models.items() if not model.used and not model.waiting]
        for name in idle:
            if name not in models:
                del self._models[name]
        self.backends.keep(urls)

    def _model(self, name: str) -> _Model:
        found = self._models.get(name)
        if found is None:
            found = self._models[name] = _Model(name)
        return found

    def _limit(self, name: str) -> int:
        # One permit stays for the other models: none can hold them all.
        return max(1, min(self._own(name) or self._per_model, self._total - 1))

    def _look(self, model: _Model) -> None:
        model.most, model.urls = self._limit(model.name), self.backends.of(model.name)
        model.looked_at = self._clock()
        if not self._is_granting:
            self._grant()

    def _grant(self) -> None:
        """A loop: who is granted one lines up or gives back within it, and the loop goes on with that."""
        self._is_granting = True
        try:
            while self._used < self._total and (model := self._next_model()) is not None:
                self._grant_one(model)
        finally:
            self._is_granting = False

    def _next_model(self) -> _Model | None:
        """Of the models with a waiter and room, the one that uses least: so they share a backend too.

        Of several that use as much it is the one that has waited longest: where there are fewer permits than
        models, none that waits uses any.
        """
        found = full = free = None  # the one so far, and backends that were just found to be
        for model in self._waiting.values():
            urls = model.urls
            if model.used >= model.most or urls == full:
                continue
            if found is not None and (found.used < model.used or _is_before(found, model)):
                continue
            if urls != free:
                if not self.backends.has_room(urls):
                    full = urls
                    continue
                free = urls
            found = model
        return found

    def _grant_one(self, model: _Model) -> None:
        waiting = model.waiting
        tenant = model.shares.next_of(waiting)
        queue = waiting[tenant]
        waiter = queue.pop()
        if not queue.batches:
            self._tidy(model, tenant)
        model.shares.charge(tenant, waiter.weight)
        self._grants += 1
        model.granted_at = self._grants
        waiter.granted(self._permit(model))

    def _permit(self, model: _Model) -> Permit:
        model.used += 1
        self._used += 1
        self.backends.unplaced += 1
        return Permit(self, model)

    def _tidy(self, model: _Model, tenant: str) -> None:
        """Where nobody waits any more."""
        if not model.waiting[tenant].batches:
            del model.waiting[tenant]
            if not model.waiting:
                del self._waiting[model.name]


def _is_before(model: _Model, other: _Model) -> bool:
    if model.used != other.used:
        return model.used < other.used
    return (model.granted_at, model.name) < (other.granted_at, other.name)


@dataclass(eq=False, slots=True)
class Room:
    """For a shard of `size` bytes; `is_held` once there is as much."""

    size: int
    is_held: bool = False


class ByteBudget:
    """Bytes one process may hold: half for shards, half for requests and answers until they are stored.

    Two halves, because answers leave only when a slice can go on: shards must not be able to starve them.
    Shards get room in the order in which it was asked for: small ones must not be able to starve large ones.
    What an answer will weigh is estimated from the last ones.
    """

    def __init__(self, total: int) -> None:
        self._half = total // 2
        self._shards = 0
        self.answers = 0  # whoever holds some of it adds, and takes away again
        self._estimate = float(_FIRST_ESTIMATE)
        self._wanted: deque[Room] = deque()

    @property
    def held(self) -> int:
        return self._shards + self.answers

    @property
    def has_room(self) -> bool:
        """Whether another request may go out; one always may."""
        return not self.answers or self.answers + self._estimate < self._half

    def want_shard(self, size: int) -> Room:
        """`leave` follows, whether it came to hold any. One larger than all of it needs an empty house."""
        room = Room(size)
        self._wanted.append(room)
        self._hand_out()
        return room

    def leave(self, room: Room) -> None:
        if room.is_held:
            self._shards -= room.size
        else:
            self._wanted.remove(room)
        self._hand_out()

    def expect(self, request_bytes: int) -> int:
        """Holds what a request and its answer may weigh; the sum is to be dropped later."""
        size = request_bytes + int(self._estimate)
        self.answers += size
        return size

    def learn(self, answer_bytes: int) -> None:
        estimate = self._estimate * 0.98 + answer_bytes * 0.02
        self._estimate = estimate if estimate > answer_bytes else float(answer_bytes)

    def _hand_out(self) -> None:
        while self._wanted:
            first = self._wanted[0]
            if self._shards and self._shards + first.size > self._half:
                return
            self._wanted.popleft()
            self._shards += first.size
            first.is_held = True
