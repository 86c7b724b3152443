"""Table of callbacks: HTTP requests with which backends report that a job has ended.

A job is a request that a backend accepts immediately and answers later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from batchwright.database.pool import ConnectionPool
from batchwright.database.sql import queries


class ReceivedCallback(NamedTuple):
    """A callback: an HTTP request with which a backend has reported the end of a job.

    A job is a request that the backend accepts immediately and answers later.

    `size` is the length of the received body in bytes. `body` is None if the body was too large to store.
    """

    id: str
    size: int
    body: bytes | None


class ReceivedCallbacks(NamedTuple):
    """The result of `CallbacksTable.get`.

    `has_more` is True if callbacks were left out because of the argument `max_bytes`.
    """

    callbacks: list[ReceivedCallback]
    has_more: bool


class CallbacksTable(Protocol):
    """Callbacks: requests with which backends have reported the end of a job.

    A job is a request that a backend accepts immediately and answers later. Each callback has an id. If a
    callback with the same id was accepted before, the new callback is refused.
    """

    async def accept(self, id: str, body: bytes | None, size: int, expires_at: datetime) -> bool:
        """Store a callback (a backend's request that reports the end of a job), and return True.

        If the id was used before, or if `expires_at` has passed, store nothing and return False.

        Args:
            id: id of the callback, from the token in its URL.
            body: body of the callback; None if it is too large to store.
            size: length of the body in bytes, even if it is not stored.
            expires_at: time at which the URL expires. After this time, the callback may be deleted.
        """
        ...

    async def is_received(self, id: str) -> bool:
        """Return True if a callback with this id was accepted, even if its body was cleared since."""
        ...

    async def get(self, ids: Sequence[str], max_bytes: int) -> ReceivedCallbacks:
        """Return the received callbacks with these ids. Callbacks whose bodies were cleared are left out.

        Args:
            max_bytes: maximum size of all returned bodies together. If necessary, the callbacks with the
                latest `expires_at` are left out. The callback with the earliest `expires_at` is always
                returned, even if its body is larger than `max_bytes`.
        """
        ...

    async def clear_bodies(self, ids: Sequence[str]) -> None:
        """Delete the bodies of the callbacks with these ids.

        The ids stay until `delete_expired` deletes the callbacks. Until then, repeated callbacks are refused.
        """
        ...

    async def delete_expired(self, before: datetime) -> None:
        """Delete the callbacks whose `expires_at` is earlier than `before`."""
        ...


@dataclass(frozen=True)
class CallbackQueries:
    accept: str
    is_received: str
    get: str
    clear_bodies: str
    delete_expired: str


class PostgresCallbacks(CallbacksTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(CallbackQueries, "callbacks")

    async def accept(self, id: str, body: bytes | None, size: int, expires_at: datetime) -> bool:
        record = await self._connections.fetchrow(self._sql.accept, id, size, body, expires_at)
        return record is not None

    async def is_received(self, id: str) -> bool:
        return await self._connections.fetchrow(self._sql.is_received, id) is not None

    async def get(self, ids: Sequence[str], max_bytes: int) -> ReceivedCallbacks:
        records = await self._connections.fetch(self._sql.get, list(ids), max_bytes)
        callbacks = [ReceivedCallback(record["id"], record["size"], record["body"]) for record in records]
        return ReceivedCallbacks(callbacks, any(record["received"] > len(records) for record in records))

    async def clear_bodies(self, ids: Sequence[str]) -> None:
        await self._connections.execute(self._sql.clear_bodies, list(ids))

    async def delete_expired(self, before: datetime) -> None:
        await self._connections.execute(self._sql.delete_expired, before)
