"""Constants that tests change in other processes."""

from importlib import import_module
from operator import attrgetter

import pytest

from tests.constants import CONSTANTS


@pytest.mark.parametrize("place", [place for places in CONSTANTS.values() for place in places])
def test_every_constant_that_tests_change_exists(place: str) -> None:
    module, _, name = place.partition(":")
    assert attrgetter(name)(import_module(module)) is not None
