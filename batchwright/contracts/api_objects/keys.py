"""Objects that show operators the API keys of tenants."""

from typing import Literal

from pydantic import BaseModel, Field


class KeyObject(BaseModel):
    """An API key without its secret. Times are Unix seconds."""

    id: str
    object: Literal["api_key"] = "api_key"
    tenant: str
    prefix: str = Field(description="visible part of the key, `bw_...`")
    scopes: list[str] = Field(description="`read`, `write`, `viewer`, `operator`, `admin`")
    label: str = Field(description="its purpose, in the words of its creator")
    created_at: int
    expires_at: int | None = Field(description="null: never")
    revoked_at: int | None
    last_used_at: int | None = Field(description="to the minute")


class CreatedKey(KeyObject):
    secret_key: str = Field(description="the whole key; it is not shown again, because only its hash is kept")


class KeyList(BaseModel):
    object: Literal["list"] = "list"
    data: list[KeyObject] = Field(description="sorted by tenant and creation")
