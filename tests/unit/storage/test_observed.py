"""The metrics that a storage counts about its operations."""

import asyncio

import pytest

from batchwright.storage.base import ObjectMissing, StorageUnavailable
from batchwright.storage.observed import (
    ObservedStorage,
    StorageComponent,
    StorageInstrumentation,
    for_component,
)
from batchwright.storage.retries import StorageOperation
from batchwright.telemetry.metrics import Metrics
from tests.fakes.storage import MemoryStorage

FAMILY = "batchwright_file_storage"


class ObservedStorageFixture:
    def __init__(self) -> None:
        self.metrics, self.memory = Metrics(), MemoryStorage()
        self.watch = StorageInstrumentation(self.metrics, StorageComponent.WORKER)
        self.storage = ObservedStorage(self.memory, self.watch)

    def value(self, name: str, operation: str, **labels: str) -> float:
        labels |= {"operation": operation, "component": "processor"}
        return self.metrics.registry.get_sample_value(f"{FAMILY}_{name}", labels) or 0

    def ended(self, operation: str) -> dict[str, float]:
        counts = {
            status: self.value("operations_total", operation, status=status)
            for status in ("success", "missing", "retry", "exhausted")
        }
        return {status: count for status, count in counts.items() if count}


@pytest.fixture
def observed() -> ObservedStorageFixture:
    return ObservedStorageFixture()


async def test_each_operation_is_counted_with_its_bytes(observed: ObservedStorageFixture) -> None:
    await observed.storage.put("a", b"12345")
    async with observed.storage.writer("b") as writer:
        await writer.write(b"123")
        await writer.write(memoryview(b"4567"))
    await observed.storage.get("a", 1)
    assert [piece async for piece in observed.storage.read("b")] == [b"1234567"]
    await observed.storage.stat("a")
    assert [info.key async for info in observed.storage.list("")] == ["a", "b"]
    await observed.storage.delete("a")
    await observed.storage.delete_prefix("")
    ends = {operation: observed.ended(operation) for operation in ("store", "retrieve", "list", "delete")}
    assert ends == {
        "store": {"success": 2},
        "retrieve": {"success": 3},
        "list": {"success": 1},
        "delete": {"success": 2},
    }
    assert observed.value("bytes_total", "store") == 12
    assert observed.value("bytes_total", "retrieve") == 11
    assert observed.value("operation_duration_seconds_count", "retrieve") == 3


async def test_a_missing_object_is_no_failure(observed: ObservedStorageFixture) -> None:
    with pytest.raises(ObjectMissing):
        await observed.storage.get("a")
    assert observed.ended("retrieve") == {"missing": 1}


async def test_operations_are_counted_by_the_part_of_the_product_that_uses_the_storage(
    observed: ObservedStorageFixture,
) -> None:
    await observed.storage.put("a", b"12345")
    await for_component(observed.storage, StorageComponent.COLLECTOR).delete("a")
    with pytest.raises(ObjectMissing):
        await for_component(observed.storage, StorageComponent.API).stat("a")
    counted = {
        sample.labels["component"]: (sample.labels["operation"], sample.labels["status"])
        for family in observed.metrics.registry.collect()
        if family.name == f"{FAMILY}_operations"
        for sample in family.samples
        if sample.name.endswith("_total")
    }
    assert counted == {
        "processor": ("store", "success"),
        "garbage-collector": ("delete", "success"),
        "apiserver": ("retrieve", "missing"),
    }


async def test_a_final_failure_is_counted_as_exhausted(observed: ObservedStorageFixture) -> None:
    observed.memory.failing = StorageUnavailable("away")
    with pytest.raises(StorageUnavailable):
        await observed.storage.put("a", b"x")
    with pytest.raises(StorageUnavailable):
        _ = [info async for info in observed.storage.list("")]
    assert (observed.ended("store"), observed.ended("list")) == ({"exhausted": 1}, {"exhausted": 1})


async def test_a_retry_is_counted_in_addition_to_its_operation(observed: ObservedStorageFixture) -> None:
    observed.watch.count_retry(StorageOperation.STORE)
    await observed.storage.put("a", b"x")
    assert observed.ended("store") == {"retry": 1, "success": 1}


async def break_off(observed: ObservedStorageFixture) -> None:
    async with observed.storage.writer("b"):
        raise ZeroDivisionError


async def test_an_operation_aborted_by_the_caller_is_not_a_storage_failure(
    observed: ObservedStorageFixture,
) -> None:
    await observed.storage.put("a", b"x" * (3 << 20))
    reading = observed.storage.read("a")
    async for _ in reading:
        break
    with pytest.raises(ZeroDivisionError):
        await break_off(observed)
    assert observed.ended("store") == {"success": 1}
    assert observed.ended("retrieve") == {}


async def test_time_spent_in_the_caller_is_not_counted(
    observed: ObservedStorageFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: clock)
    async with observed.storage.writer("a") as writer:
        clock += 100
        await writer.write(b"x" * (2 << 20))
        clock += 100
    async for _ in observed.storage.read("a"):
        clock += 100
    assert observed.value("operation_duration_seconds_sum", "store") == 0
    assert observed.value("operation_duration_seconds_sum", "retrieve") == 0


async def test_time_spent_in_storage_is_counted(
    observed: ObservedStorageFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: clock)

    class Slow(MemoryStorage):
        async def put(self, key: str, data: bytes) -> None:
            nonlocal clock
            clock += 2
            await asyncio.sleep(0)
            await super().put(key, data)

    await ObservedStorage(Slow(), observed.watch).put("a", b"x")
    assert observed.value("operation_duration_seconds_sum", "store") == 2
