"""Cache of the public keys of an issuer. The issuer may replace its keys at any time."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable

from joserfc.errors import JoseError
from joserfc.jws import JWSRegistry

from batchwright.background import log_failure
from batchwright.oidc.issuer import IssuerKey, IssuerUnavailable

logger = logging.getLogger(__name__)

KEYS_SECONDS = 6 * 3600.0  # how long keys are used while the issuer is unavailable
REFRESH_SECONDS = 600.0  # keys that the issuer has withdrawn are accepted for about this time
MIN_REFRESH_SECONDS = 10.0  # tokens with unknown keys cause at most one fetch in this time


class IssuerKeys:
    """A cache of the public keys that verify the signatures of one issuer's tokens.

    The keys are fetched in three cases:

    - The first token arrives.
    - The cached keys are older than `REFRESH_SECONDS`. In this case, they are fetched in the background.
    - A token names a key that is not in the cache.

    Callers that need the keys at the same time share one request to the issuer. The next request starts at
    least `MIN_REFRESH_SECONDS` after the start of the previous one. So forged tokens neither overload the
    issuer nor delay other callers. If a request fails, the cached keys are used until they are older than
    `KEYS_SECONDS`.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[tuple[IssuerKey, ...]]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an empty cache.

        Args:
            fetch: returns the keys that the issuer has now, or raises IssuerUnavailable.
            monotonic: returns the current time in seconds.
        """
        self._fetch_keys = fetch
        self._monotonic = monotonic
        self._keys: tuple[IssuerKey, ...] = ()
        self._fetched_at = self._attempted_at = -math.inf
        self._problem = ""  # error of the latest attempt; empty after a success
        self._fetching: asyncio.Task[None] | None = None

    def current(self) -> tuple[IssuerKey, ...]:
        """Return the known keys; an empty tuple if there are none, or if they are older than `KEYS_SECONDS`.

        If the keys are older than `REFRESH_SECONDS`, also start to fetch new keys in the background. While
        the known keys stay the same, every call returns the same object.
        """
        age = self._monotonic() - self._fetched_at
        if age >= REFRESH_SECONDS:
            self._start_fetching()
        return self._keys if age < KEYS_SECONDS else ()

    async def find(self, kid: str | None, algorithm: str) -> IssuerKey | None:
        """Return the key that a token names, or None if the issuer has no such key. Fetch the keys if needed.

        Args:
            kid: id of the key in the token's header; None if the header has no id. If `kid` is None, a key is
                returned only if it is the only one that fits the algorithm.
            algorithm: name of the token's algorithm.

        Raises:
            IssuerUnavailable: no known key fits, and the latest attempt to fetch keys failed.
        """
        if key := _select(self.current(), kid, algorithm):
            return key
        self._start_fetching()
        if self._fetching is not None:
            await asyncio.shield(self._fetching)  # other callers wait for it, too
        if key := _select(self.current(), kid, algorithm):
            return key
        if self._problem:
            raise IssuerUnavailable(self._problem)
        return None

    def _start_fetching(self) -> None:
        """Start to fetch the keys in the background.

        Do nothing if a fetch is running, or if the latest fetch began less than `MIN_REFRESH_SECONDS` ago.
        """
        now = self._monotonic()
        if self._fetching is None and now - self._attempted_at >= MIN_REFRESH_SECONDS:
            self._attempted_at = now
            self._fetching = asyncio.create_task(self._fetch(now), name="issuer_keys")
            self._fetching.add_done_callback(log_failure)

    async def _fetch(self, began: float) -> None:
        self._problem = "the keys could not be fetched"
        try:
            keys = await self._fetch_keys()
        except IssuerUnavailable as error:
            self._problem = str(error)
            logger.warning("keys of the issuer were not fetched", extra={"error": self._problem})
        else:
            self._problem, self._fetched_at = "", began
            if keys != self._keys:
                self._keys = keys
                logger.info("the issuer has new keys", extra={"keys": len(keys)})
        finally:
            self._fetching = None


def _select(keys: tuple[IssuerKey, ...], kid: str | None, algorithm: str) -> IssuerKey | None:
    """Return the key with the id `kid` that fits the algorithm; None if there is no such key.

    A key fits by its type, its curve and its declared use. If `kid` is None, return a key only if it is the
    only key that fits the algorithm.
    """
    fitting = [key for key in keys if (kid is None or key.kid == kid) and _fits(key, algorithm)]
    return fitting[0] if len(fitting) == 1 or (fitting and kid is not None) else None


def _fits(key: IssuerKey, algorithm: str) -> bool:
    try:
        JWSRegistry.algorithms[algorithm].check_key(key)
    except JoseError:
        return False
    return True
