"""The base of everything that crosses Temporal."""

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """Frozen; new fields always have a default; unknown fields of a newer sender are ignored."""

    model_config = ConfigDict(frozen=True)
