"""A browser for the tests of web pages."""

import pytest

from tests.fakes.api import ApiFixture
from tests.unit.api.ui.browser import Browser


@pytest.fixture
def browser(api: ApiFixture) -> Browser:
    """Browser at the test's own `api`."""
    return Browser(api)
