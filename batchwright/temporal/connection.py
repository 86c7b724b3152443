"""The connection under a client: replaced while the client is in use, when its credentials change."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Self

from google.protobuf.message import Message
from temporalio.runtime import Runtime
from temporalio.service import ConnectConfig, ServiceClient, ServiceResponse

from batchwright.settings import Settings, SettingsError
from batchwright.temporal import credentials
from batchwright.temporal.credentials import Credentials
from batchwright.temporal.errors import not_connected

logger = logging.getLogger(__name__)
_LOOK_SECONDS = 2.0


class Connection:
    """Files are compared by what is in them: a mounted secret changes by a link, and keeps its times."""

    def __init__(
        self,
        settings: Settings,
        service: "ReplaceableService",
        made_with: Credentials,
        runtime: Runtime | None,
    ) -> None:
        self._settings, self._made_with, self._runtime = settings, made_with, runtime
        self._complaint = ""
        self.service = service
        self.replaced: set[Callable[[], None]] = set()  # called after the connection is another
        self.replacements = 0

    @classmethod
    async def open(cls, settings: Settings, *, runtime: Runtime | None, lazy: bool) -> Self:
        """Raises TemporalUnavailable (not with `lazy`) and SettingsError."""
        found = await asyncio.to_thread(credentials.read, settings)
        config = _config(settings, found, runtime, lazy=lazy)
        try:
            service = ReplaceableService(config, await ServiceClient.connect(config))
        except RuntimeError as error:
            raise not_connected(settings, error) from error
        return cls(settings, service, found, runtime)

    async def run(self) -> None:
        """Looks for ever. What is wrong is logged once; until it is right the connection stays as it is."""
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Reads the credentials, and has the connection follow them if they are others than before."""
        try:
            found = await asyncio.to_thread(credentials.read, self._settings)
            if found != self._made_with:
                await self._follow(found)
        except (SettingsError, RuntimeError) as error:
            self._complain(str(error))
        else:
            self._complaint = ""

    async def _follow(self, found: Credentials) -> None:
        """Raises RuntimeError where no connection can be made with `found`."""
        if found.tls == self._made_with.tls:
            self.service.update_api_key(found.api_key)
            logger.info("Temporal's API key was replaced")
        else:
            config = _config(self._settings, found, self._runtime, lazy=False)
            self.service.replace(await ServiceClient.connect(config))
            self.replacements += 1
            for tell in tuple(self.replaced):
                tell()
            logger.info("the connection to Temporal was replaced", extra={"expires_at": found.expires_at})
        self._made_with = found

    def _complain(self, error: str) -> None:
        if error != self._complaint:
            logger.warning("changed credentials of Temporal are not used yet", extra={"error": error})
        self._complaint = error


class ReplaceableService(ServiceClient):
    """What a client sends its calls through; a call that has begun ends on the connection it began on."""

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
        api_key=found.api_key,
        tls=found.tls or False,
        lazy=lazy,
        runtime=runtime,
    )
