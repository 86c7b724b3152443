"""The registry in effect: what the file says, less and more what was changed at run time."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256

from batchwright.contracts.registry import BackendConfig, ModelConfig


def effective(
    configured: Mapping[str, ModelConfig], changes: Mapping[str, ModelConfig | None]
) -> dict[str, ModelConfig]:
    """By name. A change wins over the file; None takes a model away."""
    merged = {**configured, **changes}
    return {name: model for name, model in sorted(merged.items()) if model is not None}


def fingerprint(models: Mapping[str, ModelConfig], gateways: Sequence[BackendConfig]) -> str:
    """Equal in processes that treat every model alike."""
    said = {
        "gateways": [gateway.model_dump(mode="json") for gateway in gateways],
        "models": {name: model.model_dump(mode="json") for name, model in sorted(models.items())},
    }
    return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]
