"""Connection of a Temporal client. When credential files change, the connection is replaced, but the client
object stays the same.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Self

from google.protobuf.message import Message
from temporalio.runtime import Runtime
from temporalio.service import ConnectConfig, ServiceClient, ServiceResponse

from batchwright.process_name import process_name
from batchwright.settings import Settings, SettingsError
from batchwright.temporal.connection import credentials
from batchwright.temporal.connection.credentials import Credentials
from batchwright.temporal.errors import from_connect_error

logger = logging.getLogger(__name__)
_REFRESH_SECONDS = 2.0


class TemporalConnection:
    """Connection to Temporal that follows changes of the credential files.

    If a certificate has changed, a new connection is opened. If only the API key has changed, the connection
    stays open and uses the new key.
    """

    def __init__(
        self,
        settings: Settings,
        service: "ReplaceableService",
        credentials: Credentials,
        runtime: Runtime | None,
    ) -> None:
        self._settings, self._credentials, self._runtime = settings, credentials, runtime
        self._last_error = ""
        self.service = service
        self.on_replace: set[Callable[[], None]] = set()  # called after each replacement
        self.replacements = 0

    @classmethod
    async def open(cls, settings: Settings, *, runtime: Runtime | None, lazy: bool) -> Self:
        """Connect to Temporal and return the connection.

        Args:
            runtime: the SDK's runtime; None for the default runtime.
            lazy: True to connect only at the first call.

        Raises:
            TemporalUnavailable: Temporal does not answer. This is not raised if `lazy` is True.
            SettingsError: a certificate or key file cannot be read or is invalid.
        """
        found = await asyncio.to_thread(credentials.read, settings)
        config = _config(settings, found, runtime, lazy=lazy)
        try:
            service = ReplaceableService(config, await ServiceClient.connect(config))
        except RuntimeError as error:
            raise from_connect_error(settings, error) from error
        return cls(settings, service, found, runtime)

    async def run(self) -> None:
        """Follow changes of the credential files: call `refresh` every few seconds until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(_REFRESH_SECONDS)

    async def refresh(self) -> None:
        """Read the credential files again, and use the new credentials if they have changed.

        For new certificates, a new connection is opened. A new API key is used in the same connection.

        If the files cannot be used or the new connection fails, keep the old credentials, and log the error
        once. The next call tries again.
        """
        try:
            found = await asyncio.to_thread(credentials.read, self._settings)
            if found != self._credentials:
                await self._apply(found)
        except (SettingsError, RuntimeError) as error:
            if str(error) != self._last_error:
                logger.warning("changed Temporal credentials cannot be used", extra={"error": str(error)})
            self._last_error = str(error)
        else:
            self._last_error = ""

    async def _apply(self, found: Credentials) -> None:
        """Use the credentials `found` for this connection from now on.

        Raises RuntimeError if a new connection is necessary and cannot be opened.
        """
        if found.tls == self._credentials.tls:
            self.service.update_api_key(found.api_key)
            logger.info("Temporal API key replaced")
        else:
            config = _config(self._settings, found, self._runtime, lazy=False)
            self.service.replace(await ServiceClient.connect(config))
            self.replacements += 1
            for notify in tuple(self.on_replace):
                notify()
            logger.info("Temporal connection replaced", extra={"expires_at": found.expires_at})
        self._credentials = found


class ReplaceableService(ServiceClient):
    """A service that sends the calls of a Temporal client over a connection that can be replaced.

    A call that runs during the replacement ends on the old connection.
    """

    def __init__(self, config: ConnectConfig, current: ServiceClient) -> None:
        super().__init__(config)
        self._current = current

    def replace(self, successor: ServiceClient) -> None:
        self._current = successor

    @property
    def worker_service_client(self):
        return self._current.worker_service_client

    def update_rpc_metadata(self, metadata: Mapping[str, str | bytes]) -> None:
        self._current.update_rpc_metadata(metadata)

    def update_api_key(self, api_key: str | None) -> None:
        self._current.update_api_key(api_key)

    async def _rpc_call(
        self,
        rpc: str,
        req: Message,
        resp_type: type[ServiceResponse],
        *,
        service: str,
        retry: bool,
        metadata: Mapping[str, str | bytes],
        timeout: timedelta | None,  # noqa: ASYNC109 - the SDK's name
    ) -> ServiceResponse:
        return await self._current._rpc_call(
            rpc, req, resp_type, service=service, retry=retry, metadata=metadata, timeout=timeout
        )


def _config(settings: Settings, found: Credentials, runtime: Runtime | None, *, lazy: bool) -> ConnectConfig:
    return ConnectConfig(
        target_host=settings.temporal_address,
        identity=process_name(),
        api_key=found.api_key,
        tls=found.tls or False,
        lazy=lazy,
        runtime=runtime,
    )
