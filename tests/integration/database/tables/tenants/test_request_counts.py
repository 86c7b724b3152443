"""The table that counts the requests of each tenant in the current minute."""

import asyncio

from batchwright.database.database import Database
from batchwright.database.driver import DatabaseConnection


async def test_requests_of_a_minute_are_counted_by_tenant(any_database: Database) -> None:
    counted = await asyncio.gather(*(any_database.quotas.count_request("t") for _ in range(5)))
    assert sorted(one.requests for one in counted) == [1, 2, 3, 4, 5]
    assert all(0 < one.seconds_left <= 60 for one in counted)
    assert (await any_database.quotas.count_request("u")).requests == 1


async def test_a_minute_of_requests_ends_and_the_next_one_begins(
    database: Database, connection: DatabaseConnection
) -> None:
    count = database.quotas.count_request
    age = "UPDATE request_counts SET began_at = now() - make_interval(secs => $1)"
    for _ in range(3):
        await count("t")
    await connection.execute(age, 30.0)
    counted = await count("t")
    assert counted.requests == 4
    assert 0 < counted.seconds_left <= 30
    await connection.execute(age, 61.0)
    counted = await count("t")
    assert counted.requests == 1
    assert 30 < counted.seconds_left <= 60
    assert (await count("t")).requests == 2


async def test_counts_of_earlier_minutes_are_deleted_when_another_tenant_begins_its_minute(
    database: Database, connection: DatabaseConnection
) -> None:
    for number in range(25):
        await database.quotas.count_request(f"invented-{number}")
    await connection.execute("UPDATE request_counts SET began_at = began_at - interval '61 seconds'")
    tenants = "SELECT tenant FROM request_counts ORDER BY tenant"
    left = list[int]()
    for tenant in ("t", "t", "u", "v"):
        await database.quotas.count_request(tenant)
        left.append(len(await connection.fetch(tenants)))
    assert left == [16, 16, 7, 3]
    assert [row["tenant"] for row in await connection.fetch(tenants)] == ["t", "u", "v"]
