"""The settings in effect: where each comes from, secrets hidden; and a fingerprint of what matters."""

import hashlib
import json
from importlib.metadata import version

from pydantic import BaseModel, JsonValue

from batchwright.database.connection import address
from batchwright.settings import SECRETS, Settings, from_environment
from batchwright.temporal.codec import keys_of

# Of one process or of the person at the command line: they may differ where all else is equal.
_OWN = frozenset(
    {
        *("auth", "auth_failures_per_minute", "tenant_header", "trusted_proxies"),
        *("api_host", "api_port", "api_key", "codec_host", "codec_port", "codec_origins", "metrics_host"),
        *("codec_trusted_network", "metrics_port", "log_format", "log_level", "spool_dir", "temporal_ui_url"),
        *("tenant", "url"),
    }
)
_HIDDEN = "(secret)"


class Setting(BaseModel):
    name: str
    value: JsonValue
    source: str  # environment or default


class Configuration(BaseModel):
    version: str
    fingerprint: str
    settings: list[Setting]


def configuration(chosen: Settings) -> Configuration:
    """Raises SettingsError where a key of payloads cannot be read."""
    values = _values(chosen)
    return Configuration(
        version=version("batchwright"),
        fingerprint=_fingerprint(chosen, values),
        settings=[
            Setting(name=f"BATCHWRIGHT_{name.upper()}", value=value, source=_source(name))
            for name, value in values.items()
        ],
    )


def _values(chosen: Settings) -> dict[str, JsonValue]:
    values: dict[str, JsonValue] = json.loads(chosen.model_dump_json())
    hidden: dict[str, JsonValue] = {name: _HIDDEN for name in SECRETS if values.get(name)}
    # References to keys, not keys; anything else would not have passed.
    shown: dict[str, JsonValue] = {
        "database_url": address(chosen.database_url),
        "payload_keys": [*chosen.payload_keys],
    }
    return {**values, **hidden, **shown}


def _source(name: str) -> str:
    return "environment" if from_environment(f"BATCHWRIGHT_{name.upper()}") else "default"


def _fingerprint(chosen: Settings, values: dict[str, JsonValue]) -> str:
    """Of payload keys it has what tells them apart; of other secrets only whether there is one."""
    matters: dict[str, JsonValue] = {name: value for name, value in values.items() if name not in _OWN}
    matters["payload_keys"] = [f"{key.id} {key.check}" for key in keys_of(chosen)]
    matters["version"] = version("batchwright")
    return hashlib.sha256(json.dumps(matters, sort_keys=True).encode()).hexdigest()[:16]
