"""Base class of everything that is sent through Temporal."""

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """Base class of messages between processes. A message cannot be changed after its creation.

    Processes of different versions exchange messages. For this reason unknown fields are ignored, and every
    new field must have a default.
    """

    model_config = ConfigDict(frozen=True)
