"""The simulator's ledger of received requests, its prefix cache, and its latencies."""

import asyncio
import statistics
from collections.abc import AsyncGenerator
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.simulator.backend import SimulatorOptions
from batchwright.simulator.latency import Latency, parse_override
from batchwright.simulator.ledger import Ledger
from batchwright.simulator.prefix_cache import BLOCK_TOKENS, PrefixCache, token_count
from tests.unit.simulator.simulators import MODEL, OTHER, Simulated, simulated


@pytest.fixture
async def sim() -> AsyncGenerator[Simulated]:
    async with simulated() as running:
        yield running


async def test_requests_with_one_request_id_are_one_entry(sim: Simulated) -> None:
    await sim.chat("one", request_id="batch_req_1")
    await sim.chat("one", request_id="batch_req_1")
    await sim.chat("two", request_id="batch_req_2")
    report = sim.ledger
    assert {entry.key: entry.requests for entry in report.entries} == {"batch_req_1": 2, "batch_req_2": 1}
    assert (report.requests, report.completed, report.keys, report.repeated_keys) == (3, 3, 2, 1)


async def test_without_a_request_id_the_body_is_the_key(sim: Simulated) -> None:
    await sim.chat("one")
    await sim.chat("one")
    [entry] = sim.ledger.entries
    assert (entry.key, entry.requests) == (entry.body, 2)


async def test_only_answers_count_as_answered(sim: Simulated) -> None:
    await sim.chat(user="sim:500*1")
    [entry] = sim.ledger.entries
    assert (entry.completed, entry.first_completed_at, entry.statuses) == (0, None, {"500": 1})
    await sim.chat(user="sim:500*1")
    [entry] = sim.ledger.entries
    assert (entry.requests, entry.completed, entry.statuses) == (2, 1, {"500": 1, "200": 1})
    assert entry.first_request_at <= entry.last_request_at <= (entry.first_completed_at or 0)


async def test_the_maximum_in_flight_is_recorded_per_model_and_in_total() -> None:
    options = SimulatorOptions(models=(MODEL, OTHER), latency=Latency(latency_ms=50))
    async with simulated(options) as sim:
        await asyncio.gather(*(sim.chat(str(n), model=MODEL if n < 3 else OTHER) for n in range(5)))
        report = sim.ledger
        assert (report.in_flight, report.max_in_flight) == (0, 5)
        assert {name: totals.max_in_flight for name, totals in report.models.items()} == {MODEL: 3, OTHER: 2}


async def test_entries_can_be_chosen(sim: Simulated) -> None:
    await sim.chat("one")
    await sim.chat("one")
    await sim.chat("two", model=OTHER)
    for query, models in [
        ("", [MODEL, OTHER]),
        ("?min_requests=2", [MODEL]),
        (f"?model={OTHER}", [OTHER]),
        ("?entries=false", []),
    ]:
        report = (await sim.http.get(f"/admin/ledger{query}")).json()
        assert [entry["model"] for entry in report["entries"]] == models
        assert report["requests"] == 3
    assert (await sim.http.get("/admin/ledger?min_requests=many")).status_code == 400


async def test_a_reset_clears_everything_except_requests_in_flight(sim: Simulated) -> None:
    ledger = Ledger()
    first = ledger.begin("1", MODEL, "b", None)
    ledger.end(first, MODEL, "200")
    second = ledger.begin("2", MODEL, "b", None)
    ledger.reset()
    report = ledger.report()
    assert (report.requests, report.in_flight, report.max_in_flight, report.entries) == (0, 1, 1, [])
    ledger.end(second, MODEL, "200")
    assert ledger.report().in_flight == 0
    assert (await sim.http.delete("/admin/ledger")).json() == {"reset": True}


def test_tokens_spent_are_summed_per_model() -> None:
    ledger = Ledger(keep_entries=False)
    ledger.begin("1", MODEL, "b", None)
    report = ledger.report()
    assert (report.requests, report.entries) == (1, [])


def test_a_full_cache_evicts_the_oldest_blocks() -> None:
    cache = PrefixCache(budget_tokens=4 * BLOCK_TOKENS)
    first, second = b"a" * 128, b"b" * 128
    assert [cache.cached_tokens(prompt) for prompt in (first, second, first, second)] == [0, 0, 32, 32]
    assert cache.cached_tokens(b"c" * 128) == 0
    assert cache.cached_tokens(second) == 32
    assert cache.cached_tokens(first) == 0


def test_the_end_of_a_prompt_is_evicted_before_its_beginning() -> None:
    cache = PrefixCache(budget_tokens=3 * BLOCK_TOKENS)
    cache.cached_tokens(b"a" * 128)
    cache.cached_tokens(b"b" * 128)
    assert cache.cached_tokens(b"a" * 128) == 16


def test_a_cache_without_a_budget_caches_nothing() -> None:
    cache = PrefixCache(0)
    assert [cache.cached_tokens(b"a" * 128) for _ in range(2)] == [0, 0]


@given(st.lists(st.binary(max_size=400), max_size=20), st.integers(0, 400))
def test_no_more_tokens_are_cached_than_the_prompt_has(prompts: list[bytes], budget: int) -> None:
    cache = PrefixCache(budget)
    for prompt in prompts:
        assert 0 <= cache.cached_tokens(prompt) <= min(token_count(prompt), budget)


def test_latency_adds_up() -> None:
    latency = Latency(latency_ms=100, token_ms=5, prompt_token_ms=0.5)
    assert latency.seconds(uncached=200, output=10, digest=b"1234") == pytest.approx(0.25)


def test_jitter_is_lognormal_and_repeatable() -> None:
    latency = Latency(latency_ms=100, jitter=0.5)
    times = [
        latency.seconds(uncached=0, output=0, digest=blake2b(bytes([n % 256, n // 256])).digest())
        for n in range(2_000)
    ]
    assert times == [
        latency.seconds(uncached=0, output=0, digest=blake2b(bytes([n % 256, n // 256])).digest())
        for n in range(2_000)
    ]
    assert statistics.median(times) == pytest.approx(0.1, rel=0.05)
    assert statistics.mean(times) == pytest.approx(0.1133, rel=0.05)


def test_a_model_may_have_its_own_latency() -> None:
    default = Latency(latency_ms=10, token_ms=1)
    name, own = parse_override("org/model:7b:latency_ms=200,jitter=0.3", default)
    assert (name, own) == ("org/model:7b", Latency(latency_ms=200, jitter=0.3, token_ms=1))


@pytest.mark.parametrize("text", ["model", "model:", "model:speed=1", "model:latency_ms=fast"])
def test_a_wrong_latency_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"MODEL:FIELD|could not convert"):
        parse_override(text, Latency())
