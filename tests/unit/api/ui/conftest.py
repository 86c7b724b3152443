"""A browser for the tests of web pages."""

import pytest

from tests.fakes.api import ApiFixture
from tests.unit.api.ui.browser import Browser


@pytest.fixture
def browser(api: ApiFixture) -> Browser:
    """A browser that opens the pages of the test's API."""
    return Browser(api)
