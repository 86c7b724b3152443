"""Checks of webhook URLs: lookups are shared, and bad URLs are limited."""

import asyncio
from ipaddress import IPv4Address, IPv4Network

import pytest

from batchwright.webhooks.dns_lookup import DnsLookup
from batchwright.webhooks.submitted_url_check import REFUSED_URLS_PER_MINUTE, TooManyUrls, UrlChecker
from tests.clocks import skip_time, stop_time_of_limiters

LOOPBACK = [IPv4Network("127.0.0.0/8")]


class Names:
    """A fake name server. Each lookup waits for the event `go_on`, and returns `address`."""

    def __init__(self) -> None:
        self.lookups, self.is_asked, self.go_on = list[str](), asyncio.Event(), asyncio.Event()
        self.address = "127.0.0.1"

    async def addresses(self, host: str) -> list[IPv4Address]:
        self.lookups.append(host)
        self.is_asked.set()
        await self.go_on.wait()
        return [IPv4Address(self.address)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    names = Names()

    async def addresses(_: DnsLookup, host: str) -> list[IPv4Address]:
        return await names.addresses(host)

    monkeypatch.setattr(DnsLookup, "addresses", addresses)
    return names


async def test_any_number_of_simultaneous_checks_of_a_host_are_one_lookup(names: Names) -> None:
    urls = UrlChecker(LOOPBACK)
    async with asyncio.TaskGroup() as group:
        for number in range(REFUSED_URLS_PER_MINUTE + 40):
            group.create_task(urls.check(f"http://a.example/{number}", "default"))
        await asyncio.sleep(0)
        names.go_on.set()
    await urls.check("http://a.example/", "default")
    assert names.lookups == ["a.example"]
    await urls.check("http://a.example/", "red")  # tenants share nothing
    skip_time(11)
    await asyncio.sleep(0.001)  # the timer ends
    await urls.check("http://a.example/", "default")
    assert names.lookups == 3 * ["a.example"]


async def test_refused_hosts_are_looked_up_a_limited_number_of_times(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_time_of_limiters(monkeypatch)
    names.address = "10.0.0.1"
    names.go_on.set()
    urls = UrlChecker(LOOPBACK)
    for _ in range(REFUSED_URLS_PER_MINUTE):
        with pytest.raises(ValueError, match="not a public one"):
            await urls.check("http://a.example/", "default")
    with pytest.raises(TooManyUrls, match="Try again in 1 s"):
        await urls.check("http://b.example/", "default")
    assert len(names.lookups) == REFUSED_URLS_PER_MINUTE


async def test_a_caller_that_hangs_up_does_not_end_the_check_of_others(names: Names) -> None:
    urls = UrlChecker(LOOPBACK)
    first, second = (asyncio.create_task(urls.check("http://a.example/", "default")) for _ in range(2))
    await names.is_asked.wait()
    first.cancel()
    await asyncio.wait([first])
    names.go_on.set()
    await second
    assert (first.cancelled(), names.lookups) == (True, ["a.example"])
