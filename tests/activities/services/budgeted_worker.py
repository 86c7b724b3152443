"""Workers whose tenants have daily budgets. Several workers can share one database."""

from datetime import UTC, date, datetime, timedelta

from batchwright.activities.services.batch_cost_cap import BatchCosts
from batchwright.activities.services.daily_budgets import DailyBudgets
from batchwright.activities.services.send_authorization import CachedPermissions
from batchwright.contracts.temporal_payloads.execution import SliceRequest
from batchwright.rules.tenants.quotas import DailyAmounts
from batchwright.rules.token_costs import amount_of
from tests.activities.execution.fixture import ExecutionFixture, line_of, ok, plan_slice
from tests.fakes.budget_groups import organization
from tests.fakes.memory_database import MemoryDatabase
from tests.integration.database.rows import START

A_LINE = 5  # tokens that `ok` reports
KEY = "key_1"
DAY = 86_400.0
WINDOW = timedelta(days=1)


class Clock:
    """A clock that a test sets. It starts in the middle of a day."""

    now = 1.5 * DAY

    def __call__(self) -> float:
        return self.now

    @property
    def today(self) -> date:
        return datetime.fromtimestamp(self.now, UTC).date()


class BudgetedWorker:
    """A worker with fake dependencies whose tenants have daily budgets.

    Args:
        database: Holds the budgets. Several workers may share it.
        name: Name under which the worker publishes its token usage.
        budget: Tokens per day of each tenant. 0 means no budget.
        cost: Cost per day of each tenant, as decimal text. 0 means no budget.
    """

    def __init__(
        self, database: MemoryDatabase, name: str, budget: int = 0, cost: str = "0", **settings: object
    ) -> None:
        self.execution, self.clock = ExecutionFixture(ok, **settings), Clock()
        self.budgets = DailyBudgets(
            database.quotas,
            database.budget_groups,
            DailyAmounts(budget, amount_of(cost)),
            worker=name,
            clock=self.clock,
        )
        self.known = self.execution.context.permissions = CachedPermissions(
            database.quotas, self.budgets, BatchCosts(database.progress), WINDOW
        )

    def refusal(self, tenant: str, key_id: str, currency: str = "") -> str:
        """Return the message about a daily budget that is used up; empty if none is used up."""
        found = self.known.budget_exceeded(tenant, key_id, currency)
        return "" if found is None else found.message

    async def plan(self, lines: int) -> list[int]:
        await self.known.refresh()
        return await plan_slice(self.execution.storage, [line_of(number) for number in range(lines)])

    async def counts(self, slice_request: SliceRequest) -> tuple[int, int]:
        result = await self.execution.run(slice_request)
        assert result.finished
        return result.completed, result.failed


GROUP = organization("group")


async def an_organization(database: MemoryDatabase, tokens_per_day: int, *tenants: str) -> None:
    await database.budget_groups.create(GROUP, tokens_per_day, START)
    await database.budget_groups.add(GROUP, tenants)
