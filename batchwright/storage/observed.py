"""What a process's storage does, counted: operations, their time, bytes and repetitions (S0-67)."""

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
from batchwright.storage.retries import Operation
from batchwright.telemetry import tracing
from batchwright.telemetry.metrics import Metrics

T = TypeVar("T")


class Component(StrEnum):
    """Whose storage it is."""

    API = "apiserver"
    WORKER = "processor"
    COLLECTOR = "garbage-collector"


class Status(StrEnum):
    SUCCESS = "success"
    MISSING = "missing"  # no such object: an answer, not a failure
    RETRY = "retry"  # a try that failed and was repeated
    EXHAUSTED = "exhausted"  # an operation that failed in the end


class Stopwatch:
    """The storage's own time: it stands still while the caller works."""

    def __init__(self) -> None:
        self._before, self._since = 0.0, time.perf_counter()

    @property
    def seconds(self) -> float:
        return self._before + time.perf_counter() - self._since

    @contextmanager
    def stopped(self) -> Generator[None]:
        self._before = self.seconds
        try:
            yield
        finally:
            self._since = time.perf_counter()

    @contextmanager
    def running(self) -> Generator[None]:
        """Inside `stopped`."""
        since = time.perf_counter()
        try:
            yield
        finally:
            self._before += time.perf_counter() - since


class Watch:
    """Counts for one component, and traces what it does (S0-51)."""

    def __init__(self, metrics: Metrics, component: Component) -> None:
        self._metrics, self._component = metrics, component

    def seen_as(self, component: Component) -> "Watch":
        return Watch(self._metrics, component)

    @contextmanager
    def operation(self, operation: Operation, key: str = "") -> Generator[Stopwatch]:
        """Counts it unless the caller breaks it off: that says nothing of the storage."""
        watch = Stopwatch()
        with self._span(operation, key):
            try:
                yield watch
            except ObjectMissing:
                self._ended(operation, Status.MISSING, watch)
                raise
            except StorageError:
                self._ended(operation, Status.EXHAUSTED, watch)
                raise
            self._ended(operation, Status.SUCCESS, watch)

    def moved(self, operation: Operation, size: int) -> None:
        self._metrics.storage_bytes.labels(operation, self._component).inc(size)

    def repeated(self, operation: Operation) -> None:
        self._metrics.storage_operations.labels(operation, self._component, Status.RETRY).inc()

    @contextmanager
    def _span(self, operation: Operation, key: str) -> Generator[None]:
        spans = tracing.spans()
        span = spans.storage(operation, self._component, key) if spans else None
        if spans is None or span is None:
            yield
            return
        try:
            yield
        except ObjectMissing:
            span.set_attribute("batchwright.storage.missing", True)
            raise
        except StorageError as error:
            spans.failed(error, span)
            raise
        finally:
            span.end()

    def _ended(self, operation: Operation, status: Status, watch: Stopwatch) -> None:
        self._metrics.storage_operations.labels(operation, self._component, status).inc()
        self._metrics.storage_seconds.labels(operation, self._component).observe(watch.seconds)


class _Writer:
    def __init__(self, writer: ObjectWriter, watch: Watch, stopwatch: Stopwatch) -> None:
        self._writer, self._watch, self._stopwatch = writer, watch, stopwatch

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        with self._stopwatch.running():
            await self._writer.write(data)
        self._watch.moved(Operation.STORE, len(data))


@asynccontextmanager
async def _closing(items: AsyncIterator[T]) -> AsyncGenerator[AsyncIterator[T], None]:
    """A reader that is left early gives its connection back now, not when it is collected."""
    try:
        yield items
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


def seen_as(storage: Storage, component: Component) -> Storage:
    """The same storage, used by another component of the process; one that nobody watches is itself."""
    return storage.seen_as(component) if isinstance(storage, ObservedStorage) else storage


class ObservedStorage(Storage):
    """The same storage, watched."""

    def __init__(self, inner: Storage, watch: Watch) -> None:
        self._inner, self._watch = inner, watch

    def seen_as(self, component: Component) -> "ObservedStorage":
        return ObservedStorage(self._inner, self._watch.seen_as(component))

    @asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[_Writer, None]:
        with self._watch.operation(Operation.STORE, key) as stopwatch:
            async with self._inner.writer(key) as writer:
                with stopwatch.stopped():
                    yield _Writer(writer, self._watch, stopwatch)

    async def put(self, key: str, data: bytes) -> None:
        with self._watch.operation(Operation.STORE, key):
            await self._inner.put(key, data)
        self._watch.moved(Operation.STORE, len(data))

    async def read(self, key: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        with self._watch.operation(Operation.RETRIEVE, key) as stopwatch:
            async with _closing(self._inner.read(key, start, length)) as pieces:
                async for piece in pieces:
                    self._watch.moved(Operation.RETRIEVE, len(piece))
                    with stopwatch.stopped():
                        yield piece

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        with self._watch.operation(Operation.RETRIEVE, key):
            data = await self._inner.get(key, start, length)
        self._watch.moved(Operation.RETRIEVE, len(data))
        return data

    async def opened(self, key: str) -> FileIO | None:
        return await self._inner.opened(key)

    async def stat(self, key: str) -> ObjectInfo:
        with self._watch.operation(Operation.RETRIEVE, key):
            return await self._inner.stat(key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        with self._watch.operation(Operation.LIST, prefix) as stopwatch:
            async with _closing(self._inner.list(prefix)) as found:
                async for info in found:
                    with stopwatch.stopped():
                        yield info

    async def inventory(self, prefix: str, after: str = "") -> AsyncIterator[DatedObject]:
        with self._watch.operation(Operation.LIST, prefix) as stopwatch:
            async with _closing(self._inner.inventory(prefix, after)) as found:
                async for dated in found:
                    with stopwatch.stopped():
                        yield dated

    async def delete(self, key: str) -> None:
        with self._watch.operation(Operation.DELETE, key):
            await self._inner.delete(key)

    async def delete_prefix(self, prefix: str) -> int:
        with self._watch.operation(Operation.DELETE, prefix):
            return await self._inner.delete_prefix(prefix)

    async def check(self) -> None:
        await self._inner.check()

    async def sweep(self, older_than: timedelta) -> int:
        with self._watch.operation(Operation.DELETE):
            return await self._inner.sweep(older_than)
