"""What lines have used today, told so that midnight may pass before somebody looks."""

from datetime import UTC, date, datetime, timedelta

from batchwright.database.quotas_base import QuotasTable, Spent


def this_day() -> date:
    return datetime.now(UTC).date()


async def tell_spent(quotas: QuotasTable, worker: str, *spent: Spent, today: date | None = None) -> None:
    """Of `today` and of the day after."""
    today = today or this_day()
    for day in (today, today + timedelta(days=1)):
        await quotas.tell_spent(worker, day, spent)
