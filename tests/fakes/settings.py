"""Settings for tests. Equal settings are loaded only once for the same environment variables."""

import os

from batchwright import settings
from batchwright.settings import Settings

_READ: dict[str, Settings] = {}


def source(overrides: dict[str, object]) -> str:
    """Return a text that is equal for equal overrides and equal environment variables.

    It is the key of the cache.
    """
    environment = {
        name: value for name, value in os.environ.items() if name.startswith(("BATCHWRIGHT_", "OTEL_"))
    }
    return repr((sorted(overrides.items()), sorted(environment.items())))


def load(**overrides: object) -> Settings:
    """Load settings as `batchwright.settings.load` does, or return those of an earlier equal call.

    Settings are frozen, so tests can share them.
    """
    known = source(overrides)
    if known not in _READ:
        _READ[known] = settings.load(**overrides)
    return _READ[known]
