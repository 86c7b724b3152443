"""Stored facts about models: the models that backends list, and the changes that operators made."""

from datetime import datetime

from pydantic import JsonValue

from batchwright.contracts.message import Message
from batchwright.contracts.model_registry.registry_config import ModelConfig


class ServedModel(Message):
    """A model in the list of models that a backend sent at the time `seen_at`."""

    name: str
    backend_url: str
    seen_at: datetime


class ModelChange(Message):
    """A change that an operator has made at run time: a model was added, changed or removed.

    `config` is the complete configuration of the model. `patch` has only the changed settings. If both are
    None, the model was removed. Each change has a greater `version` than all earlier changes. A model that
    was never changed has version 0.
    """

    model: str
    config: ModelConfig | None
    changed_at: datetime
    patch: dict[str, JsonValue] | None = None
    version: int = 0

    @property
    def is_removal(self) -> bool:
        return self.config is None and self.patch is None


class RateChange(Message):
    """A rate limit that an operator has set at run time.

    If `model` is empty, the limit applies to all models together. If `requests_per_second` is 0, there is no
    limit.
    """

    model: str
    requests_per_second: float
    changed_at: datetime
