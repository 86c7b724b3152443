"""Check before each send if a line may be sent, with permissions that are at most five seconds old."""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol

from batchwright.activities.clock import suspend_aware_clock
from batchwright.activities.services.batch_cost_cap import BatchCosts
from batchwright.activities.services.daily_budgets import DailyBudgets, UsedUpBudget
from batchwright.activities.services.model_access import model_not_allowed
from batchwright.contracts.temporal_payloads.execution import SliceRequest
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.tenants.quota_records import TenantQuotas
from batchwright.database.tables.tenants.quotas import QuotasTable
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.outage_log import OutageLog

logger = logging.getLogger(__name__)
MAX_AGE_SECONDS = 5.0
_REFRESH_SECONDS = 1.0
_KEY_MARGIN = timedelta(days=1)  # revoked keys are read for the longest window plus this margin


class Permissions(Protocol):
    # A number that changes when the permissions may have changed. None if each line has to be checked.
    version: int | None = None
    # The permissions are valid until this time of the suspend-aware clock. After that, no line is sent.
    fresh_until: float = math.inf

    def may_use(self, tenant: str, model: str) -> bool: ...

    def is_withdrawn(self, key_id: str) -> bool:
        """Return True if the API key was revoked or has expired.

        Args:
            key_id: id of the key that created the batch; empty if the batch was created without a key.
        """
        ...

    def budget_exceeded(self, tenant: str, key_id: str, currency: str) -> UsedUpBudget | None:
        """Return a daily budget that applies to a batch and is used up; None if there is none.

        The budgets that apply are those of the tenant, of the API key, and of their budget groups.

        Args:
            key_id: id of the API key that created the batch; empty if the batch was created without a key.
            currency: currency of the model's prices; empty if the model has no prices.
        """
        ...

    def record_usage(self, tenant: str, key_id: str, tokens: int, cost: int) -> None:
        """Count the tokens and the cost of a batch's lines for the budgets of its tenant and its API key.

        Args:
            cost: in 10^-12 of the currency's unit (`rules/token_costs.py`).
        """
        ...


class CachedPermissions(Permissions):
    """The permissions to send lines, which are read from the database every second.

    A tenant without a row in the database may use every model and has no limits of its own.
    """

    def __init__(
        self,
        table: QuotasTable,
        budgets: DailyBudgets,
        costs: BatchCosts,
        longest_window: timedelta,
        clock: Callable[[], float] = suspend_aware_clock,
    ) -> None:
        """Create the object without permissions. No line may be sent before the first `refresh`.

        Args:
            costs: costs of batches, which are refreshed together with the permissions.
            longest_window: the longest time from a batch's creation to its deadline. If an API key
                was revoked or expired longer ago than this time plus one day, all batches of the key have
                ended, and the key is not read.
        """
        self._table, self._budgets, self._costs, self._clock = table, budgets, costs, clock
        self._oldest = longest_window + _KEY_MARGIN
        self._own: Mapping[str, TenantQuotas] = {}
        self._withdrawn: frozenset[str] = frozenset()
        self.fresh_until = -math.inf
        self.version = None if budgets.has_limits else 0
        self._refreshes = 0
        message = "permissions and budgets cannot be read: nothing is sent until they can"
        self._outages = OutageLog(logger, message)

    def may_use(self, tenant: str, model: str) -> bool:
        own = self._own.get(tenant)
        return own is None or own.may_use(model)

    def is_withdrawn(self, key_id: str) -> bool:
        return key_id in self._withdrawn

    def budget_exceeded(self, tenant: str, key_id: str, currency: str) -> UsedUpBudget | None:
        return self._budgets.exceeded(tenant, key_id, currency)

    def record_usage(self, tenant: str, key_id: str, tokens: int, cost: int) -> None:
        self._budgets.record(tenant, key_id, tokens, cost)

    async def close(self) -> None:
        """Publish the usage that this process has not published yet. If this fails, only log it."""
        try:
            await self._budgets.publish()
        except DatabaseUnavailable as error:
            logger.warning("usage could not be published", extra={"error": str(error)})

    async def refresh(self) -> None:
        """Read the permissions, the revoked API keys, the budgets and the costs of batches again.

        Raises:
            DatabaseUnavailable: the database does not respond. The last permissions stay in use until they
                are too old.
        """
        started_at = self._clock()
        own = {row.tenant: row.own for row in await self._table.all()}
        withdrawn = await self._table.withdrawn_keys(datetime.now(UTC) - self._oldest)
        await self._budgets.refresh(own)
        await self._costs.refresh()
        self._own, self._withdrawn = own, withdrawn
        self.fresh_until = started_at + MAX_AGE_SECONDS
        self._refreshes += 1
        self.version = None if self._budgets.has_limits else self._refreshes

    async def run(self) -> None:
        """Refresh the permissions every second until cancelled.

        An unavailable database is logged once per outage.
        """
        while True:
            with self._outages.suppress(DatabaseUnavailable):
                await self.refresh()
            await asyncio.sleep(_REFRESH_SECONDS)


class LineAuthorizer:
    """An object that decides, before each send, whether a line of one slice may still be sent.

    If all lines may be sent, the `version` of the permissions is stored in `allowed_version`. As long as the
    permissions have this version, every line of the slice may be sent without another check.
    """

    def __init__(self, permissions: Permissions, metrics: Metrics, request: SliceRequest) -> None:
        self._permissions, self._metrics = permissions, metrics
        self._tenant, self._key_id, self._model = request.tenant, request.caller.key_id, request.model
        self._currency = "" if request.prices is None else request.prices.currency
        self.allowed_version = -1  # -1 until a check allows every line

    def denial_reason(self, *, has_job: bool) -> str:
        """Return why a line of the slice must not be sent now, as a message for the client.

        If the line may be sent, return an empty string.

        Args:
            has_job: True if the line was already sent, and a backend runs it as a job. In this case, only the
                tenant's permission to use the model is checked.
        """
        permissions, version = self._permissions, self._permissions.version
        if version == self.allowed_version:
            return ""
        if not permissions.may_use(self._tenant, self._model):
            return model_not_allowed(self._model)
        if has_job:
            return ""
        if permissions.is_withdrawn(self._key_id):
            return f"The API key {self._key_id} that created the batch was revoked or has expired."
        budget = permissions.budget_exceeded(self._tenant, self._key_id, self._currency)
        if budget is not None:
            self._metrics.quota_refusals.labels(self._metrics.tenants(self._tenant), budget.quota.value).inc()
            return budget.message
        if version is not None:
            self.allowed_version = version
        return ""
