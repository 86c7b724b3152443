"""What is asked of quotas: which limits tenants have of their own, and how much they have taken."""

from collections.abc import Sequence
from datetime import date, datetime
from typing import NamedTuple, Protocol

from batchwright.contracts.message import Message
from batchwright.database.tenant_rows import OrganizationRow, UserRow
from batchwright.rules.quotas import Enqueued, Excess, Limits


class OwnQuotas(Message):
    """A tenant's own limits; None: what the settings say, 0: no limit. `models` None: every one."""

    live_batches: int | None = None
    stored_bytes: int | None = None
    enqueued_lines: int | None = None
    enqueued_tokens: int | None = None
    requests_per_minute: int | None = None
    tokens_per_day: int | None = None
    models: frozenset[str] | None = None

    def limits(self, defaults: Limits) -> Limits:
        return defaults.changed(self.model_dump(exclude={"models"}))

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


class QuotaRow(NamedTuple):
    tenant: str
    own: OwnQuotas
    changed_at: datetime


class Used(NamedTuple):
    """What a tenant has taken now; the names are those of `Quota`."""

    live_batches: int
    stored_bytes: int
    enqueued_lines: int
    enqueued_tokens: int
    requests_per_minute: int
    tokens_per_day: int


class Spent(NamedTuple):
    """Tokens of one day; `key_id` is the API key that created the batches, empty: none."""

    tenant: str
    key_id: str
    tokens: int


class KeyBudget(NamedTuple):
    """Of an API key; `limit` None: it has none of its own. `used`: today."""

    limit: int | None
    used: int


class SharedBudget(NamedTuple):
    """Of an organization or a user; `limit` None: it has none. `used`: today, by all its tenants or keys."""

    name: str
    limit: int | None
    used: int


class Counted(NamedTuple):
    """Requests of a tenant in the minute that is on, this one included, and how long it still is."""

    requests: int
    seconds_left: float


class QuotasTable(Protocol):
    """All methods raise DatabaseUnavailable when the database cannot answer."""

    async def get(self, tenant: str) -> OwnQuotas:
        """Nothing of its own where there is no row."""
        ...

    async def all(self) -> list[QuotaRow]:
        """Tenants with anything of their own, by name."""
        ...

    async def change(self, tenant: str, changes: dict[str, object], at: datetime) -> OwnQuotas:
        """Sets the fields named in `changes`, None: back to the settings; the others stay."""
        ...

    async def clear(self, tenant: str) -> None:
        """Nothing is the tenant's own any more; a repeat changes nothing."""
        ...

    async def used(self, tenant: str) -> Used: ...

    async def stored(self, tenant: str) -> int:
        """Bytes of the tenant's files, and of its pending uploads as they were announced."""
        ...

    async def reserve(self, tenant: str, batch_id: str, asked: Enqueued, limits: Limits) -> Excess | None:
        """Enqueues a batch that is validating, if its tenant has room; else says what does not fit.

        What other live batches of the tenant have left counts. A batch that has moved on keeps what it has,
        and fits. Reservations at once come one after the other.
        """
        ...

    async def admit_batch(self, tenant: str, batch_id: str, most: int) -> bool:
        """Lets one more live batch in, if there are fewer than `most`; whether it did.

        It counts from now on: for a minute, by its row as soon as there is one. Those at once come one after
        the other.
        """
        ...

    async def admit_bytes(self, tenant: str, id: str, size: int, most: int) -> bool:
        """The same of bytes to be stored, which are a file's or an upload's of that id."""
        ...

    async def withdraw(self, tenant: str, id: str) -> None:
        """Of what was admitted: it will not come, or has its row. A repeat changes nothing."""
        ...

    async def key_budgets(self) -> dict[str, int]:
        """Tokens a day of the API keys that have a budget, by their ids."""
        ...

    async def key_budget(self, tenant: str, key_id: str) -> KeyBudget | None:
        """None where the tenant has no such key."""
        ...

    async def organizations(self) -> list[OrganizationRow]:
        """All of them, by name."""
        ...

    async def organization_of(self, tenant: str) -> SharedBudget | None:
        """None where the tenant belongs to none."""
        ...

    async def limited_users(self) -> list[UserRow]:
        """Those of all tenants that have a budget."""
        ...

    async def user_of(self, tenant: str, key_id: str) -> SharedBudget | None:
        """None where that key is nobody's."""
        ...

    async def withdrawn_keys(self, since: datetime) -> frozenset[str]:
        """Ids of API keys that were revoked, or have expired, since then."""
        ...

    async def tell_spent(self, worker: str, day: date, spent: Sequence[Spent]) -> None:
        """What the worker's lines have used on that day so far: a repeat, or less, changes nothing."""
        ...

    async def forget_spent(self, before: date) -> None: ...

    async def spent_by_others(self, worker: str, day: date) -> list[Spent]:
        """Over all workers but that one; none is called by the empty name."""
        ...

    async def count_request(self, tenant: str) -> Counted:
        """Counts one more, over all processes."""
        ...
