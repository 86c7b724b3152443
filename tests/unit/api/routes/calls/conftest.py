"""The API with interactive calls (requests that it sends to a backend immediately), for all tests of them."""

from types import SimpleNamespace

import pytest

from batchwright.api.services.calls import interactive_authorizer
from tests.fakes.routing import Clock
from tests.unit.api.routes.calls.interactive_api import Fixture

_FIXTURES = list[Fixture]()  # one, because building the application takes longer than most tests


@pytest.fixture
def api() -> Fixture:
    if not _FIXTURES:
        _FIXTURES.append(Fixture())
    _FIXTURES[0].clear()
    return _FIXTURES[0]


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the rate limiters, which moves only if a test moves it."""
    clock = Clock()
    monkeypatch.setattr(interactive_authorizer, "time", SimpleNamespace(monotonic=clock))
    return clock
