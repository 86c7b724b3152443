"""Histories that only a real server makes: of PINNED runs, and of runs that a schedule starts."""

from batchwright.settings import load
from batchwright.temporal.schedules import SCHEDULES, Planned, ensure
from tests.e2e.batches import until
from tests.integration.clusters import server
from tests.integration.test_workflows import BUILD, NAME, make_current
from tests.replay.batches import SCENARIOS
from tests.replay.early_ends import Scenario
from tests.replay.written import write, write_batch
from tests.workflows.house import House
from worker.versioning import deployment

_PREFIX = "pinned_"
_PINNED = ("completed", "continued_as_new", "paused_and_resumed", "cancelled_while_running", "expired")
PINNED: dict[str, Scenario] = {_PREFIX + name: SCENARIOS[name] for name in _PINNED}
SCHEDULED: dict[str, Planned] = {
    planned.id.replace("batchwright-", "scheduled_").replace("-", "_"): planned for planned in SCHEDULES
}


async def record_pinned(name: str) -> None:
    async with server() as environment:
        house = House(environment, deployment(load(deployment_name=NAME, build_id=BUILD)))
        async with house.workers(["m", "n"]):
            await make_current(house.client)
            await PINNED[name](house)
            await write_batch(house, name.removeprefix(_PREFIX), _PREFIX)


async def record_scheduled(name: str) -> None:
    """The schedule is made as `setup temporal` makes it, and told to start a run now."""
    planned = SCHEDULED[name]
    async with server() as environment:
        house = House(environment)
        async with house.workers():
            await ensure(house.client, planned)
            schedule = house.client.get_schedule_handle(planned.id)
            await schedule.trigger()

            async def has_started() -> bool:
                return (await schedule.describe()).info.num_actions > 0

            await until(has_started)
            runs = house.client.list_workflows(f"TemporalScheduledById = '{planned.id}'")
            [workflow_id] = [run.id async for run in runs]
            await house.client.get_workflow_handle(workflow_id).result()
            await write(house, workflow_id, None, name)
