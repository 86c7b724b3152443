"""A fingerprint of the settings, which shows if the processes of an installation have the same settings."""

import hashlib
import json
from importlib.metadata import version

from pydantic import JsonValue

from batchwright.database.pool import address
from batchwright.settings import SECRETS, Settings
from batchwright.temporal.codec import load_keys

# Settings of one process or of the command line, which may differ between processes of one installation.
_PER_PROCESS = frozenset(
    {
        *("auth", "auth_failures_per_minute", "tenant_header", "trusted_proxies"),
        *("api_host", "api_port", "api_key", "codec_host", "codec_port", "codec_origins", "metrics_host"),
        *("codec_trusted_network", "metrics_port", "log_format", "log_level", "spool_dir", "temporal_ui_url"),
        *("tenant", "url"),
    }
)
_REDACTED = "(secret)"


def public_values(settings: Settings) -> dict[str, JsonValue]:
    """Return all settings by name, with secrets hidden."""
    values: dict[str, JsonValue] = json.loads(settings.model_dump_json())
    hidden: dict[str, JsonValue] = {name: _REDACTED for name in SECRETS if values.get(name)}
    # `payload_keys` contains only references to keys. Settings that contain keys are rejected on load.
    shown: dict[str, JsonValue] = {
        "database_url": address(settings.database_url),
        "payload_keys": [*settings.payload_keys],
    }
    return {**values, **hidden, **shown}


def settings_fingerprint(settings: Settings) -> str:
    """Return a hash (16 hex digits) of the version and of the settings that must be equal in all processes.

    The hash does not include secrets. In their place, it includes:

    - which secrets are set;
    - for each key that encrypts data in Temporal: the id of the key, and the start of a digest of the key.

    Raises:
        SettingsError: a key that encrypts data in Temporal cannot be read.
    """
    matters: dict[str, JsonValue] = {
        name: value for name, value in public_values(settings).items() if name not in _PER_PROCESS
    }
    matters["payload_keys"] = [f"{key.id} {key.check}" for key in load_keys(settings)]
    matters["version"] = version("batchwright")
    return hashlib.sha256(json.dumps(matters, sort_keys=True).encode()).hexdigest()[:16]
