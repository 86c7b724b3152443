"""What the metrics say of a storage (S0-67)."""

import asyncio

import pytest

from batchwright.storage.base import ObjectMissing, StorageUnavailable
from batchwright.storage.observed import Component, ObservedStorage, Watch
from batchwright.storage.retries import Operation
from batchwright.telemetry.metrics import Metrics
from tests.fakes.storage import MemoryStorage

FAMILY = "batchwright_file_storage"


class House:
    def __init__(self) -> None:
        self.metrics, self.memory = Metrics(), MemoryStorage()
        self.watch = Watch(self.metrics, Component.WORKER)
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
def house() -> House:
    return House()


async def test_each_operation_is_counted_with_its_bytes(house: House) -> None:
    await house.storage.put("a", b"12345")
    async with house.storage.writer("b") as writer:
        await writer.write(b"123")
        await writer.write(memoryview(b"4567"))
    await house.storage.get("a", 1)
    assert [piece async for piece in house.storage.read("b")] == [b"1234567"]
    await house.storage.stat("a")
    assert [info.key async for info in house.storage.list("")] == ["a", "b"]
    await house.storage.delete("a")
    await house.storage.delete_prefix("")
    ends = {operation: house.ended(operation) for operation in ("store", "retrieve", "list", "delete")}
    assert ends == {
        "store": {"success": 2},
        "retrieve": {"success": 3},
        "list": {"success": 1},
        "delete": {"success": 2},
    }
    assert house.value("bytes_total", "store") == 12
    assert house.value("bytes_total", "retrieve") == 11
    assert house.value("operation_duration_seconds_count", "retrieve") == 3


async def test_a_missing_object_is_no_failure(house: House) -> None:
    with pytest.raises(ObjectMissing):
        await house.storage.get("a")
    assert house.ended("retrieve") == {"missing": 1}


async def test_what_failed_in_the_end_is_exhausted(house: House) -> None:
    house.memory.failing = StorageUnavailable("away")
    with pytest.raises(StorageUnavailable):
        await house.storage.put("a", b"x")
    with pytest.raises(StorageUnavailable):
        _ = [info async for info in house.storage.list("")]
    assert (house.ended("store"), house.ended("list")) == ({"exhausted": 1}, {"exhausted": 1})


async def test_a_repetition_is_counted_beside_its_operation(house: House) -> None:
    house.watch.repeated(Operation.STORE)
    await house.storage.put("a", b"x")
    assert house.ended("store") == {"retry": 1, "success": 1}


async def break_off(house: House) -> None:
    async with house.storage.writer("b"):
        raise ZeroDivisionError


async def test_what_the_caller_breaks_off_says_nothing_of_the_storage(house: House) -> None:
    await house.storage.put("a", b"x" * (3 << 20))
    reading = house.storage.read("a")
    async for _ in reading:
        break
    with pytest.raises(ZeroDivisionError):
        await break_off(house)
    assert house.ended("store") == {"success": 1}
    assert house.ended("retrieve") == {}


async def test_the_time_of_a_caller_is_not_the_storages(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: clock)
    async with house.storage.writer("a") as writer:
        clock += 100
        await writer.write(b"x" * (2 << 20))
        clock += 100
    async for _ in house.storage.read("a"):
        clock += 100
    assert house.value("operation_duration_seconds_sum", "store") == 0
    assert house.value("operation_duration_seconds_sum", "retrieve") == 0


async def test_the_time_of_the_storage_is_counted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: clock)

    class Slow(MemoryStorage):
        async def put(self, key: str, data: bytes) -> None:
            nonlocal clock
            clock += 2
            await asyncio.sleep(0)
            await super().put(key, data)

    await ObservedStorage(Slow(), house.watch).put("a", b"x")
    assert house.value("operation_duration_seconds_sum", "store") == 2
