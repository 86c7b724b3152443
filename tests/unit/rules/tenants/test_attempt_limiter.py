"""How long a client must wait after attempts that failed, on a clock that the test sets."""

import pytest

from batchwright.rules.tenants import attempt_limiter
from batchwright.rules.tenants.attempt_limiter import AttemptLimiter

CLIENT, OTHER = "192.0.2.1", "192.0.2.2"


class LimiterFixture:
    def __init__(self, per_minute: int) -> None:
        self.now = 100.0
        self.limiter = AttemptLimiter(per_minute, lambda: self.now)

    def fail(self, address: str, times: int = 1) -> None:
        for _ in range(times):
            self.limiter.acquire(address)


def test_a_client_may_fail_up_to_the_limit_at_once_and_then_waits_for_one_failure_to_expire() -> None:
    clients = LimiterFixture(4)
    clients.fail(CLIENT, 3)
    assert clients.limiter.wait_seconds(CLIENT) == 0
    clients.fail(CLIENT)
    assert (clients.limiter.wait_seconds(CLIENT), clients.limiter.wait_seconds(OTHER)) == (15, 0)
    clients.now += 14.5
    assert clients.limiter.wait_seconds(CLIENT) == 1
    clients.now += 0.5
    assert clients.limiter.wait_seconds(CLIENT) == 0


def test_time_without_failures_gives_no_more_than_the_limit() -> None:
    clients = LimiterFixture(4)
    clients.fail(CLIENT)
    clients.now += 3600
    clients.fail(CLIENT, 4)
    assert clients.limiter.wait_seconds(CLIENT) == 15


def test_an_attempt_that_did_not_fail_does_not_count() -> None:
    clients = LimiterFixture(1)
    clients.fail(CLIENT)
    assert clients.limiter.wait_seconds(CLIENT) == 60
    clients.limiter.release(CLIENT)
    assert clients.limiter.wait_seconds(CLIENT) == 0


def test_without_a_limit_nobody_waits() -> None:
    clients = LimiterFixture(0)
    clients.fail(CLIENT, 100)
    assert clients.limiter.wait_seconds(CLIENT) == 0


@pytest.mark.parametrize(
    ("address", "seconds"),
    [("2001:db8:0:1:ffff::2", 60), ("2001:db8:0:2::1", 0), ("tenant", 0), (CLIENT, 0)],
)
def test_all_addresses_of_an_ipv6_network_of_64_bits_are_one_client(address: str, seconds: int) -> None:
    clients = LimiterFixture(1)
    clients.fail("2001:db8:0:1::1")
    assert clients.limiter.wait_seconds(address) == seconds


def test_names_that_are_no_addresses_are_clients_too() -> None:
    clients = LimiterFixture(1)
    clients.fail("tenant")
    assert (clients.limiter.wait_seconds("tenant"), clients.limiter.wait_seconds("other")) == (60, 0)


def test_above_the_maximum_the_client_is_forgotten_that_failed_longest_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempt_limiter, "MAX_ADDRESSES", 2)
    clients = LimiterFixture(1)
    for client in (CLIENT, OTHER, CLIENT):
        clients.fail(client)
    assert clients.limiter.wait_seconds(OTHER) == 60
    clients.fail("third")
    assert [clients.limiter.wait_seconds(each) for each in (CLIENT, OTHER, "third")] == [120, 0, 60]
