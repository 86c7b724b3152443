"""Limits of the contract (R13)."""

from pydantic import Field
from pydantic_settings import BaseSettings

from batchwright.contracts.openai import Profile
from batchwright.rules.quotas import MOST, Limits

_MIB = 1024 * 1024


class LimitSettings(BaseSettings):
    max_lines: int = Field(50_000, ge=1, description="requests per batch")
    max_batch_file_bytes: int = Field(200 * _MIB, ge=1, description="size of an input file (purpose batch)")
    max_file_bytes: int = Field(512 * _MIB, ge=1, description="size of a file of another purpose")
    max_part_bytes: int = Field(64 * _MIB, ge=1, description="size of one part of an upload")
    max_upload_bytes: int = Field(8192 * _MIB, ge=1, description="size of a file that comes in parts")
    upload_seconds: int = Field(3600, ge=1, description="time an upload in parts is open")
    max_line_bytes: int = Field(10 * _MIB, ge=1, description="size of one line of an input")
    max_embedding_inputs: int = Field(50_000, ge=1, description="embedding inputs over all lines of a batch")
    max_live_batches: int = Field(50, ge=0, le=MOST, description="quota of a tenant; 0: no limit")
    max_stored_bytes: int = Field(
        0, ge=0, le=MOST, description="quota of a tenant: files, and uploads under way; 0: no limit"
    )
    max_enqueued_lines: int = Field(
        0, ge=0, le=MOST, description="quota of a tenant: lines of live batches without a result; 0: no limit"
    )
    max_enqueued_tokens: int = Field(
        0, ge=0, le=MOST, description="the same in tokens of prompts, as they are estimated; 0: no limit"
    )
    max_requests_per_minute: int = Field(
        0, ge=0, le=MOST, description="quota of a tenant at the API, all processes together; 0: no limit"
    )
    max_tokens_per_day: int = Field(
        0,
        ge=0,
        le=MOST,
        description="budget of a tenant: tokens, as backends report them, of a day in UTC; 0: no limit",
    )
    max_dead_letters: int = Field(
        10_000, ge=0, le=1_000_000, description="of a batch that are listed; its error file has every line"
    )
    one_model_per_batch: bool = Field(False, description="refuse batches with several models (R6)")
    strict_models: bool = Field(
        False, description="a model nobody serves fails the batch, not only its lines"
    )
    profile: Profile = Field(
        Profile.RELAXED, description="relaxed or strict: what is accepted beyond OpenAI (R7)"
    )
    min_window_seconds: int = Field(60, ge=1, description="shortest completion window of profile relaxed")
    max_window_seconds: int = Field(
        14 * 86_400, ge=60, description="longest completion window of profile relaxed"
    )

    @property
    def quotas(self) -> Limits:
        """Of a tenant that has none of its own."""
        return Limits(
            live_batches=self.max_live_batches,
            stored_bytes=self.max_stored_bytes,
            enqueued_lines=self.max_enqueued_lines,
            enqueued_tokens=self.max_enqueued_tokens,
            requests_per_minute=self.max_requests_per_minute,
            tokens_per_day=self.max_tokens_per_day,
        )
