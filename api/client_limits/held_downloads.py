"""Limits how many bytes of downloads are in memory. Many slow downloads could fill the memory."""

from contextlib import ExitStack

from fastapi import Response
from starlette.types import Receive, Scope, Send

from batchwright.api.client_limits.held_bytes import HeldBytes

# Of each download, one piece of the storage and the unsent bytes of the connection are in memory.
_MAX_BYTES = 2 * 1024 * 1024


class HeldDownloads:
    """A counter of the bytes that downloads in progress keep in memory.

    The bytes of downloads count towards the limits of `HeldBytes`, together with the bytes of other requests.
    """

    def __init__(self, held: HeldBytes) -> None:
        self._held = held

    def begin(self, tenant: str, size: int) -> ExitStack:
        """Count the bytes that a download keeps in memory. They count until the caller closes the returned
        exit stack.

        Args:
            tenant: tenant that downloads.
            size: size of the download in bytes. If it is larger than `_MAX_BYTES`, only `_MAX_BYTES` are
                counted.

        Raises:
            ApiError: this process has too many bytes of the tenant, or of all tenants, in memory (429).
        """
        with ExitStack() as counted:
            counted.enter_context(self._held.counted(tenant))(min(size, _MAX_BYTES))
            return counted.pop_all()


class CountedResponse(Response):
    """A response to a download. Its bytes count towards the memory limits until it is sent, or until the
    client has disconnected.
    """

    def __init__(self, shown: Response, counted: ExitStack) -> None:
        super().__init__()
        self._shown, self._counted = shown, counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counted:
            await self._shown(scope, receive, send)
