"""Settings of webhooks: the networks that webhooks may be sent to although their addresses are not public."""

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings

from batchwright.rules.webhooks.ssrf_rules import Network, parse_networks
from batchwright.settings.setting_levels import TUNING


class WebhookSettings(BaseSettings):
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
