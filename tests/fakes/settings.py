"""Settings for tests. Settings with equal overrides are loaded once for equal environment variables."""

import os

from batchwright import settings
from batchwright.settings import Settings

_READ: dict[str, Settings] = {}


def source(overrides: dict[str, object]) -> str:
    """Return the cache key of settings. It depends on the overrides and the environment variables."""
    environment = {
        name: value for name, value in os.environ.items() if name.startswith(("BATCHWRIGHT_", "OTEL_"))
    }
    return repr((sorted(overrides.items()), sorted(environment.items())))


def load(**overrides: object) -> Settings:
    """Load settings as `batchwright.settings.load` does, or return those of an earlier equal call.

    Settings cannot be changed, so tests can share them.
    """
    known = source(overrides)
    if known not in _READ:
        _READ[known] = settings.load(**overrides)
    return _READ[known]
