"""Base types of the registry's models. A duration is a number of seconds, or text such as `90s` or `5m`."""

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_DURATION_CHARS = 32  # characters
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")


def _parse_duration(value: object) -> object:
    """Return a duration in seconds.

    A text such as `5m` is converted (to 300.0). Other values are returned unchanged, such as numbers.

    Raises ValueError if the text is not a duration, or if the value is a boolean.
    """
    if isinstance(value, bool):
        raise ValueError("it must be a duration such as 90, 90s or 5m")
    if not isinstance(value, str):
        return value
    if len(value) > _MAX_DURATION_CHARS:
        raise ValueError("it must be a duration such as 90, 90s or 5m")
    found = _DURATION.fullmatch(value.strip())
    if found is None:
        raise ValueError("it must be a duration such as 90, 90s or 5m")
    return float(found[1]) * _UNITS[found[2]]


Duration = Annotated[float, BeforeValidator(_parse_duration), Field(allow_inf_nan=False)]
PositiveDuration = Annotated[Duration, Field(gt=0)]


class RegistryEntry(BaseModel):
    """The base class of all objects in the model registry. Unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)
