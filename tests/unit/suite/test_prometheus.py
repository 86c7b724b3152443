"""Tests of expressions wait until their Prometheus can answer."""

import httpx
import pytest

from tests.observability.prometheus import Prometheus

OPENING = httpx.Response(503, text="Service Unavailable")
REFUSED = httpx.Response(400, json={"status": "error", "error": "parse error: unexpected end of input"})
ANSWER = b'{"status": "success", "data": {"result": [{"metric": {}, "value": [0.0, "1"]}]}}'


def answering(*answers: httpx.Response) -> tuple[Prometheus, list[httpx.Response]]:
    """Return a Prometheus that gives these responses in order, and the list of those not given yet."""
    left = list(answers)
    http = httpx.Client(base_url="http://prometheus", transport=httpx.MockTransport(lambda _: left.pop(0)))
    return Prometheus(http), left


def test_a_starting_prometheus_is_queried_again() -> None:
    prometheus, left = answering(OPENING, httpx.Response(200, content=ANSWER))
    prometheus.wait("count(up == 1)")
    assert not left


def test_an_expression_refused_by_prometheus_is_reported_with_its_reason() -> None:
    prometheus, _ = answering(REFUSED)
    with pytest.raises(AssertionError, match="unexpected end of input"):
        prometheus.ask("count(")
