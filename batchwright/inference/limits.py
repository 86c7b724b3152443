"""Who may send now: permits per model first, then global (S0-25, S0-26), by tenant weight; and bytes held."""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from batchwright.inference.adaptive import BackendLimits, Placed
from batchwright.inference.client import Outcome
from batchwright.inference.waiters import Queue, Waiter
from batchwright.rules.fairness import Shares

_FIRST_ESTIMATE = 64 * 1024


@dataclass(eq=False, slots=True)
class Permit:
    """The right to have one request in flight; `release` gives it back once.

    `place` says which backend gets the request, and `tell` what it answered: its limit learns from that.
    """

    owner: "Permits"
    model: str
    placed: Placed | None = None
    released: bool = False

    def place(self, url: str) -> None:
        """May be called again: then the request goes elsewhere."""
        self.owner.place(self, url)

    def tell(self, outcome: Outcome) -> None:
        if self.placed is not None:
            self.owner.backends.tell(self.placed, outcome)

    def release(self) -> None:
        if not self.released:
            self.released = True
            self.owner.release(self)


PermitWaiter = Waiter[Permit]


@dataclass(slots=True)
class _Model:
    used: int = 0
    granted_at: int = 0  # counted in grants of all models
    shares: Shares = field(default_factory=Shares)
    waiting: dict[str, Queue[Permit]] = field(default_factory=dict[str, Queue[Permit]])


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
    ) -> None:
        """A model's `own` limit may change at any time; where it has none, `per_model` holds."""
        self.backends = backends
        self._total, self._used = total, 0
        self._per_model, self._own = per_model, own
        self._models: dict[str, _Model] = {}
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
        waiting = self._model(waiter.model).waiting
        queue = waiting.get(waiter.tenant)
        if queue is None:
            queue = waiting[waiter.tenant] = Queue()
        queue.add(waiter)
        self._grant()

    def withdraw(self, waiter: PermitWaiter) -> None:
        """One that is in the queue leaves it."""
        waiting = self._model(waiter.model).waiting
        waiting[waiter.tenant].remove(waiter)
        if not waiting[waiter.tenant]:
            del waiting[waiter.tenant]

    def place(self, permit: Permit, url: str) -> None:
        self._leave(permit)
        permit.placed = self.backends.place(permit.model, url)

    def release(self, permit: Permit) -> None:
        self._leave(permit)
        self._model(permit.model).used -= 1
        self._used -= 1
        self._grant()

    def keep(self, models: Collection[str], urls: Collection[str]) -> None:
        """Forgets all others that nothing is in flight of."""
        idle = [name for name, model in self._models.items() if not model.used and not model.waiting]
        for name in idle:
            if name not in models:
                del self._models[name]
        self.backends.keep(urls)

    def _leave(self, permit: Permit) -> None:
        if permit.placed is None:
            self.backends.unexpect()
        else:
            self.backends.leave(permit.placed)

    def _model(self, model: str) -> _Model:
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = _Model()
        return found

    def _limit(self, model: str) -> int:
        # One permit stays for the other models: none can hold them all.
        return max(1, min(self._own(model) or self._per_model, self._total - 1))

    def _grant(self) -> None:
        if self._is_granting:
            return  # called by who was just granted one: the loop below goes on with it
        self._is_granting = True
        try:
            while self._used < self._total and (name := self._next_model()) is not None:
                self._grant_one(name, self._models[name])
        finally:
            self._is_granting = False

    def _next_model(self) -> str | None:
        """Of the models with a waiter and room, the one that uses least: so they share a backend too.

        Of several that use as much it is the one that has waited longest: where there are fewer permits than
        models, none that waits uses any.
        """
        waiting = sorted(
            [(model.used, model.granted_at, name) for name, model in self._models.items() if model.waiting]
        )
        return next((name for _, _, name in waiting if self._has_room(name, self._models[name])), None)

    def _has_room(self, name: str, model: _Model) -> bool:
        return model.used < self._limit(name) and self.backends.has_room(name)

    def _grant_one(self, name: str, model: _Model) -> None:
        """To the tenant whose turn it is."""
        tenant = model.shares.next_of(model.waiting)
        queue = model.waiting[tenant]
        waiter = queue.pop()
        if not queue:
            del model.waiting[tenant]
        model.shares.charge(tenant, waiter.weight)
        self._grants += 1
        model.granted_at = self._grants
        model.used += 1
        self._used += 1
        self.backends.expect()
        waiter.granted(Permit(self, name))


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
        self._shards = self._answers = 0
        self._estimate = float(_FIRST_ESTIMATE)
        self._wanted: deque[Room] = deque()

    @property
    def held(self) -> int:
        return self._shards + self._answers

    @property
    def has_room(self) -> bool:
        """Whether another request may go out; one always may."""
        return not self._answers or self._answers + self._estimate < self._half

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
        self._answers += size
        return size

    def learn(self, answer_bytes: int) -> None:
        self._estimate = max(float(answer_bytes), self._estimate * 0.98 + answer_bytes * 0.02)

    def hold_answer(self, size: int) -> None:
        self._answers += size

    def drop_answer(self, size: int) -> None:
        self._answers -= size

    def _hand_out(self) -> None:
        while self._wanted:
            first = self._wanted[0]
            if self._shards and self._shards + first.size > self._half:
                return
            self._wanted.popleft()
            self._shards += first.size
            first.is_held = True
