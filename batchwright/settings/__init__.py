"""All settings with defaults and limits, one file for each subject. No other package reads the environment.

The setting `x_y` is read from the environment variable `BATCHWRIGHT_X_Y`. OpenTelemetry's settings keep their
standard names.
"""

from batchwright.settings.error_messages import SettingsError
from batchwright.settings.load_settings import (
    SECRETS,
    Settings,
    from_environment,
    load,
    load_registry,
    require_backends,
)

__all__ = [
    "SECRETS",
    "Settings",
    "SettingsError",
    "from_environment",
    "load",
    "load_registry",
    "require_backends",
]
