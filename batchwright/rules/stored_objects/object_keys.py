"""Make the keys (names) of stored objects, and parse the URL of the storage.

Keys never contain user input.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from batchwright.rules.ids import tenant_hash

# The object that names the database to which the storage belongs.
DATABASE_MARK = "database-mark"


def tenant_root(tenant: str) -> str:
    """Return the key prefix of all stored objects of a tenant."""
    return f"{tenant_hash(tenant)}/"


def upload_key(tenant: str, file_id: str, nonce: str) -> str:
    return f"{tenant_hash(tenant)}/files/{file_id}/{nonce}"


def parts_root(tenant: str, upload_id: str) -> str:
    """Return the key prefix of all parts of an upload.

    A client sends a large file as an upload of several parts.
    """
    return f"{tenant_hash(tenant)}/uploads/{upload_id}/"


def part_key(tenant: str, upload_id: str, part_id: str) -> str:
    return f"{parts_root(tenant, upload_id)}{part_id}"


def batch_root(tenant: str, batch_id: str) -> str:
    """Return the key prefix of all stored objects of a batch, except output and error files."""
    return f"{tenant_hash(tenant)}/batches/{batch_id}"


def ingest_prefix(tenant: str, batch_id: str, nonce: str) -> str:
    return f"{ingest_root(tenant, batch_id)}{nonce}"


def model_map(prefix: str) -> str:
    return f"{prefix}/model_map.json"


def plan(prefix: str, safe_model: str) -> str:
    """Return the object key of a model's plan: a list of the model's lines in the order of sending.

    The list has 16 bytes per line. `prefix` is the result of `ingest_prefix`, and `safe_model` the result of
    `safe_name`.
    """
    return f"{prefix}/plans/{safe_model}.plan"


def slice_table(prefix: str, safe_model: str) -> str:
    """Return the object key of a model's slice table, which has one record per slice of the lines.

    `prefix` is the result of `ingest_prefix`, and `safe_model` the result of `safe_name`.
    """
    return f"{prefix}/plans/{safe_model}.slices"


def shard(prefix: str, safe_model: str) -> str:
    """Return the object key of a model's shard.

    A shard is the object with the model's lines in the order of sending, each with a newline. `prefix` is the
    result of `ingest_prefix`, and `safe_model` the result of `safe_name`.
    """
    return f"{prefix}/shards/{safe_model}.jsonl"


def duplicates(prefix: str, safe_model: str) -> str:
    """Return the object key of a model's list of duplicates: lines with the same request as an earlier line.

    `prefix` is the result of `ingest_prefix`, and `safe_model` the result of `safe_name`.
    """
    return f"{prefix}/duplicates/{safe_model}.jsonl"


def unserved_root(prefix: str) -> str:
    """Return the key prefix of all segments (objects with results) for lines that failed during ingestion.

    Ingestion is the validation of the input. The failed lines are never sent. `prefix` is the result of
    `ingest_prefix`.
    """
    return f"{prefix}/unserved/"


def unserved_segment(prefix: str, number: int) -> str:
    return f"{unserved_root(prefix)}{number:06d}.segment"


def resumed_root(prefix: str) -> str:
    """Return the key prefix of all segments (objects with results) that a resumed batch has copied.

    A resumed batch copies results from an earlier batch, and sends the lines without a copied result.
    `prefix` is the result of `ingest_prefix`.
    """
    return f"{prefix}/resumed/"


def is_resumed_segment(key: str) -> bool:
    return "/resumed/" in key


def resumed_segment(prefix: str, number: int) -> str:
    return f"{resumed_root(prefix)}{number:06d}.segment"


def ingest_root(tenant: str, batch_id: str) -> str:
    """Return the key prefix of all stored objects that ingestion writes for a batch.

    Ingestion is the validation of the input. Each attempt appends a nonce to this prefix (`ingest_prefix`).
    """
    return f"{batch_root(tenant, batch_id)}/ingest/"


def results_root(tenant: str, batch_id: str) -> str:
    return f"{batch_root(tenant, batch_id)}/results/"


def slice_results(tenant: str, batch_id: str, safe_model: str, number: int) -> str:
    return f"{results_root(tenant, batch_id)}{safe_model}/{number:06d}/"


def number_of_slice(key: str) -> int:
    """Return the number of a slice (part of a model's lines), read from the object key of a segment.

    The key begins with the result of `slice_results` for this slice.
    """
    return int(key.split("/")[-2])


def segment(folder: str, generation: int, attempt: int, nonce: str, sequence: int) -> str:
    """Return a unique object key for a segment: an object with many results of a slice.

    A slice is a part of a model's lines. The keys of its segments sort by generation, attempt and sequence.

    Args:
        folder: beginning of the key, from `slice_results`.
        generation: is greater each time the workflow schedules the slice again. Temporal then counts the
            attempts from 1 again.
        attempt: number of the slice's attempt.
        nonce: random text of the attempt.
        sequence: number of the segment within the attempt.
    """
    return f"{attempt_segments(folder, generation, attempt)}{nonce}-{sequence:05d}"


def attempt_segments(folder: str, generation: int, attempt: int) -> str:
    """Return the beginning of the keys of all segments that one attempt of a slice stores.

    The beginning sorts after that of an earlier attempt, and has the same length.
    """
    return f"{folder}{generation:04d}-{attempt:06d}-"


def output_key(tenant: str, file_id: str, nonce: str) -> str:
    """Return the object key of an output or error file. `nonce` differs at each attempt to write the file."""
    return upload_key(tenant, file_id, nonce)


_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_PREFIX = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*)?")


@dataclass(frozen=True)
class LocalDirectory:
    """The location of an object storage: a local directory."""

    path: Path


@dataclass(frozen=True)
class Bucket:
    """The location of an object storage: an S3 bucket, and the prefix of all object keys in it."""

    name: str
    prefix: str  # prepended to every key; empty or ends with a slash

    @property
    def url(self) -> str:
        return f"s3://{self.name}/{self.prefix}".rstrip("/")


def parse_location(url: str) -> LocalDirectory | Bucket:
    """Parse the URL of an object storage: `file:///directory` or `s3://bucket/prefix`.

    Raises:
        ValueError: the URL has another form, or it contains a user, a query or a fragment.
    """
    parts = urlsplit(url)
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(
            "it must not contain a user, a query or a fragment: set keys and options of S3 separately"
        )
    match parts.scheme:
        case "s3":
            name, prefix = parts.netloc, parts.path.strip("/")
            if _BUCKET.fullmatch(name) is None:
                raise ValueError(f"{name!r} is not a bucket name")
            if _PREFIX.fullmatch(prefix) is None:
                raise ValueError(f"{prefix!r} is not a prefix: use parts of [A-Za-z0-9._-] joined by '/'")
            return Bucket(name, prefix and prefix + "/")
        case "file" if parts.netloc in ("", "localhost") and parts.path.startswith("/"):
            return LocalDirectory(Path(unquote(parts.path)))
        case _:
            raise ValueError("it is neither s3://bucket/prefix nor file:///directory")
