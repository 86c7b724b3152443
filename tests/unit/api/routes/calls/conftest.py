"""The API with interactive calls, for all tests of them."""

import pytest

from tests.unit.api.routes.calls.interactive_api import Fixture

_FIXTURES = list[Fixture]()  # one, because building the application takes longer than most tests


@pytest.fixture
def api() -> Fixture:
    if not _FIXTURES:
        _FIXTURES.append(Fixture())
    _FIXTURES[0].clear()
    return _FIXTURES[0]
