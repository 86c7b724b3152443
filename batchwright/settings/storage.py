"""Where bytes and rows are: PostgreSQL, object storage, scratch files."""

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from batchwright.rules.locations import location
from batchwright.settings.urls import http_urls, postgres_url


class StorageSettings(BaseSettings):
    database_url: str = Field(
        "postgresql://batchwright@127.0.0.1:5432/batchwright",
        description="PostgreSQL that holds files, batches and progress",
    )
    database_pool_size: int = Field(10, ge=2, le=200, description="connections per process")
    storage: str = Field(
        "", description="s3://bucket/prefix, or file:///directory; unset: the directory `storage_dir`"
    )
    storage_dir: Path = Field(Path(".batchwright/objects"), description="directory of the local storage")
    storage_patience_seconds: float = Field(
        20.0, ge=0, le=600, description="how long an operation on S3 is tried again before it fails (S0-67)"
    )
    s3_endpoint_url: str = Field("", description="of an S3 that is not Amazon's, such as http://host:9000")
    s3_region: str = Field("", description="of the bucket; unset: as AWS_REGION or the profile says")
    s3_path_style: bool = Field(
        False, description="address the bucket in the path, not in the host name: most other S3s want it"
    )
    s3_sse: str = Field(
        "",
        pattern="^(|AES256|aws:kms|aws:kms:dsse)$",
        description="server-side encryption asked for: AES256, aws:kms or aws:kms:dsse; unset: the bucket's",
    )
    s3_sse_kms_key_id: str = Field("", description="key for s3_sse=aws:kms; unset: the account's own")
    spool_dir: Path | None = Field(
        None,
        description="scratch files; unset: the system's temporary directory. "
        "On the storage's own file system inputs need no copy",
    )

    @field_validator("database_url")
    @classmethod
    def _database(cls, url: str) -> str:
        return postgres_url(url)

    @field_validator("storage")
    @classmethod
    def _storage_url(cls, url: str) -> str:
        if url:
            location(url)
        return url

    @field_validator("s3_sse_kms_key_id")
    @classmethod
    def _key_of_kms(cls, key: str, checked: ValidationInfo) -> str:
        if key and not str(checked.data.get("s3_sse", "")).startswith("aws:kms"):
            raise ValueError("a KMS key needs BATCHWRIGHT_S3_SSE=aws:kms")
        return key

    @field_validator("s3_endpoint_url")
    @classmethod
    def _http_url_or_unset(cls, url: str) -> str:
        return http_urls([url])[0] if url else url
