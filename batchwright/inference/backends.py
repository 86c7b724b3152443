"""Which backend serves which model: asked of the backends, kept in the database, followed at run time."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from batchwright.inference.client import InferenceClient, ListingFailed
from batchwright.inference.engine import Target
from batchwright.settings import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Backend:
    """One URL, without a trailing slash or `/v1`."""

    url: str

    def endpoint(self, path: str) -> Target:
        """An endpoint such as `/v1/chat/completions`."""
        return Target.of(self.url + path)


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
    """A backend that does not answer keeps the models it listed last: an outage takes no model away (R8).

    Of several backends that list a model, the first configured that answers gets its requests.
    """

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
        self._urls = list(dict.fromkeys(url.removesuffix("/v1") for url in settings.backends))
        self._silent: set[str] = set()
        self._backends: dict[str, Backend] = {}
        self._changed = asyncio.Event()
        self._read = False
        self.on_return: Callable[[frozenset[str]], None] = lambda models: None  # a backend answers again

    async def served(self) -> frozenset[str]:
        """Read afresh at the first call. Raises `unavailable` only if nothing was ever read."""
        if not self._read:
            await self.refresh()
        return frozenset(self._backends)

    def backend_of(self, model: str) -> Backend | None:
        return self._backends.get(model)

    @property
    def known(self) -> frozenset[str]:
        """The models as far as they were read; `served` reads them first."""
        return frozenset(self._backends)

    async def changed(self) -> frozenset[str]:
        """The models, once they are others than at the last call."""
        await self._changed.wait()
        self._changed.clear()
        return frozenset(self._backends)

    async def refresh(self) -> None:
        """Asks every backend, then reads what is known. Raises `unavailable`."""
        before = set(self._silent)
        listings = await asyncio.gather(*(self._ask(url) for url in self._urls))
        for url, names in zip(self._urls, listings, strict=True):
            if names is not None:
                await self._models.note(url, names, datetime.now(UTC))
        self._take(await self._models.served(self._urls))
        returned = before - self._silent
        if returned:
            self.on_return(frozenset(name for name, at in self._backends.items() if at.url in returned))

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

    def _take(self, rows: Sequence[ListedModel]) -> None:
        order = {url: (url in self._silent, place) for place, url in enumerate(self._urls)}
        known = [row for row in rows if row.backend_url in order]
        known.sort(key=lambda row: order[row.backend_url], reverse=True)  # the first in order is written last
        found = {row.name: Backend(row.backend_url) for row in known}
        self._read = True
        if found.keys() != self._backends.keys():
            self._changed.set()
        self._backends = found

    async def _ask(self, url: str) -> list[str] | None:
        try:
            names = await self._client.models(url)
        except ListingFailed as error:
            if url not in self._silent:
                logger.warning("a backend lists no models", extra={"backend": url, "error": str(error)})
            self._silent.add(url)
            return None
        self._silent.discard(url)
        return names
