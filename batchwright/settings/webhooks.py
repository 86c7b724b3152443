"""Settings of webhooks: how many endpoints a tenant may have, and in which networks they may be."""

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings

from batchwright.rules.webhooks.addresses import Network, parse_networks
from batchwright.settings.levels import TUNING


class WebhookSettings(BaseSettings):
    max_webhooks: int = Field(
        20,
        ge=0,
        description="Maximum number of webhook endpoints of a tenant. Those of single batches do not count. "
        "`0`: no limit.",
        json_schema_extra=TUNING,
    )
    webhook_allowed_networks: list[str] = Field(
        default=[],
        description="Networks that webhooks may be sent to although their addresses are not public, as a "
        'JSON list such as `["10.1.0.0/16"]`. Unset: only public addresses.',
        json_schema_extra=TUNING,
    )

    @field_validator("webhook_allowed_networks")
    @classmethod
    def _webhook_networks(cls, texts: list[str]) -> list[str]:
        parse_networks(texts)
        return texts

    @property
    def webhook_networks(self) -> list[Network]:
        return parse_networks(self.webhook_allowed_networks)
