"""Faults of the simulator: how they are set, what they do, and how the ledger records them."""

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace

import httpx
import pytest

from batchwright.simulator.backend import SimulatorOptions
from batchwright.simulator.faults import Fault, Faults, fault_from_marker, parse_short
from tests.unit.simulator.simulators import MODEL, OTHER, Simulated, simulated, until


@pytest.fixture
async def sim() -> AsyncGenerator[Simulated]:
    async with simulated() as running:
        yield running


@pytest.mark.parametrize("status", [400, 401, 429, 500, 502, 503, 504, 529])
async def test_a_status_hits_its_model_only(sim: Simulated, status: int) -> None:
    await sim.break_it(model=MODEL, kind=str(status), retry_after=2.5)
    hit = await sim.chat()
    assert (hit.status_code, hit.headers["retry-after"]) == (status, "2.5")
    assert hit.json()["error"]["message"]
    assert (await sim.chat(model=OTHER)).status_code == 200


async def test_a_kind_may_be_a_bare_number(sim: Simulated) -> None:
    assert (await sim.break_it(kind=503)).status_code == 200
    assert (await sim.chat()).status_code == 503


async def test_a_count_ends_a_fault(sim: Simulated) -> None:
    await sim.break_it(kind="500", count=2)
    assert [(await sim.chat()).status_code for _ in range(3)] == [500, 500, 200]


async def test_garbage_is_no_json_with_status_200(sim: Simulated) -> None:
    await sim.break_it(kind="garbage")
    answer = await sim.chat()
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html")


async def test_truncated_json_comes_in_a_whole_body(sim: Simulated) -> None:
    whole = await sim.chat()
    await sim.break_it(kind="truncated")
    answer = await sim.chat()
    assert answer.status_code == 200
    assert answer.content == whole.content[: len(whole.content) // 2]


async def test_a_cut_connection_ends_the_body_early(sim: Simulated) -> None:
    await sim.break_it(kind="cut")
    with pytest.raises(httpx.RemoteProtocolError):
        await sim.chat()
    assert sim.ledger.models[MODEL].statuses == {"cut": 1}


async def test_a_model_that_is_down_resets_connections(sim: Simulated) -> None:
    await sim.break_it(kind="down", model=MODEL)
    with pytest.raises(httpx.TransportError):
        await sim.chat()
    assert (await sim.chat(model=OTHER)).status_code == 200
    assert (await sim.http.get("/v1/models")).status_code == 200


async def test_a_backend_that_is_down_still_answers_admin_requests(sim: Simulated) -> None:
    await sim.break_it(kind="down")
    for path in ("/healthz", "/v1/models"):
        with pytest.raises(httpx.TransportError):
            await sim.http.get(path)
    assert (await sim.http.delete("/admin/faults")).json() == {"ended": 1}
    assert (await sim.http.get("/healthz")).status_code == 200


async def test_a_hanging_request_is_in_flight_until_the_client_gives_up(sim: Simulated) -> None:
    await sim.break_it(kind="hang")
    hanging = asyncio.create_task(sim.chat())
    await until(lambda: sim.ledger.in_flight == 1)
    hanging.cancel()
    await until(lambda: sim.ledger.in_flight == 0)
    assert sim.ledger.models[MODEL].statuses == {"disconnected": 1}


async def test_a_hang_with_seconds_ends_in_a_reset(sim: Simulated) -> None:
    await sim.break_it(kind="hang", seconds=0.01)
    with pytest.raises(httpx.TransportError):
        await sim.chat()
    assert sim.ledger.models[MODEL].statuses == {"aborted": 1}


async def test_held_requests_are_answered_when_their_fault_ends(sim: Simulated) -> None:
    hold = (await sim.break_it(kind="hold", model=MODEL)).json()["id"]
    await sim.break_it(kind="500", model=MODEL)
    held = [asyncio.create_task(sim.chat(f"line {number}")) for number in range(3)]
    await until(lambda: sim.ledger.in_flight == 3)
    assert (await sim.chat(model=OTHER)).status_code == 200
    assert sim.ledger.models[MODEL].in_flight == 3
    await sim.http.delete(f"/admin/faults/{hold}")
    assert [answer.status_code for answer in await asyncio.gather(*held)] == [200, 200, 200]
    assert (await sim.chat()).status_code == 500
    assert sim.ledger.models[MODEL].statuses == {"200": 3, "500": 1}


async def test_a_held_request_whose_client_has_disconnected_is_not_answered(sim: Simulated) -> None:
    await sim.break_it(kind="hold")
    held = [asyncio.create_task(sim.chat(f"line {number}")) for number in range(2)]
    await until(lambda: sim.ledger.in_flight == 2)
    held[0].cancel()
    await until(lambda: sim.ledger.in_flight == 1)
    await sim.http.delete("/admin/faults")
    assert (await held[1]).status_code == 200
    assert sim.ledger.models[MODEL].statuses == {"disconnected": 1, "200": 1}


async def test_a_held_request_is_answered_when_the_time_of_its_fault_is_over(sim: Simulated) -> None:
    await sim.break_it(kind="hold", for_seconds=0.1)
    assert (await sim.chat()).status_code == 200


async def test_a_request_that_its_marker_holds_is_answered_when_all_faults_are_ended(sim: Simulated) -> None:
    other = (await sim.break_it(kind="hold", model=OTHER)).json()["id"]
    held = asyncio.create_task(sim.chat(user="sim:hold"))
    await until(lambda: sim.ledger.in_flight == 1)
    await sim.http.delete(f"/admin/faults/{other}")
    assert sim.ledger.in_flight == 1
    await sim.http.delete("/admin/faults")
    assert (await held).status_code == 200


async def test_a_slow_answer_is_an_answer(sim: Simulated) -> None:
    await sim.break_it(kind="slow", seconds=0.01)
    assert (await sim.chat()).status_code == 200


async def test_a_marker_affects_the_first_attempts_of_its_request(sim: Simulated) -> None:
    statuses = [(await sim.chat(user="sim:429=3*2 line-7")).status_code for _ in range(3)]
    assert statuses == [429, 429, 200]
    assert (await sim.chat()).status_code == 200
    assert [entry.user for entry in sim.ledger.entries] == ["sim:429=3*2 line-7", None]


async def test_a_marker_in_the_metadata_works_too(sim: Simulated) -> None:
    body = {"model": MODEL, "input": "x", "metadata": {"sim": "500"}}
    assert (await sim.http.post("/v1/responses", json=body)).status_code == 200
    body["metadata"] = {"sim": "sim:500"}
    assert (await sim.http.post("/v1/responses", json=body)).status_code == 500


async def test_an_unreadable_marker_is_reported(sim: Simulated) -> None:
    answer = await sim.chat(user="sim:explode!")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "user")


async def test_faults_are_listed_with_their_hits_and_end_one_by_one(sim: Simulated) -> None:
    first = (await sim.break_it(kind="500", model=MODEL)).json()["id"]
    await sim.break_it(kind="503", model=OTHER)
    await sim.chat()
    listed = (await sim.http.get("/admin/faults")).json()["faults"]
    assert [(fault["kind"], fault["hits"]) for fault in listed] == [("500", 1), ("503", 0)]
    assert (await sim.http.delete(f"/admin/faults/{first}")).json() == {"ended": 1}
    assert (await sim.http.delete(f"/admin/faults/{first}")).status_code == 404
    assert (await sim.chat()).status_code == 200


@pytest.mark.parametrize(
    "fault",
    [{"kind": "explode"}, {"kind": "200"}, {"kind": "500", "rate": 2}, {"kind": "500", "often": 1}, {}],
)
async def test_a_wrong_fault_is_refused(sim: Simulated, fault: dict[str, str | float]) -> None:
    assert (await sim.break_it(**fault)).status_code == 400
    assert (await sim.http.get("/admin/faults")).json() == {"faults": []}


async def test_faults_given_at_the_start_hold() -> None:
    fault = Fault("503", model=OTHER)
    async with simulated(SimulatorOptions(models=(MODEL, OTHER), faults=(fault,))) as sim:
        assert (await sim.chat()).status_code == 200
        assert (await sim.chat(model=OTHER)).status_code == 503


def test_the_rate_decides_by_body_and_attempt() -> None:
    faults = Faults([Fault("500", rate=0.3)])
    hits = [faults.fault_for(MODEL, number.to_bytes(16, "big"), 1) is not None for number in range(2_000)]
    assert 0.25 < sum(hits) / len(hits) < 0.35
    again = [faults.fault_for(MODEL, number.to_bytes(16, "big"), 1) is not None for number in range(2_000)]
    assert again == hits
    later = [faults.fault_for(MODEL, number.to_bytes(16, "big"), 2) is not None for number in range(2_000)]
    assert later != hits


def test_a_fault_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("batchwright.simulator.faults.time", SimpleNamespace(monotonic=lambda: now))
    faults = Faults([Fault("503", for_seconds=90)])
    now = 189.0
    assert faults.fault_for(MODEL, b"x", 1)
    now = 191.0
    assert faults.fault_for(MODEL, b"x", 1) is None
    assert faults.active() == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hang", Fault("hang")),
        ("slow=1.5", Fault("slow", seconds=1.5)),
        ("429=2*3@0.5", Fault("429", retry_after=2.0, count=3, rate=0.5)),
        ("500@.1", Fault("500", rate=0.1)),
    ],
)
def test_the_short_form_of_a_fault_is_parsed(text: str, fault: Fault) -> None:
    assert parse_short(text) == fault


@pytest.mark.parametrize("text", ["", "explode", "200", "500*", "slow=", "500@7"])
def test_a_wrong_short_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"KIND|kind|rate"):
        parse_short(text)


@pytest.mark.parametrize("marker", [None, "", "alice", "simulate:500"])
def test_an_ordinary_user_is_no_marker(marker: str | None) -> None:
    assert fault_from_marker(marker, b"x", 1) is None
