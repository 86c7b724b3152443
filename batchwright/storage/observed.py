"""A storage that records metrics and traces of its operations: number, duration, bytes and retries."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from enum import StrEnum
from io import FileIO
from typing import TypeVar

from batchwright.storage.base import (
    DatedObject,
    ObjectInfo,
    ObjectMissing,
    ObjectWriter,
    Storage,
    StorageError,
)
from batchwright.storage.retries import StorageOperation
from batchwright.telemetry import tracing
from batchwright.telemetry.metrics import Metrics

T = TypeVar("T")


class StorageComponent(StrEnum):
    """Parts of the product that use the storage. The label `component` of metrics has these values."""

    API = "apiserver"
    WORKER = "processor"
    COLLECTOR = "garbage-collector"


class OperationStatus(StrEnum):
    SUCCESS = "success"
    MISSING = "missing"  # no such object, which is not a failure
    RETRY = "retry"  # an attempt that failed and was repeated
    EXHAUSTED = "exhausted"  # an operation that failed for good


class Stopwatch:
    """A stopwatch for the time that the storage works on an operation.

    The stopwatch is running when it is created. The time of a block `with stopwatch.paused()` is not counted.
    Use such a block for the time in which the storage waits for the code that uses it.
    """

    def __init__(self) -> None:
        self._before, self._since = 0.0, time.perf_counter()

    @property
    def seconds(self) -> float:
        return self._before + time.perf_counter() - self._since

    @contextmanager
    def paused(self) -> Generator[None]:
        self._before = self.seconds
        try:
            yield
        finally:
            self._since = time.perf_counter()

    @contextmanager
    def running(self) -> Generator[None]:
        """Context manager for use inside a `paused` block. The time of the inner block is counted."""
        since = time.perf_counter()
        try:
            yield
        finally:
            self._before += time.perf_counter() - since


class StorageInstrumentation:
    """A recorder of metrics and trace spans for the storage operations of one component (part of the
    product).
    """

    def __init__(self, metrics: Metrics, component: StorageComponent) -> None:
        self._metrics, self._component = metrics, component

    def for_component(self, component: StorageComponent) -> "StorageInstrumentation":
        return StorageInstrumentation(self._metrics, component)

    @contextmanager
    def operation(self, operation: StorageOperation, key: str = "") -> Generator[Stopwatch]:
        """Context manager that counts a storage operation and records its trace span.

        Yields a running stopwatch for the duration of the operation. The result that is counted depends on
        the end of the block:

        - No exception: success.
        - ObjectMissing: a missing object.
        - Another StorageError: a failure.
        - Another exception, or a cancellation: nothing is counted.

        `key` is the object's key or a prefix of keys, for the trace.
        """
        stopwatch = Stopwatch()
        with self._span(operation, key):
            try:
                yield stopwatch
            except ObjectMissing:
                self._ended(operation, OperationStatus.MISSING, stopwatch)
                raise
            except StorageError:
                self._ended(operation, OperationStatus.EXHAUSTED, stopwatch)
                raise
            self._ended(operation, OperationStatus.SUCCESS, stopwatch)

    def count_bytes(self, operation: StorageOperation, size: int) -> None:
        self._metrics.storage_bytes.labels(operation, self._component).inc(size)

    def count_retry(self, operation: StorageOperation) -> None:
        self._metrics.storage_operations.labels(operation, self._component, OperationStatus.RETRY).inc()

    @contextmanager
    def _span(self, operation: StorageOperation, key: str) -> Generator[None]:
        spans = tracing.spans()
        span = spans.storage_operation(operation, self._component, key) if spans else None
        if spans is None or span is None:
            yield
            return
        try:
            yield
        except ObjectMissing:
            span.set_attribute("batchwright.storage.missing", True)
            raise
        except StorageError as error:
            spans.record_error(error, span)
            raise
        finally:
            span.end()

    def _ended(self, operation: StorageOperation, status: OperationStatus, stopwatch: Stopwatch) -> None:
        self._metrics.storage_operations.labels(operation, self._component, status).inc()
        self._metrics.storage_seconds.labels(operation, self._component).observe(stopwatch.seconds)


class _ObservedWriter:
    def __init__(
        self, writer: ObjectWriter, instrumentation: StorageInstrumentation, stopwatch: Stopwatch
    ) -> None:
        self._writer, self._instrumentation, self._stopwatch = writer, instrumentation, stopwatch

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        with self._stopwatch.running():
            await self._writer.write(data)
        self._instrumentation.count_bytes(StorageOperation.STORE, len(data))


@asynccontextmanager
async def _closing(items: AsyncIterator[T]) -> AsyncGenerator[AsyncIterator[T], None]:
    """Context manager that closes an iterator at the end of its block, even if not all items were read."""
    try:
        yield items
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


def for_component(storage: Storage, component: StorageComponent) -> Storage:
    """Return a storage object for the same data. Its operations are counted in the metrics of `component`.

    If `storage` is not an ObservedStorage, return `storage` unchanged. No metrics are then recorded.
    """
    return storage.for_component(component) if isinstance(storage, ObservedStorage) else storage


class ObservedStorage(Storage):
    """Storage that passes each operation to the storage `inner`, and records metrics and a trace span."""

    def __init__(self, inner: Storage, instrumentation: StorageInstrumentation) -> None:
        self._inner, self._instrumentation = inner, instrumentation

    def for_component(self, component: StorageComponent) -> "ObservedStorage":
        return ObservedStorage(self._inner, self._instrumentation.for_component(component))

    @asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[_ObservedWriter, None]:
        with self._instrumentation.operation(StorageOperation.STORE, key) as stopwatch:
            async with self._inner.writer(key) as writer:
                with stopwatch.paused():
                    yield _ObservedWriter(writer, self._instrumentation, stopwatch)

    async def put(self, key: str, data: bytes) -> None:
        with self._instrumentation.operation(StorageOperation.STORE, key):
            await self._inner.put(key, data)
        self._instrumentation.count_bytes(StorageOperation.STORE, len(data))

    async def read(self, key: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        with self._instrumentation.operation(StorageOperation.RETRIEVE, key) as stopwatch:
            async with _closing(self._inner.read(key, start, length)) as pieces:
                async for piece in pieces:
                    self._instrumentation.count_bytes(StorageOperation.RETRIEVE, len(piece))
                    with stopwatch.paused():
                        yield piece

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        with self._instrumentation.operation(StorageOperation.RETRIEVE, key):
            data = await self._inner.get(key, start, length)
        self._instrumentation.count_bytes(StorageOperation.RETRIEVE, len(data))
        return data

    async def open_file(self, key: str) -> FileIO | None:
        return await self._inner.open_file(key)

    async def stat(self, key: str) -> ObjectInfo:
        with self._instrumentation.operation(StorageOperation.RETRIEVE, key):
            return await self._inner.stat(key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        with self._instrumentation.operation(StorageOperation.LIST, prefix) as stopwatch:
            async with _closing(self._inner.list(prefix)) as found:
                async for info in found:
                    with stopwatch.paused():
                        yield info

    async def inventory(self, prefix: str, after: str = "") -> AsyncIterator[DatedObject]:
        with self._instrumentation.operation(StorageOperation.LIST, prefix) as stopwatch:
            async with _closing(self._inner.inventory(prefix, after)) as found:
                async for dated in found:
                    with stopwatch.paused():
                        yield dated

    async def delete(self, key: str) -> None:
        with self._instrumentation.operation(StorageOperation.DELETE, key):
            await self._inner.delete(key)

    async def delete_prefix(self, prefix: str) -> int:
        with self._instrumentation.operation(StorageOperation.DELETE, prefix):
            return await self._inner.delete_prefix(prefix)

    async def check(self) -> None:
        await self._inner.check()

    async def sweep(self, older_than: timedelta) -> int:
        with self._instrumentation.operation(StorageOperation.DELETE):
            return await self._inner.sweep(older_than)
