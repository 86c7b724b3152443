"""Cached keys of an issuer: rotation, unknown keys, and an issuer that is unavailable."""

import asyncio

import pytest

from batchwright.oidc.issuer import IssuerKey, IssuerUnavailable
from batchwright.oidc.issuer_keys import KEYS_SECONDS, MIN_REFRESH_SECONDS, REFRESH_SECONDS, IssuerKeys
from tests.fakes.issuer import FakeIssuer, ec_key, rsa_key


class CacheFixture:
    """A cache with its own clock, and its issuer. The issuer responds only while `is_open` is set."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.issuer = FakeIssuer()
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.keys = IssuerKeys(self._fetch, lambda: self.seconds)

    async def _fetch(self) -> tuple[IssuerKey, ...]:
        await self.is_open.wait()
        return await self.issuer.fetch()

    async def find(self, kid: str | None = "first", algorithm: str = "ES256") -> str | None:
        found = await self.keys.find(kid, algorithm)
        return None if found is None else found.kid

    async def fetches(self) -> int:
        """Wait for a fetch in the background, if any. Return how often the keys were fetched."""
        for task in asyncio.all_tasks():
            if task.get_name() == "issuer_keys":
                await task
        return self.issuer.fetches


@pytest.fixture
async def cache() -> CacheFixture:
    return CacheFixture()


async def test_the_keys_are_fetched_once_for_many_callers(cache: CacheFixture) -> None:
    cache.is_open.clear()
    callers = [asyncio.create_task(cache.find()) for _ in range(50)]
    await asyncio.sleep(0)
    cache.is_open.set()
    assert await asyncio.gather(*callers) == ["first"] * 50
    assert [await cache.find() for _ in range(3)] == ["first"] * 3
    assert cache.issuer.fetches == 1


async def test_a_key_is_selected_by_its_id_and_what_it_can_verify(cache: CacheFixture) -> None:
    cache.issuer.keys = [ec_key("p384", "P-384"), rsa_key(), ec_key("same"), rsa_key("same")]
    assert await cache.find("p384", "ES384") == "p384"
    assert await cache.find("p384", "ES256") is None
    assert await cache.find("rsa", "ES256") is None
    assert await cache.find("rsa", "PS512") == "rsa"
    found = await cache.keys.find("same", "RS256")
    assert found is not None
    assert found.key_type == "RSA"


async def test_a_token_without_a_key_id_gets_the_only_key_that_fits(cache: CacheFixture) -> None:
    cache.issuer.keys = [ec_key("first"), rsa_key("a"), rsa_key("b")]
    assert await cache.find(None, "ES256") == "first"
    assert await cache.find(None, "RS256") is None


async def test_a_new_key_is_fetched_when_a_token_names_it(cache: CacheFixture) -> None:
    assert await cache.find() == "first"
    cache.issuer.keys.append(ec_key("second"))
    cache.seconds += MIN_REFRESH_SECONDS
    assert await cache.find("second") == "second"
    assert cache.issuer.fetches == 2


async def test_tokens_with_random_key_ids_cause_one_fetch_in_ten_seconds(cache: CacheFixture) -> None:
    assert await cache.find() == "first"
    for _ in range(5):
        cache.seconds += MIN_REFRESH_SECONDS / 5
        assert [await cache.find(f"forged-{number}") for number in range(100)] == [None] * 100
    assert cache.issuer.fetches == 2


async def test_callers_with_known_keys_do_not_wait_for_a_fetch(cache: CacheFixture) -> None:
    assert await cache.find() == "first"
    cache.seconds += MIN_REFRESH_SECONDS
    cache.is_open.clear()
    forged = asyncio.create_task(cache.find("forged"))
    await asyncio.sleep(0)
    assert await cache.find() == "first"
    assert not forged.done()
    cache.is_open.set()
    assert await forged is None


async def test_a_caller_that_hangs_up_does_not_end_the_fetch_of_others(cache: CacheFixture) -> None:
    cache.is_open.clear()
    first, second = asyncio.create_task(cache.find()), asyncio.create_task(cache.find())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    cache.is_open.set()
    assert await second == "first"


async def test_old_keys_are_refreshed_in_the_background_and_withdrawn_ones_end(cache: CacheFixture) -> None:
    assert await cache.find() == "first"
    cache.issuer.keys = [ec_key("second")]
    cache.seconds += REFRESH_SECONDS - 1
    assert (await cache.find(), await cache.fetches()) == ("first", 1)
    cache.seconds += 1
    assert (await cache.find(), await cache.fetches()) == ("first", 2)  # it does not wait
    assert await cache.find() is None


async def test_the_keys_stay_the_same_object_until_they_change(cache: CacheFixture) -> None:
    await cache.find()
    before = cache.keys.current()
    cache.seconds += REFRESH_SECONDS
    cache.keys.current()
    assert await cache.fetches() == 2
    assert cache.keys.current() is before
    cache.issuer.keys.append(ec_key("second"))
    cache.seconds += REFRESH_SECONDS
    cache.keys.current()
    assert await cache.fetches() == 3
    assert cache.keys.current() is not before


async def test_while_the_issuer_is_down_known_keys_are_used_for_six_hours(cache: CacheFixture) -> None:
    assert await cache.find() == "first"
    cache.issuer.problem = "it is down"
    while cache.seconds < KEYS_SECONDS - 600:
        cache.seconds += 600
        assert await cache.find() == "first"
        await cache.fetches()
    cache.seconds = KEYS_SECONDS
    with pytest.raises(IssuerUnavailable, match="it is down"):
        await cache.find()
    cache.issuer.problem = ""
    cache.seconds += MIN_REFRESH_SECONDS
    assert await cache.find() == "first"


async def test_without_any_keys_the_issuer_is_unavailable_and_is_not_asked_all_the_time(
    cache: CacheFixture,
) -> None:
    cache.issuer.problem = "it is down"
    for _ in range(100):
        with pytest.raises(IssuerUnavailable, match="it is down"):
            await cache.find()
    assert cache.issuer.fetches == 1


async def test_while_the_issuer_is_down_an_unknown_key_may_be_a_new_one(cache: CacheFixture) -> None:
    assert await cache.find() == "first"
    cache.issuer.problem = "it is down"
    cache.seconds += MIN_REFRESH_SECONDS
    for _ in range(2):
        with pytest.raises(IssuerUnavailable, match="it is down"):
            await cache.find("second")
    assert await cache.find() == "first"
