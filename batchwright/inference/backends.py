"""Which backend serves which model: asked of the backends, kept in the database, followed at run time."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import httpx
from pydantic import ValidationError

from batchwright.inference.client import InferenceClient
from batchwright.settings import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Backend:
    """One URL, without a trailing slash or `/v1`."""

    url: str

    def endpoint(self, path: str) -> str:
        """The URL of an endpoint such as `/v1/chat/completions`."""
        return self.url + path


class ListedModel(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def backend_url(self) -> str: ...


class ModelsTable(Protocol):
    """Where the lists are kept; the database's table of served models is one."""

    async def note(self, backend_url: str, names: list[str], at: datetime) -> None: ...
    async def served(self, backend_urls: list[str]) -> Sequence[ListedModel]: ...


class ServedModels(Protocol):
    async def served(self) -> frozenset[str]:
        """The models some backend serves."""
        ...


class Registry:
    """A backend that does not answer keeps the models it listed last: an outage takes no model away (R8)."""

    def __init__(
        self,
        settings: Settings,
        models: ModelsTable,
        client: InferenceClient,
        *,
        unavailable: type[Exception],
    ) -> None:
        """`unavailable` is what `models` raises while it cannot answer."""
        self._unavailable = unavailable
        self._settings, self._models, self._client = settings, models, client
        self._urls = [url.removesuffix("/v1") for url in settings.backends]
        self._backends: dict[str, Backend] = {}
        self._changed = asyncio.Event()
        self._read = False

    async def served(self) -> frozenset[str]:
        """Read afresh at the first call. Raises `unavailable` only if nothing was ever read."""
        if not self._read:
            await self.refresh()
        return frozenset(self._backends)

    def backend_of(self, model: str) -> Backend | None:
        return self._backends.get(model)

    async def changed(self) -> frozenset[str]:
        """The models, once they are others than at the last call."""
        await self._changed.wait()
        self._changed.clear()
        return frozenset(self._backends)

    async def refresh(self) -> None:
        """Asks every backend, then reads what is known. Raises `unavailable`."""
        await asyncio.gather(*(self._ask(url) for url in self._urls))
        rows = await self._models.served(self._urls)
        found = {row.name: Backend(row.backend_url) for row in rows}
        self._read = True
        if found != self._backends:
            self._backends = found
            self._changed.set()

    async def run(self) -> None:
        """Refreshes for ever; a database that is away is logged once and asked again."""
        failing = False
        while True:
            try:
                await self.refresh()
                failing = False
            except self._unavailable as error:
                if not failing:
                    logger.warning("the list of served models cannot be read", extra={"error": str(error)})
                failing = True
            await asyncio.sleep(self._settings.model_refresh_seconds)

    async def _ask(self, url: str) -> None:
        try:
            names = await self._client.models(url)
        except (httpx.HTTPError, ValidationError, TimeoutError) as error:
            logger.debug("a backend lists no models", extra={"backend": url, "error": str(error)})
            return
        await self._models.note(url, names, datetime.now(UTC))
