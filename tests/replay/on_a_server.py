"""Records histories that need a real server: of runs pinned to a worker version, and of scheduled runs."""

from batchwright.settings import load
from batchwright.temporal.namespace.maintenance_schedules import SCHEDULES, PlannedSchedule, ensure_schedule
from batchwright.worker.wiring import deployment_config
from tests.e2e.batches import until
from tests.integration.temporal.clusters import server
from tests.integration.temporal.test_workflows import BUILD, NAME, make_current
from tests.replay.batches import completed, handed_over
from tests.replay.early_ends import Scenario
from tests.replay.written import write, write_batch
from tests.workflows.fixture import WorkflowFixture


def _schedule(id: str) -> PlannedSchedule:
    return next(planned for planned in SCHEDULES if planned.id == id)


PREFIX = "pinned_"
PINNED: dict[str, Scenario] = {PREFIX + scenario.__name__: scenario for scenario in (completed, handed_over)}
# One schedule of each workflow.
SCHEDULED: dict[str, PlannedSchedule] = {
    "scheduled_retention": _schedule("batchwright-retention"),
    "scheduled_consistency_check": _schedule("batchwright-consistency-check"),
}


async def record_pinned(name: str) -> None:
    async with server() as environment:
        workflows = WorkflowFixture(
            environment, deployment_config(load(deployment_name=NAME, build_id=BUILD))
        )
        async with workflows.workers(["m", "n"]):
            await make_current(workflows.client)
            await PINNED[name](workflows)
            await write_batch(workflows, PINNED[name], PREFIX)


async def record_scheduled(name: str) -> None:
    """Create the schedule as `setup temporal` does, trigger a run of it, and record the run's history."""
    planned = SCHEDULED[name]
    async with server() as environment:
        workflows = WorkflowFixture(environment)
        async with workflows.workers():
            await ensure_schedule(workflows.client, planned)
            schedule = workflows.client.get_schedule_handle(planned.id)
            await schedule.trigger()

            async def has_started() -> bool:
                return (await schedule.describe()).info.num_actions > 0

            await until(has_started)
            runs = workflows.client.list_workflows(f"TemporalScheduledById = '{planned.id}'")
            [workflow_id] = [run.id async for run in runs]
            await workflows.client.get_workflow_handle(workflow_id).result()
            await write(workflows, workflow_id, None, name)
