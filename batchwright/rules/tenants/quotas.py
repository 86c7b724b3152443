"""Define the quotas of a tenant and the groups with shared budgets, and check if a batch fits into them."""

from collections.abc import Mapping
from typing import NamedTuple

from batchwright.contracts.terms import GroupKind, Quota

MAX_QUOTA = 2**53 - 1  # the largest integer that every JSON parser reads exactly
BUDGETS = (
    Quota.TOKENS_PER_DAY,
    Quota.COST_PER_DAY,
)  # quotas that tenants, API keys and budget groups may have


class DailyAmounts(NamedTuple):
    """Tokens and cost of one day (UTC): the amounts that were used, or the budget for a day.

    Attributes:
        tokens: number of tokens. In a budget, 0 means no limit.
        cost: cost in 10^-12 of the currency's unit. In a budget, 0 means no limit.
    """

    tokens: int = 0
    cost: int = 0

    def of(self, quota: Quota) -> int:
        """Return the cost if `quota` is `COST_PER_DAY`, the tokens if it is `TOKENS_PER_DAY`.

        Do not pass any other quota.
        """
        return self.cost if quota is Quota.COST_PER_DAY else self.tokens

    def plus(self, other: "DailyAmounts") -> "DailyAmounts":
        return DailyAmounts(self.tokens + other.tokens, self.cost + other.cost)


class QuotaLimits(NamedTuple):
    """The limits of one tenant, with one field for each quota in the enum `Quota`. 0 means no limit.

    `cost_per_day` is in 10^-12 of the currency's unit (`rules/token_costs.py`).
    """

    live_batches: int = 0
    stored_bytes: int = 0
    enqueued_lines: int = 0
    enqueued_tokens: int = 0
    requests_per_minute: int = 0
    tokens_per_day: int = 0
    cost_per_day: int = 0
    webhooks: int = 0

    def of(self, quota: Quota) -> int:
        return self._asdict()[quota]

    @property
    def budget(self) -> DailyAmounts:
        return DailyAmounts(self.tokens_per_day, self.cost_per_day)

    def changed(self, own: Mapping[str, int | None]) -> "QuotaLimits":
        """Return a copy of these limits in which a tenant's own limits replace the default limits.

        Args:
            own: the tenant's own limits by field name. If a value is None, the default limit stays.
        """
        return self._replace(**{name: limit for name, limit in own.items() if limit is not None})


class EnqueuedWork(NamedTuple):
    """A number of lines that have no result yet, and the estimated tokens of their prompts.

    A tenant has a quota of lines and a quota of tokens.
    """

    lines: int
    tokens: int


class QuotaExcess(NamedTuple):
    """The reason why a batch's lines may not be enqueued now.

    Either the batch would exceed the quota, or earlier batches of its tenant wait for the quota.

    Attributes:
        quota: the quota of lines or the quota of tokens.
        limit: value of the quota.
        used: lines or tokens of the tenant's other batches.
        requested: lines or tokens of the batch. If `used` plus `requested` is more than `limit`, the batch
            would exceed the quota.
        before: number of earlier batches that wait for the quota. The batch must wait until the earlier
            batches are enqueued, even if the batch would not exceed the quota.
    """

    quota: Quota
    limit: int
    used: int
    requested: int
    before: int = 0

    @property
    def can_wait(self) -> bool:
        """True if the batch can be enqueued later. False if the batch alone exceeds the quota."""
        return self.requested <= self.limit

    @property
    def waiting_reason(self) -> str:
        what = "lines" if self.quota is Quota.ENQUEUED_LINES else "tokens"
        reason = (
            f"its tenant may have {self.limit:,} {what} enqueued: {self.used:,} are, and this batch has "
            f"{self.requested:,}"
        )
        if self.before:
            reason += (
                f"; {self.before:,} earlier {'batch waits' if self.before == 1 else 'batches wait'}, too"
            )
        return reason


def find_excess(limits: QuotaLimits, used: EnqueuedWork, requested: EnqueuedWork) -> QuotaExcess | None:
    """Return the quota that a batch would exceed; None if its lines may be enqueued.

    There is a quota of lines and a quota of tokens. If the batch would exceed both, there are two cases:

    - The batch alone exceeds the quota of tokens, but not the quota of lines. Return the quota of tokens,
      because waiting cannot help.
    - In all other cases, return the quota of lines.

    Args:
        limits: limits of the tenant.
        used: lines and tokens of the tenant that are already enqueued.
        requested: lines and tokens of the batch.
    """
    wanted = (
        QuotaExcess(Quota.ENQUEUED_LINES, limits.enqueued_lines, used.lines, requested.lines),
        QuotaExcess(Quota.ENQUEUED_TOKENS, limits.enqueued_tokens, used.tokens, requested.tokens),
    )
    return next(
        (
            found
            for found in sorted(wanted, key=lambda each: each.can_wait)
            if found.limit and found.used + found.requested > found.limit
        ),
        None,
    )


def queue_behind(
    limits: QuotaLimits, used: EnqueuedWork, requested: EnqueuedWork, before: int
) -> QuotaExcess | None:
    """Return the quota that makes a batch wait; None if its lines may be enqueued now.

    There are three cases:

    - If the batch would exceed a quota, return the result of `find_excess`, with `before`.
    - If the batch would exceed no quota, but earlier batches of the tenant wait for a quota, the batch waits
      after them. Return the quota of lines, or the quota of tokens if lines are unlimited.
    - In all other cases, return None. If lines and tokens are unlimited, the batch never waits.

    Args:
        limits: limits of the tenant.
        used: lines and tokens of the tenant that are already enqueued.
        requested: lines and tokens of the batch.
        before: number of the tenant's earlier batches that wait for a quota.
    """
    found = find_excess(limits, used, requested)
    if found is None and before and (limits.enqueued_lines or limits.enqueued_tokens):
        by_lines = QuotaExcess(Quota.ENQUEUED_LINES, limits.enqueued_lines, used.lines, requested.lines)
        by_tokens = QuotaExcess(Quota.ENQUEUED_TOKENS, limits.enqueued_tokens, used.tokens, requested.tokens)
        found = by_lines if limits.enqueued_lines else by_tokens
    return found and found._replace(before=before)


class BudgetGroup(NamedTuple):
    """A group of callers that share daily budgets: an organization, a team or a user.

    `tenant` is the tenant of a team or user; empty for an organization.
    """

    kind: GroupKind
    tenant: str
    name: str
