"""Settings of PostgreSQL, object storage and scratch files."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from batchwright.rules.stored_objects.object_keys import parse_location
from batchwright.rules.stored_objects.object_locations import SCHEME, ObjectLocation, is_within, parse_prefix
from batchwright.settings.setting_levels import START, TUNING
from batchwright.settings.value_formats import check_tenant, http_urls, postgres_url


class LocationAccess(BaseModel):
    """The S3 prefixes that batches of one tenant may use, in addition to Batchwright's storage.

    - Input files may be read from the prefixes in `read`.
    - Output and error files may be written under the prefixes in `write`.

    A prefix has the form `s3://bucket/prefix/`.
    """

    model_config = ConfigDict(extra="forbid")

    read: list[str] = []
    write: list[str] = []


class StorageSettings(BaseSettings):
    database_url: str = Field(
        "postgresql://batchwright@127.0.0.1:5432/batchwright",
        description="URL of the PostgreSQL database.",
        json_schema_extra=START,
    )
    database_pool_size: int = Field(
        10,
        ge=2,
        le=200,
        description="Maximum number of connections to PostgreSQL that one process opens.",
        json_schema_extra=TUNING,
    )
    storage: str = Field(
        "",
        description="Where files are stored: `s3://bucket/prefix` or `file:///directory`. Unset: in the "
        "directory `BATCHWRIGHT_STORAGE_DIR`.",
        json_schema_extra=START,
    )
    storage_dir: Path = Field(
        Path(".batchwright/objects"), description="Directory for files if `BATCHWRIGHT_STORAGE` is unset."
    )
    s3_endpoint_url: str = Field(
        "",
        description="URL of an S3-compatible server, such as `http://host:9000`. Unset: Amazon S3.",
        json_schema_extra=TUNING,
    )
    s3_region: str = Field(
        "",
        description="Region of the bucket. Unset: the region of `AWS_REGION` or of the AWS profile.",
        json_schema_extra=TUNING,
    )
    s3_path_style: bool = Field(
        False,
        description="If true, the bucket is part of the URL's path instead of its host name. Most "
        "S3-compatible servers require this.",
        json_schema_extra=TUNING,
    )
    s3_sse: str = Field(
        "",
        pattern="^(|AES256|aws:kms|aws:kms:dsse)$",
        description="Server-side encryption of objects: `AES256`, `aws:kms` or `aws:kms:dsse`. Unset: the "
        "bucket's default.",
    )
    s3_sse_kms_key_id: str = Field(
        "",
        description="KMS key if `BATCHWRIGHT_S3_SSE` is `aws:kms` or `aws:kms:dsse`. Unset: the account's "
        "default key.",
    )
    data_locations: dict[str, LocationAccess] = Field(
        default={},
        description="Where batches of each tenant may read inputs (`read`) and write their output and error "
        'files (`write`), as a JSON object: `{"team-a": {"read": ["s3://bucket/in/"], "write": '
        '["s3://bucket/out/"]}}`. Tenants that are not listed may do neither. The server and the '
        "credentials are those of `BATCHWRIGHT_STORAGE` on S3.",
    )
    spool_dir: Path | None = Field(
        None,
        description="Directory for temporary files. Unset: the system's temporary directory. If it is on "
        "the same file system as the stored files, input files need no copy.",
    )

    @field_validator("database_url")
    @classmethod
    def _database(cls, url: str) -> str:
        return postgres_url(url)

    @field_validator("storage")
    @classmethod
    def _storage_url(cls, url: str) -> str:
        if url:
            parse_location(url)
        return url

    @field_validator("data_locations")
    @classmethod
    def _prefixes(
        cls, locations: dict[str, LocationAccess], checked: ValidationInfo
    ) -> dict[str, LocationAccess]:
        storage = str(checked.data.get("storage", ""))
        own = parse_prefix(storage) if storage.startswith(SCHEME) else None
        for tenant, access in locations.items():
            check_tenant(tenant)
            for prefix in map(parse_prefix, [*access.read, *access.write]):
                if own is not None and (is_within(own, [prefix]) or is_within(prefix, [own])):
                    raise ValueError(
                        f"{tenant!r} could read or replace the files of all tenants there, because "
                        f"BATCHWRIGHT_STORAGE is {storage}: use another bucket or prefix"
                    )
        return locations

    def may_read(self, tenant: str, location: ObjectLocation) -> bool:
        """Return True if a batch of the tenant may use the object at `location` as its input."""
        access = self.data_locations.get(tenant, LocationAccess())
        return is_within(location, map(parse_prefix, access.read))

    def may_write(self, tenant: str, location: ObjectLocation) -> bool:
        """Return True if a batch of the tenant may write its files under `location`, which is a prefix."""
        access = self.data_locations.get(tenant, LocationAccess())
        return is_within(location, map(parse_prefix, access.write))

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
