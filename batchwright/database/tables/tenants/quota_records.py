"""Rows of the tables of quotas, and results of queries about quotas."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from batchwright.contracts.message import Message
from batchwright.contracts.model_registry.price_config import DecimalText
from batchwright.contracts.temporal_payloads.batch import MAX_PRIORITY
from batchwright.contracts.terms import OverQuota, WindowTooShort
from batchwright.rules.tenants.quotas import DailyAmounts, QuotaLimits
from batchwright.rules.token_costs import amount_of


class TenantQuotas(Message):
    """Quotas and other limits that were set for one tenant. A limit that was not set is None.

    The first eight fields, `live_batches` to `webhooks`, are quotas. In these fields, `0` means no limit, and
    None means that the configured quota applies.

    Attributes:
        models: models that the tenant may use; None for all.
        weight: the tenant's share of the capacity relative to other tenants; None for the configured weight.
        max_in_flight: greatest number of the tenant's requests that may be in flight at the same time, over
            all workers; None for no limit.
        max_priority: highest priority that the tenant's batches may have; None for no limit.
        over_quota: what happens to a batch that would exceed the quota of lines or tokens. If `over_quota` is
            None, the batch fails.
        window_too_short: what happens to a batch that cannot be done within its completion window. If
            `window_too_short` is None, the batch is accepted.
        backend_requests_per_minute: greatest number of requests per minute that all workers together may send
            to backends for the tenant; None for no limit.
        backend_tokens_per_minute: greatest number of tokens per minute, over all requests to backends for the
            tenant; None for no limit.
    """

    live_batches: int | None = None
    stored_bytes: int | None = None
    enqueued_lines: int | None = None
    enqueued_tokens: int | None = None
    requests_per_minute: int | None = None
    tokens_per_day: int | None = None
    cost_per_day: DecimalText | None = None  # in the currency of the prices
    webhooks: int | None = None
    models: frozenset[str] | None = None
    weight: float | None = None
    max_in_flight: int | None = None
    max_priority: int | None = None
    over_quota: OverQuota | None = None
    window_too_short: WindowTooShort | None = None
    backend_requests_per_minute: int | None = None
    backend_tokens_per_minute: int | None = None

    @property
    def highest_priority(self) -> int:
        """Highest priority that a batch of the tenant may have."""
        return MAX_PRIORITY if self.max_priority is None else self.max_priority

    def limits(self, defaults: QuotaLimits) -> QuotaLimits:
        own = self.model_dump(include=set(QuotaLimits._fields))
        if self.cost_per_day is not None:
            own["cost_per_day"] = amount_of(self.cost_per_day)
        return defaults.changed(own)

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


class QuotaRow(NamedTuple):
    tenant: str
    own: TenantQuotas
    changed_at: datetime


class TenantShare(NamedTuple):
    """Weight and limits of one tenant, and the workers that send the tenant's requests.

    Each limit applies to all workers together. Each worker in `workers` gets a part of the limit.

    Attributes:
        weight: the tenant's share of the capacity relative to other tenants; None if no weight was set.
        max_in_flight: greatest number of the tenant's requests in flight; None for no limit.
        workers: sorted ids of the live workers (with a recent heartbeat) that send requests for the tenant.
            If the tenant has no limits, the ids are not needed and `workers` is empty.
        live_workers: number of all live workers, including workers that send nothing for the tenant.
        requests_per_minute: greatest number of requests to backends per minute; None for no limit.
        tokens_per_minute: greatest number of tokens per minute in requests to backends; None for no limit.
    """

    tenant: str
    weight: float | None
    max_in_flight: int | None
    workers: Sequence[str]
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    live_workers: int = 0


class KeyCap(NamedTuple):
    """Limit of the requests in flight for one API key, and the workers among which the limit is divided.

    `workers` are the sorted ids of the live workers that send requests for the key's batches.
    """

    key_id: str
    max_in_flight: int
    workers: Sequence[str]


class QuotaUsage(NamedTuple):
    """How much of each quota a tenant uses now. There is one field for each member of `Quota`.

    The unit of `cost_per_day` is 10^-12 of the currency's unit, such as 10^-12 dollars.
    """

    live_batches: int
    stored_bytes: int
    enqueued_lines: int
    enqueued_tokens: int
    requests_per_minute: int
    tokens_per_day: int
    cost_per_day: int
    webhooks: int


class DailyUsage(NamedTuple):
    """Tokens and cost of the lines of one tenant and one API key on one day.

    `key_id` is empty for batches that were created without an API key. The unit of `cost` is 10^-12 of the
    currency's unit, such as 10^-12 dollars.
    """

    tenant: str
    key_id: str
    tokens: int
    cost: int = 0


class KeyBudget(NamedTuple):
    """Daily budget of an API key, and what the key has used today."""

    limit: DailyAmounts
    used: DailyAmounts


class RequestCount(NamedTuple):
    """Number of API requests of a tenant in the current minute, and the seconds until the minute ends."""

    requests: int
    seconds_left: float
