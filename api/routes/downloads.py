"""Limits how many bytes of downloads are in memory, because clients may read them slowly."""

from contextlib import ExitStack

from fastapi import Response
from starlette.types import Receive, Scope, Send

from batchwright.api.client_limits.held_bytes import HeldBytes

# Of each download, one piece of the storage and the unsent bytes of the connection are in memory.
_MAX_BYTES = 2 * 1024 * 1024


class Downloads:
    """The count of the bytes that downloads in progress keep in memory.

    `HeldBytes` adds up these bytes with those of all other requests, and limits the sums.
    """

    def __init__(self, held: HeldBytes) -> None:
        self._held = held

    def begin(self, tenant: str, size: int) -> ExitStack:
        """Count the bytes in memory of a download: `size`, or `_MAX_BYTES` if `size` is larger.

        Return an exit stack. The bytes count until the caller closes the stack.

        Raises:
            ApiError: this process holds too many bytes of the tenant, or of all tenants (429).
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
