"""Limits how many bytes of downloads are in memory, because clients may read them slowly."""

from contextlib import ExitStack

from fastapi import Response
from starlette.types import Receive, Scope, Send

from batchwright.api.routes.calls.call_body import HeldBytes

# Of each download, one piece of the storage and the unsent bytes of the connection are in memory.
_MAX_BYTES = 2 * 1024 * 1024


class Downloads:
    """Counts the bytes that downloads in progress keep in memory, for each tenant and for all together."""

    def __init__(self) -> None:
        self._held = HeldBytes("downloads")

    def begin(self, tenant: str, size: int) -> ExitStack:
        """Count a download of `size` bytes. Return a stack; when it is closed, the bytes are free again.

        Raises:
            ApiError: the downloads of the tenant, or of all tenants, hold too many bytes (429).
        """
        with ExitStack() as counted:
            counted.enter_context(self._held.counted(tenant))(min(size, _MAX_BYTES))
            return counted.pop_all()


class CountedResponse(Response):
    """Response that counts as a download until it is sent, or until the client has disconnected."""

    def __init__(self, shown: Response, counted: ExitStack) -> None:
        super().__init__()
        self._shown, self._counted = shown, counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counted:
            await self._shown(scope, receive, send)
