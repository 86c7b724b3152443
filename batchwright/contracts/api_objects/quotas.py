"""Objects of the API for quotas, budget groups and rates, and the limits that every caller can read."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from batchwright.contracts.model_registry.price_config import DecimalText
from batchwright.contracts.terms import (
    GroupKind,
    OverQuota,
    Quota,
    WindowTooShort,
)


class LimitObject(BaseModel):
    """A limit of a tenant, an API key or a budget group, and how much of it is used.

    The amounts of the quota `cost_per_day` are decimal strings.
    """

    quota: Quota
    limit: int | str | None = Field(description="null if there is no limit")
    used: int | str
    left: int | str | None = Field(description="null if there is no limit")


class GroupLimit(LimitObject):
    kind: GroupKind
    name: str


class LimitsObject(BaseModel):
    object: Literal["limits"] = "limits"
    tenant: str
    data: list[LimitObject]
    key: list[LimitObject] = Field(description="budgets of the calling API key; empty without a key")
    groups: list[GroupLimit] = Field(
        description="budgets that are shared: with all tenants of the organization, with all keys of the "
        "calling key's team and user"
    )
    max_lines: int = Field(description="requests that a batch may have")
    max_batch_file_bytes: int = Field(description="bytes that an input file may have")
    models: list[str] | None = Field(description="models that may be used; null allows every model")
    weight: float = Field(description="share of the workers, relative to the weights of other tenants")
    max_in_flight: int | None = Field(
        description="requests that may be in flight at once, over all workers, but at least one for each "
        "worker that runs the tenant's slices; null if there is no cap"
    )
    max_priority: int = Field(description="highest priority that a batch may have")
    over_quota: OverQuota = Field(
        description="whether a batch over the quota of enqueued lines or tokens fails or waits"
    )
    window_too_short: WindowTooShort = Field(
        description="whether a batch that cannot be done within its completion window is accepted or refused"
    )
    backend_requests_per_minute: int | None = Field(
        description="requests that all workers send to backends per minute; null if there is no limit"
    )
    backend_tokens_per_minute: int | None = Field(
        description="tokens that these requests use per minute; null if there is no limit"
    )


class DefaultQuotas(BaseModel):
    """Quotas for tenants without quotas of their own. `0` means no limit."""

    live_batches: int
    stored_bytes: int
    enqueued_lines: int
    enqueued_tokens: int
    requests_per_minute: int
    tokens_per_day: int
    cost_per_day: DecimalText
    webhooks: int


class QuotaObject(BaseModel):
    """Quotas, weight and limits that were set for one tenant. `0` means no limit.

    `null` means that nothing was set, so the default applies. The default of `models` is every model.
    `max_in_flight`, `backend_requests_per_minute` and `backend_tokens_per_minute` have no limit by default.
    """

    tenant: str
    live_batches: int | None
    stored_bytes: int | None
    enqueued_lines: int | None
    enqueued_tokens: int | None
    requests_per_minute: int | None
    tokens_per_day: int | None
    cost_per_day: DecimalText | None = Field(description="in the currency of the prices")
    webhooks: int | None
    models: list[str] | None
    weight: float | None = Field(description="share of the workers, relative to the weights of other tenants")
    max_in_flight: int | None = Field(description="requests in flight at once, over all workers")
    max_priority: int | None = Field(description="highest priority that a batch may have")
    over_quota: OverQuota | None = Field(
        description="whether a batch over the quota of enqueued lines or tokens fails (the default) or waits"
    )
    window_too_short: WindowTooShort | None = Field(
        description="whether a batch that cannot be done within its completion window is accepted (the "
        "default) or refused"
    )
    backend_requests_per_minute: int | None = Field(description="requests sent to backends per minute")
    backend_tokens_per_minute: int | None = Field(description="tokens of these requests per minute")
    changed_at: datetime


class QuotaList(BaseModel):
    object: Literal["list"] = "list"
    defaults: DefaultQuotas
    data: list[QuotaObject]


class BudgetGroupObject(BaseModel):
    object: Literal["budget_group"] = "budget_group"
    kind: GroupKind
    tenant: str | None = Field(description="tenant of a team or user; null for an organization")
    name: str
    tokens_per_day: int | None = Field(description="token budget; null if there is none")
    tokens_used: int = Field(description="tokens that all its members used today (UTC)")
    cost_per_day: DecimalText | None = Field(description="budget in the currency of the prices; null if none")
    cost_used: str = Field(description="cost of the lines of all its members today (UTC)")
    members: list[str] = Field(description="tenants of an organization; key ids of a team or user")
    created_at: datetime


class BudgetGroupList(BaseModel):
    object: Literal["list"] = "list"
    data: list[BudgetGroupObject]


class RateObject(BaseModel):
    """A rate limit that applies now, in requests per second. `0` means no limit.

    `model` is null for the limit over all models together.
    """

    model: str | None
    requests_per_second: float
    source: Literal["setting", "change"]
    queue: str = Field(description="task queue that enforces it")


class RateList(BaseModel):
    object: Literal["list"] = "list"
    data: list[RateObject]
    shared_requests_per_second: float | None = Field(
        description="shared by the models without their own rate; null without a rate over all models"
    )
