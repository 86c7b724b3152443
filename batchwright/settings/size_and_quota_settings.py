"""Size limits of files and batches, default quotas of tenants, and what input is accepted."""

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from batchwright.contracts.model_registry.price_config import DecimalText
from batchwright.contracts.terms import Profile
from batchwright.rules.input.line_rules import InputLimits
from batchwright.rules.tenants.quotas import MAX_QUOTA, QuotaLimits
from batchwright.rules.token_costs import amount_of
from batchwright.settings.setting_levels import TUNING

_MIB = 1024 * 1024


class SizeAndQuotaSettings(BaseSettings):
    max_lines: int = Field(
        50_000, ge=1, description="Maximum number of requests in a batch.", json_schema_extra=TUNING
    )
    max_batch_file_bytes: int = Field(
        200 * _MIB,
        ge=1,
        description="Maximum size of an input file (purpose `batch`), in bytes.",
        json_schema_extra=TUNING,
    )
    max_message_requests: int = Field(
        100_000,
        ge=1,
        description="Maximum number of requests in a message batch (Anthropic's API).",
        json_schema_extra=TUNING,
    )
    max_message_batch_bytes: int = Field(
        256 * _MIB,
        ge=1,
        description="Maximum size of the request that creates a message batch, in bytes.",
        json_schema_extra=TUNING,
    )
    max_file_bytes: int = Field(
        512 * _MIB, ge=1, description="Maximum size of a file of any other purpose, in bytes."
    )
    max_upload_bytes: int = Field(
        8192 * _MIB, ge=1, description="Maximum size of a file that is uploaded in parts, in bytes."
    )
    max_line_bytes: int = Field(
        10 * _MIB, ge=1, description="Maximum size of one line of an input file, in bytes."
    )
    max_embedding_inputs: int = Field(
        50_000, ge=1, description="Maximum number of embedding inputs in a batch, over all its lines."
    )
    max_live_batches: int = Field(
        50,
        ge=0,
        le=MAX_QUOTA,
        description="Quota of each tenant: batches that have not ended. `0`: no limit.",
        json_schema_extra=TUNING,
    )
    max_schedules: int = Field(
        20,
        ge=0,
        description="Quota of each tenant: schedules that create batches. `0`: no limit.",
        json_schema_extra=TUNING,
    )
    max_stored_bytes: int = Field(
        0,
        ge=0,
        le=MAX_QUOTA,
        description="Quota of each tenant: bytes of files, open uploads and waiting calls. `0`: no limit.",
        json_schema_extra=TUNING,
    )
    max_enqueued_lines: int = Field(
        0,
        ge=0,
        le=MAX_QUOTA,
        description="Quota of each tenant: lines of live batches that have no result yet. `0`: no limit.",
        json_schema_extra=TUNING,
    )
    max_enqueued_tokens: int = Field(
        0,
        ge=0,
        le=MAX_QUOTA,
        description="Quota of each tenant: estimated prompt tokens of these lines. `0`: no limit.",
        json_schema_extra=TUNING,
    )
    max_requests_per_minute: int = Field(
        0,
        ge=0,
        le=MAX_QUOTA,
        description="Quota of each tenant: API requests in a minute, over all API processes. `0`: no limit.",
        json_schema_extra=TUNING,
    )
    max_tokens_per_day: int = Field(
        0,
        ge=0,
        le=MAX_QUOTA,
        description="Budget of each tenant: tokens that backends report in a day (UTC). `0`: no limit.",
        json_schema_extra=TUNING,
    )
    max_cost_per_day: DecimalText = Field(
        "0",
        description="Budget of each tenant: cost of its lines in a day (UTC), in the currency of the "
        "registry's prices. `0`: no limit.",
        json_schema_extra=TUNING,
    )
    max_webhooks: int = Field(
        20,
        ge=0,
        le=MAX_QUOTA,
        description="Quota of each tenant: webhook endpoints. Those of single batches do not count. "
        "`0`: no limit.",
        json_schema_extra=TUNING,
    )
    one_model_per_batch: bool = Field(
        False, description="If true, a batch with several models fails validation.", json_schema_extra=TUNING
    )
    max_models_per_batch: int = Field(100, ge=1, le=1000, description="Maximum number of models in a batch.")
    strict_models: bool = Field(
        False,
        description="If true, a model that no backend serves fails the whole batch. Otherwise only the "
        "lines for that model fail.",
        json_schema_extra=TUNING,
    )
    profile: Profile = Field(
        Profile.RELAXED,
        description="`strict` accepts only what OpenAI's API accepts. `relaxed` also accepts other "
        "completion windows, and lines without `method` or `url`. This setting does not "
        "change `BATCHWRIGHT_STRICT_MODELS`.",
        json_schema_extra=TUNING,
    )
    min_window_seconds: int = Field(
        60, ge=1, description="Shortest completion window in profile `relaxed`, in seconds."
    )
    max_window_seconds: int = Field(
        14 * 86_400,
        ge=60,
        validate_default=True,
        description="Longest completion window in profile `relaxed`, in seconds. Not shorter than "
        "`BATCHWRIGHT_MIN_WINDOW_SECONDS`.",
    )

    @field_validator("max_window_seconds")
    @classmethod
    def _longest_window(cls, seconds: int, checked: ValidationInfo) -> int:
        shortest = checked.data.get("min_window_seconds", seconds)
        if seconds < shortest:
            raise ValueError(f"it is less than BATCHWRIGHT_MIN_WINDOW_SECONDS, which is {shortest}")
        return seconds

    @property
    def input_limits(self) -> InputLimits:
        return InputLimits(
            max_lines=self.max_lines,
            max_line_bytes=self.max_line_bytes,
            max_embedding_inputs=self.max_embedding_inputs,
            one_model=self.one_model_per_batch,
        )

    @property
    def quotas(self) -> QuotaLimits:
        """The default quotas of a tenant. Other quotas can be set for single tenants at run time."""
        return QuotaLimits(
            live_batches=self.max_live_batches,
            stored_bytes=self.max_stored_bytes,
            enqueued_lines=self.max_enqueued_lines,
            enqueued_tokens=self.max_enqueued_tokens,
            requests_per_minute=self.max_requests_per_minute,
            tokens_per_day=self.max_tokens_per_day,
            cost_per_day=amount_of(self.max_cost_per_day),
            webhooks=self.max_webhooks,
        )
