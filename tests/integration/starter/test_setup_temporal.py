"""`batchwright setup temporal` with real Temporal servers, some of which refuse a step of it."""

import asyncio
import json
from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Schedule, ScheduleActionStartWorkflow, ScheduleIntervalSpec, ScheduleSpec

from batchwright.settings import load
from batchwright.starter.embedded_stack.ports import free_port
from batchwright.temporal import TemporalNotSetUp, connect
from batchwright.temporal.namespace.maintenance_schedules import SCHEDULES, PlannedSchedule, ensure_schedule
from batchwright.temporal.namespace.namespace_checks import REQUIRED_ATTRIBUTES, Namespace
from tests.fakes.frontend import Frontend
from tests.integration.starter.commands import batchwright
from tests.integration.temporal.clusters import cluster

pytestmark = pytest.mark.integration


async def test_a_new_namespace_is_created_once_and_each_step_is_reported() -> None:
    async with cluster() as address:
        expected = {"temporal_address": address, "temporal_namespace": "batches"}
        first = await batchwright("setup", "temporal", **expected)
        second = await batchwright("setup", "temporal", **expected)
        settings = load(**expected)
        namespace = Namespace(await connect(settings), settings)
        await namespace.check()
        assert await namespace.retention() == timedelta(days=14)
    assert first == (
        0,
        [
            "namespace batches: created (ended workflows are kept 14 days)",
            "search attribute BatchwrightStatus: created (Keyword)",
            "search attribute BatchwrightTenant: created (Keyword)",
            "search attribute BatchwrightModels: created (KeywordList)",
            "search attribute BatchwrightDeadline: created (Datetime)",
            "schedule batchwright-retention: created",
            "schedule batchwright-retention-litter: created",
            "schedule batchwright-consistency-check: created",
        ],
        "",
    )
    assert second == (0, [line.replace("created", "was there") for line in first[1]], "")


async def test_concurrent_setups_do_not_conflict() -> None:
    async with cluster() as address:
        expected = {"temporal_address": address, "temporal_namespace": "batches"}
        runs = await asyncio.gather(*(batchwright("setup", "temporal", **expected) for _ in range(3)))
    assert [(code, stderr) for code, _, stderr in runs] == [(0, "")] * 3


async def test_the_namespace_retention_changes_only_if_it_is_set() -> None:
    async with cluster(is_set_up=True) as address:
        _, left, _ = await batchwright("setup", "temporal", "--json", temporal_address=address)
        _, changed, _ = await batchwright(
            "setup", "temporal", "--json", temporal_address=address, temporal_retention_days="30"
        )
    assert json.loads(left[0])["steps"][0] == {
        "kind": "namespace",
        "name": "default",
        "outcome": "was there",
        "detail": "ended workflows are kept 1 days",
    }
    assert json.loads(changed[0])["steps"][0]["outcome"] == "changed"
    assert json.loads(changed[0])["steps"][0]["detail"] == "ended workflows are kept 30 days, before 1"


async def test_a_search_attribute_of_another_type_is_reported_and_not_replaced() -> None:
    async with cluster() as address:
        client = await connect(load(temporal_address=address))
        request = AddSearchAttributesRequest(namespace="default")
        request.search_attributes["BatchwrightStatus"] = IndexedValueType.INDEXED_VALUE_TYPE_INT
        await client.operator_service.add_search_attributes(request)
        code, _, stderr = await batchwright("setup", "temporal", temporal_address=address)
    assert code == 1
    assert stderr == (
        "The search attribute BatchwrightStatus is Int and must be Keyword: remove it, or use another "
        "namespace.\n"
    )


@pytest.mark.parametrize(
    ("namespace", "refused", "expected"),
    [
        ("batches", "RegisterNamespace", "may not change the namespace of 'batches'"),
        ("default", "AddSearchAttributes", "may not change the search attributes of 'default'"),
    ],
)
async def test_missing_permissions_are_reported_with_what_is_needed(
    namespace: str, refused: str, expected: str
) -> None:
    async with cluster() as behind:
        frontend = Frontend(behind, refused={refused})
        async with frontend.serving():
            code, _, stderr = await batchwright(
                "setup", "temporal", temporal_address=frontend.address, temporal_namespace=namespace
            )
    assert code == 1
    assert expected in stderr
    assert all(name in stderr for name in REQUIRED_ATTRIBUTES)


@pytest.mark.parametrize("is_set_up", [False, True])
async def test_search_attributes_are_checked_even_without_permission_to_list_them(
    is_set_up: bool,
) -> None:
    async with cluster(is_set_up=is_set_up) as behind:
        frontend = Frontend(behind, refused={"ListSearchAttributes"})
        async with frontend.serving():
            settings = load(temporal_address=frontend.address)
            namespace = Namespace(await connect(settings), settings)
            if is_set_up:
                await namespace.check()
            else:
                with pytest.raises(TemporalNotSetUp, match="lacks the search attributes BatchwrightStatus"):
                    await namespace.check()


async def test_a_schedule_is_created_once_and_follows_its_definition() -> None:
    def planned(hours: int) -> PlannedSchedule:
        action = ScheduleActionStartWorkflow("Sweep", id="sweep", task_queue="control")
        spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(hours=hours))])
        return PlannedSchedule("batchwright-sweep", Schedule(action=action, spec=spec))

    async with cluster(is_set_up=True) as address:
        client = await connect(load(temporal_address=address))
        assert await ensure_schedule(client, planned(1))
        assert not await ensure_schedule(client, planned(2))
        found = await client.get_schedule_handle("batchwright-sweep").describe()
    assert [interval.every for interval in found.schedule.spec.intervals] == [timedelta(hours=2)]


def test_expired_data_is_deleted_every_hour_and_orphaned_data_every_day() -> None:
    every = {planned.id: [spec.every for spec in planned.schedule.spec.intervals] for planned in SCHEDULES}
    assert every == {
        "batchwright-retention": [timedelta(hours=1)],
        "batchwright-retention-litter": [timedelta(days=1)],
        "batchwright-consistency-check": [timedelta(days=1)],
    }


async def test_an_unreachable_server_is_reported_in_one_sentence() -> None:
    address = f"127.0.0.1:{free_port()}"
    assert await batchwright("setup", "temporal", temporal_address=address) == (
        1,
        [],
        f"Temporal does not answer at {address} (BATCHWRIGHT_TEMPORAL_ADDRESS): "
        "the connection was refused.\n",
    )


async def test_a_wrong_setting_is_a_usage_error() -> None:
    code, stdout, stderr = await batchwright("setup", "temporal", temporal_address="nowhere")
    assert (code, stdout) == (3, [])
    assert stderr.startswith("BATCHWRIGHT_TEMPORAL_ADDRESS is wrong: ")
