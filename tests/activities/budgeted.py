"""Workers whose tenants have budgets in a database that they may share with others."""

from datetime import UTC, date, datetime, timedelta

from activities.slices.budgets import TokenBudgets
from activities.slices.permissions import KnownPermissions
from batchwright.contracts.execution import SliceRequest
from tests.activities.execution_house import House, line_of, ok, plan_slice
from tests.fakes.database import MemoryDatabase
from tests.integration.rows import START

A_LINE = 5  # tokens that `ok` reports
KEY = "key_1"
DAY = 86_400.0
WINDOW = timedelta(days=1)


class Clock:
    """In the middle of a day."""

    now = 1.5 * DAY

    def __call__(self) -> float:
        return self.now

    @property
    def today(self) -> date:
        return datetime.fromtimestamp(self.now, UTC).date()


class Worker:
    """A house whose tenants have a budget in a database that it may share with others."""

    def __init__(self, database: MemoryDatabase, name: str, budget: int = 0, **settings: object) -> None:
        self.house, self.clock = House(ok, **settings), Clock()
        self.budgets = TokenBudgets(database.quotas, budget, worker=name, clock=self.clock)
        self.known = self.house.tools.permissions = KnownPermissions(database.quotas, self.budgets, WINDOW)

    async def plan(self, lines: int) -> list[int]:
        await self.known.refresh()
        return await plan_slice(self.house.storage, [line_of(number) for number in range(lines)])

    async def counts(self, asked: SliceRequest) -> tuple[int, int]:
        result = await self.house.run(asked)
        assert result.finished
        return result.completed, result.failed


async def an_organization(database: MemoryDatabase, tokens_per_day: int, *tenants: str) -> None:
    await database.organizations.create("group", tokens_per_day, START)
    for tenant in tenants:
        assert await database.organizations.add("group", tenant) == "group"
