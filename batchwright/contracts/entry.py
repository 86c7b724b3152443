"""What entries of the registry are made of. Durations: seconds, `90s`, `5m`."""

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST_DURATION = 32  # characters
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")


def _seconds(value: object) -> object:
    """`5m` as 300.0; numbers as they are."""
    if isinstance(value, bool):
        raise ValueError("it must be a duration such as 90, 90s or 5m")
    if not isinstance(value, str):
        return value
    if len(value) > _LONGEST_DURATION:
        raise ValueError("it must be a duration such as 90, 90s or 5m")
    found = _DURATION.fullmatch(value.strip())
    if found is None:
        raise ValueError("it must be a duration such as 90, 90s or 5m")
    return float(found[1]) * _UNITS[found[2]]


Seconds = Annotated[float, BeforeValidator(_seconds), Field(allow_inf_nan=False)]
Positive = Annotated[Seconds, Field(gt=0)]


class Entry(BaseModel):
    """Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
