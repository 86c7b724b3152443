"""Jobs of the simulator: accepted, polled, failing, forgotten, cancelled, and reported by callback."""

import asyncio

import httpx

from batchwright.simulator.backend import SimulatorOptions
from batchwright.simulator.exchange import HttpExchange, HttpResponse
from batchwright.simulator.latency import Latency
from tests.unit.simulator.simulators import CHAT, MODEL, Simulated, serving, simulated, until


async def submit(
    simulator: Simulated, text: str = "hello", *, user: str = "", **headers: str
) -> httpx.Response:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        **({"user": user} if user else {}),
    }
    return await simulator.http.post(f"/jobs{CHAT}", json=body, headers=headers)


async def status_of(simulator: Simulated, answer: httpx.Response) -> httpx.Response:
    return await simulator.http.get(f"/jobs/status/{answer.json()['job_id']}")


async def test_a_job_is_accepted_and_its_result_is_the_response_to_the_request() -> None:
    async with simulated() as simulator:
        taken = await submit(simulator)
        assert (taken.status_code, taken.json()["status"]) == (202, "processing")
        found = (await status_of(simulator, taken)).json()
        assert found["status"] == "completed"
        assert found["result"] == (await simulator.chat()).json()


async def test_a_repeated_idempotency_key_starts_no_second_job() -> None:
    async with simulated() as simulator:
        key = {"idempotency-key": "k", "x-request-id": "r"}
        first, second = await submit(simulator, **key), await submit(simulator, **key)
        assert first.json()["job_id"] == second.json()["job_id"]
        ledger = simulator.ledger
        assert (ledger.requests, ledger.jobs.submitted, ledger.jobs.resubmitted) == (1, 1, 1)


async def test_jobs_fail_hang_and_are_forgotten_as_faults_say() -> None:
    async with simulated() as simulator:
        failed = await status_of(simulator, await submit(simulator, user="sim:fail"))
        assert failed.json()["status"] == "failed"
        hanging = await status_of(simulator, await submit(simulator, user="sim:hang"))
        assert hanging.json()["status"] == "processing"
        refused = await submit(simulator, user="sim:503")
        assert refused.status_code == 503
        assert (await simulator.http.get("/jobs/status/none")).status_code == 404


async def test_a_job_whose_response_is_cut_becomes_unknown() -> None:
    async with simulated(SimulatorOptions(models=(MODEL,), latency=Latency(20))) as simulator:
        taken = await submit(simulator, user="sim:cut")
        assert taken.json()["job_id"]
        async with asyncio.timeout(120):
            while (await status_of(simulator, taken)).status_code != 404:
                await asyncio.sleep(0)
        assert simulator.ledger.in_flight == 0


async def test_a_cancelled_job_ends() -> None:
    async with simulated(SimulatorOptions(models=(MODEL,), latency=Latency(60_000))) as simulator:
        taken = await submit(simulator)
        answer = await simulator.http.post(f"/jobs/cancel/{taken.json()['job_id']}")
        assert answer.json()["status"] == "cancelled"
        assert simulator.ledger.in_flight == 0
        assert simulator.ledger.jobs.cancelled == 1


async def test_the_callback_of_a_job_is_repeated_until_accepted() -> None:
    callbacks: list[bytes] = []

    def receiver(exchange: HttpExchange) -> None:
        callbacks.append(exchange.request.body)
        exchange.respond(HttpResponse(200 if len(callbacks) > 1 else 503, b"{}"))

    async with serving(receiver) as url, simulated() as simulator:
        await submit(simulator, **{"x-callback-url": f"{url}/hook"})
        async with asyncio.timeout(120):
            while not simulator.ledger.jobs.callbacks_sent:
                await asyncio.sleep(0.01)
    assert len(callbacks) == 2
    assert callbacks[0] == callbacks[1]
    assert b'"status":"completed"' in callbacks[0]


async def test_models_are_listed_below_jobs_too() -> None:
    async with simulated() as simulator:
        assert (await simulator.http.get("/jobs/v1/models")).json() == (
            await simulator.http.get("/v1/models")
        ).json()
        await until(lambda: simulator.ledger.in_flight == 0)
