"""Token usage for tests. A test passes even if midnight comes between reporting and reading the usage."""

from datetime import UTC, date, datetime, timedelta

from batchwright.database.tables.tenants.quota_records import DailyUsage
from batchwright.database.tables.tenants.quotas import QuotasTable


def this_day() -> date:
    return datetime.now(UTC).date()


async def publish_usage(
    quotas: QuotasTable, worker: str, *spent: DailyUsage, today: date | None = None
) -> None:
    """Publish the token usage of a worker for `today`, and also for the next day, in case midnight passes."""
    today = today or this_day()
    for day in (today, today + timedelta(days=1)):
        await quotas.publish_usage(worker, day, spent)
