"""`batchwright setup temporal` against real servers, some of which refuse."""

import asyncio
import json
from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Schedule, ScheduleActionStartWorkflow, ScheduleIntervalSpec, ScheduleSpec

from batchwright.settings import load
from batchwright.temporal import TemporalNotSetUp, connect
from batchwright.temporal.namespace import WANTED, Namespace
from batchwright.temporal.schedules import Planned, ensure
from starter.stack.ports import free_port
from tests.fakes.frontend import Frontend
from tests.integration.clusters import cluster
from tests.integration.commands import batchwright

pytestmark = pytest.mark.integration


async def test_a_new_namespace_is_made_once_and_says_so_line_by_line() -> None:
    async with cluster() as address:
        told = {"temporal_address": address, "temporal_namespace": "batches"}
        first = await batchwright("setup", "temporal", **told)
        second = await batchwright("setup", "temporal", **told)
        settings = load(**told)
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
            "schedule batchwright-audit: created",
        ],
        "",
    )
    assert second == (0, [line.replace("created", "was there") for line in first[1]], "")


async def test_several_at_once_do_no_harm() -> None:
    async with cluster() as address:
        told = {"temporal_address": address, "temporal_namespace": "batches"}
        runs = await asyncio.gather(*(batchwright("setup", "temporal", **told) for _ in range(3)))
    assert [(code, complained) for code, _, complained in runs] == [(0, "")] * 3


async def test_the_retention_changes_only_where_the_setting_asks_for_it() -> None:
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


async def test_an_attribute_of_another_type_is_named_and_nothing_is_made_over_it() -> None:
    async with cluster() as address:
        client = await connect(load(temporal_address=address))
        request = AddSearchAttributesRequest(namespace="default")
        request.search_attributes["BatchwrightStatus"] = IndexedValueType.INDEXED_VALUE_TYPE_INT
        await client.operator_service.add_search_attributes(request)
        code, _, complained = await batchwright("setup", "temporal", temporal_address=address)
    assert code == 1
    assert complained == (
        "The search attribute BatchwrightStatus is Int and has to be Keyword: remove it, or use another "
        "namespace.\n"
    )


@pytest.mark.parametrize(
    ("namespace", "refused", "told"),
    [
        ("batches", "RegisterNamespace", "may not change the namespace of 'batches'"),
        ("default", "AddSearchAttributes", "may not change the search attributes of 'default'"),
    ],
)
async def test_credentials_that_may_not_are_told_what_is_needed(
    namespace: str, refused: str, told: str
) -> None:
    async with cluster() as behind:
        frontend = Frontend(behind, refused={refused})
        async with frontend.serving():
            code, _, complained = await batchwright(
                "setup", "temporal", temporal_address=frontend.address, temporal_namespace=namespace
            )
    assert code == 1
    assert told in complained
    assert all(name in complained for name in WANTED)


@pytest.mark.parametrize("is_set_up", [False, True])
async def test_who_may_not_list_search_attributes_still_learns_whether_they_are_there(
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


async def test_a_planned_schedule_is_made_once_and_follows_its_plan() -> None:
    def planned(hours: int) -> Planned:
        action = ScheduleActionStartWorkflow("Sweep", id="sweep", task_queue="control")
        spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(hours=hours))])
        return Planned("batchwright-sweep", Schedule(action=action, spec=spec))

    async with cluster(is_set_up=True) as address:
        client = await connect(load(temporal_address=address))
        assert await ensure(client, planned(1))
        assert not await ensure(client, planned(2))
        found = await client.get_schedule_handle("batchwright-sweep").describe()
    assert [interval.every for interval in found.schedule.spec.intervals] == [timedelta(hours=2)]


async def test_a_server_that_is_not_there_is_one_sentence() -> None:
    address = f"127.0.0.1:{free_port()}"
    assert await batchwright("setup", "temporal", temporal_address=address) == (
        1,
        [],
        f"Temporal does not answer at {address} (BATCHWRIGHT_TEMPORAL_ADDRESS): "
        "the connection was refused.\n",
    )


async def test_a_wrong_setting_is_a_wrong_use() -> None:
    code, said, complained = await batchwright("setup", "temporal", temporal_address="nowhere")
    assert (code, said) == (3, [])
    assert complained.startswith("BATCHWRIGHT_TEMPORAL_ADDRESS is wrong: ")
