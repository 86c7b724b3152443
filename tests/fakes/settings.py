"""Settings that tests ask for again and again, read once for each environment."""

import os

from batchwright import settings
from batchwright.settings import Settings

_READ: dict[str, Settings] = {}


def source(overrides: dict[str, object]) -> str:
    """What settings come from: equal ones are equal."""
    environment = {
        name: value for name, value in os.environ.items() if name.startswith(("BATCHWRIGHT_", "OTEL_"))
    }
    return repr((sorted(overrides.items()), sorted(environment.items())))


def load(**overrides: object) -> Settings:
    """As `batchwright.settings.load`, but no file is looked at again; they are frozen: many have the same."""
    known = source(overrides)
    if known not in _READ:
        _READ[known] = settings.load(**overrides)
    return _READ[known]
