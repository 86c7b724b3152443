"""Sends the progress of batches to clients as Server-Sent Events. One loop reads all followed batches from
the database.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import NamedTuple

from batchwright.api.client_limits.long_responses import LIFETIME_SECONDS
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import RETRY_AFTER_SECONDS, ApiError, rate_limited
from batchwright.api.schemas.shown_forecasts import FORECAST_AGE
from batchwright.api.services.batches.control import BatchControl
from batchwright.api.services.batches.shown_waiting_reasons import PolledQueues
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.api_objects.webhook_events import EventType
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.batches.batch_snapshots import BatchKey, BatchSnapshot
from batchwright.telemetry.outage_log import OutageLog

logger = logging.getLogger(__name__)

PROGRESS_EVENT = "batch.progress"
KEEP_ALIVE = b": keep-alive\n\n"
MAX_LISTENERS = 500
MAX_LISTENERS_PER_TENANT = 250
POLL_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 15.0
RETRY_MILLISECONDS = 2000  # time after which a browser connects again
_PAUSE_PER_POLL_TIME = 19  # ratio of pause to poll, so that 5 % of the time is polling
MAX_PAUSE_SECONDS = 10.0
_QUEUES_SECONDS = 5.0  # maximum age of the list of polled queues
# Clients that use Python's `splitlines` would take these characters for the end of a line.
_LINE_SEPARATORS = {each: f"\\u{ord(each):04x}" for each in "\x85\u2028\u2029"}
# These fields change with time alone, so a change of them makes no new event.
_COUNTDOWNS = {"x_batchwright": {"forecast": {"remaining_seconds_p50", "remaining_seconds_p90"}}}


class Event(NamedTuple):
    """The state of a batch, encoded as a Server-Sent Event.

    Attributes:
        id: digest of the state. Every API process computes the same id for the same state.
        encoded: the event as bytes.
        is_last: True if the batch has ended.
    """

    id: str
    encoded: bytes
    is_last: bool


def encode_event(batch: BatchObject) -> Event:
    """Return an event with the current state of a batch. The event's data is the complete batch object."""
    content = batch.model_dump_json(exclude=_COUNTDOWNS).encode()
    id = blake2b(content, digest_size=12).hexdigest()
    is_last = batch.status.is_terminal
    name = EventType.of_end(batch.status).value if is_last else PROGRESS_EVENT
    data = batch.model_dump_json()
    for separator, escaped in _LINE_SEPARATORS.items():
        data = data.replace(separator, escaped)
    # The id comes last, so that a client never has the id without the data if its connection breaks.
    text = f"event: {name}\nretry: {RETRY_MILLISECONDS}\ndata: {data}\nid: {id}\n\n"
    return Event(id, text.encode(), is_last)


class Topic:
    """A batch that clients follow: its latest event, and its listeners (the clients' event streams)."""

    def __init__(self, key: BatchKey, event: Event) -> None:
        self.key, self.event = key, event
        self.listeners: set[Listener] = set()
        self.source: object = None  # values from which the latest poll made an event; None before the first

    def publish(self, event: Event, source: object) -> None:
        """Send an event to all listeners (the clients' event streams). If the event has the same id as the
        latest event, send nothing.

        Args:
            event: event with the current state of the batch.
            source: values from which the event was made. They are stored. If the next poll reads the same
                values, it makes no event.
        """
        self.source = source
        if event.id != self.event.id:
            self.event = event
            for listener in self.listeners:
                listener.wake()

    def close(self) -> None:
        """End the streams of all listeners. Their clients may connect again."""
        for listener in self.listeners:
            listener.close()


class Listener:
    """The event stream of one client. A client that reads slowly does not get every event, but it always gets
    the latest event.
    """

    def __init__(self, topic: Topic, known: str | None) -> None:
        self._topic, self._sent = topic, known
        self._wake = asyncio.Event()
        self._closed = False

    def wake(self) -> None:
        self._wake.set()

    def close(self) -> None:
        """End the stream. An event that is being sent now is completed first."""
        self._closed = True
        self._wake.set()

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yield the latest event as bytes, unless the client already has it. Then yield each new event.

        If there is no event for `KEEP_ALIVE_SECONDS`, yield a comment, which keeps the connection open. The
        iteration ends after the batch's last event, after `close`, or after `LIFETIME_SECONDS`.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + LIFETIME_SECONDS
        while True:
            self._wake.clear()
            if self._closed or loop.time() >= until:
                return
            event = self._topic.event
            if event.id != self._sent:
                self._sent = event.id
                yield event.encoded
            if event.is_last:
                return
            try:
                async with asyncio.timeout(min(KEEP_ALIVE_SECONDS, until - loop.time())):
                    await self._wake.wait()
            except TimeoutError:
                if loop.time() < until:
                    yield KEEP_ALIVE


class BatchEvents:
    """The event streams of this process, and the loop that reads the followed batches from the database.

    When a batch gets its first listener (a client's event stream), the batch is read once. After that, one
    query regularly reads all batches that have listeners. Without listeners, no queries are sent.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._snapshots, self._clock = deps.database.batch_snapshots, deps.clock
        self._gauge = deps.metrics.event_streams
        self._control = BatchControl(deps)
        self._topics: dict[BatchKey, Topic] = {}
        self._listeners: Counter[str] = Counter()  # number of listeners by tenant
        self._polled: tuple[float, PolledQueues] | None = None
        self._stopping = deps.stopping
        self._stopping.on_set(self._close)

    async def topic(self, tenant: str, batch_id: str) -> Topic:
        """Return the topic of a batch: the object with the batch's latest event and its listeners.

        If no client follows the batch, or the batch has ended, read the batch from the database and return a
        new topic.

        Raises:
            ApiError: the tenant has no such batch (404).
        """
        key = BatchKey(tenant, batch_id)
        if key in self._topics:
            return self._topics[key]
        return Topic(key, encode_event(await self._control.get(tenant, batch_id)))

    @contextmanager
    def listener(self, topic: Topic, known: str | None) -> Generator[Listener]:
        """Context manager that yields a new listener: the event stream of one client. The listener counts
        towards the limits of listeners until the `with` block ends.

        Args:
            topic: the batch to listen to.
            known: id of the latest event that the client has; None if the client has no event.

        Raises:
            ApiError: the tenant or this process has too many listeners (429), or the process is stopping
                (503).
        """
        key = topic.key
        self._check(key.tenant)
        if not topic.event.is_last:  # an ended batch is not polled, so others must not share its event
            topic = self._topics.setdefault(key, topic)
        listener = Listener(topic, known)
        self._count(key.tenant, 1)
        topic.listeners.add(listener)
        try:
            yield listener
        finally:
            topic.listeners.discard(listener)
            self._count(key.tenant, -1)
            if not topic.listeners:
                self._drop(topic)

    async def run(self) -> None:
        """Poll all batches that have listeners, again and again, until an error is raised.

        The pause between two polls usually lasts `POLL_SECONDS`. After a slow poll it is longer, up to
        `MAX_PAUSE_SECONDS`, so that polls take at most about 5 % of the time. While the database is
        unavailable, polls continue, and the outage is logged once.

        After any other error, end all event streams, because they would get no new events, and raise the
        error. Clients then connect again and get the present state of their batch.
        """
        loop = asyncio.get_running_loop()  # its clock also times the pauses
        outages = OutageLog(logger, "watched batches cannot be read")
        spent = 0.0
        while True:
            await asyncio.sleep(max(POLL_SECONDS, min(spent * _PAUSE_PER_POLL_TIME, MAX_PAUSE_SECONDS)))
            began, spent = loop.time(), 0.0
            try:
                with outages.suppress(DatabaseUnavailable):
                    await self.poll()
                    spent = loop.time() - began
            except Exception:
                self._close()
                raise

    async def poll(self) -> None:
        """Read each batch that has listeners. If a batch has changed, send an event to its listeners.

        If a batch was deleted, or if its event cannot be made, the streams of this batch end. The streams of
        other batches continue.

        Raises:
            DatabaseUnavailable: the database does not respond.
        """
        topics = dict(self._topics)
        if not topics:
            return
        now = self._clock()
        snapshots = await self._snapshots.read(topics, now)
        polled = await self._polled_queues()
        for key, topic in topics.items():
            snapshot = snapshots.get(key)
            if snapshot is None:  # the batch was deleted
                self._drop(topic)
                topic.close()
                continue
            source = (
                snapshot,
                polled,
                _forecast_age(snapshot, now) > FORECAST_AGE,
                _starts_later(snapshot, now),
            )
            if source != topic.source:
                try:
                    event = encode_event(self._control.shown(snapshot.row, snapshot.waiting, polled))
                except Exception:
                    logger.exception("the event of a batch cannot be made", extra={"batch_id": key.batch_id})
                    self._drop(topic)
                    topic.close()
                else:
                    if event.is_last:
                        self._drop(topic)
                    topic.publish(event, source)

    def _drop(self, topic: Topic) -> None:
        """Stop polling the batch of a topic. If a client follows this batch again, it gets a new topic."""
        if self._topics.get(topic.key) is topic:
            del self._topics[topic.key]
        if not self._topics:
            self._polled = None

    def _close(self) -> None:
        """End all event streams now. Their clients then connect again."""
        for topic in self._topics.values():
            topic.close()

    async def _polled_queues(self) -> PolledQueues:
        now = asyncio.get_running_loop().time()
        if self._polled is None or now - self._polled[0] >= _QUEUES_SECONDS:
            self._polled = now, await self._control.polled_queues()
        return self._polled[1]

    def _check(self, tenant: str) -> None:
        if self._stopping.is_set:
            headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
            raise ApiError(503, "This API process is stopping. Connect again.", headers=headers)
        advice = "Close one of them, or poll the batch."
        if self._listeners[tenant] >= MAX_LISTENERS_PER_TENANT:
            message = f"Too many event streams: a tenant may have {MAX_LISTENERS_PER_TENANT}. {advice}"
            raise rate_limited(message, MAX_LISTENERS_PER_TENANT)
        if self._listeners.total() >= MAX_LISTENERS:
            message = f"Too many event streams: this process serves {MAX_LISTENERS}. Poll the batch instead."
            raise rate_limited(message, MAX_LISTENERS)

    def _count(self, tenant: str, change: int) -> None:
        self._listeners[tenant] += change
        if not self._listeners[tenant]:
            del self._listeners[tenant]
        self._gauge.set(self._listeners.total())


def _forecast_age(snapshot: BatchSnapshot, now: datetime) -> timedelta:
    forecast = snapshot.row.forecast
    return timedelta() if forecast is None else now - forecast.made_at


def _starts_later(snapshot: BatchSnapshot, now: datetime) -> bool:
    start_at = snapshot.row.order.start_at
    return start_at is not None and start_at > now
