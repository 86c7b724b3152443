"""Base class of everything that is sent through Temporal."""

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """Base class of messages between processes. A message cannot be changed after its creation.

    Processes of different versions exchange messages. Therefore unknown fields are ignored, and a new field
    must have a default.
    """

    model_config = ConfigDict(frozen=True)
