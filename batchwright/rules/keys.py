"""Where objects lie in storage. Keys are made here only, never from user input."""

from batchwright.rules.ids import tenant_hash

# Says which database the storage belongs to.
DATABASE_MARK = "database-mark"


def tenant_root(tenant: str) -> str:
    """Everything of a tenant lies below it."""
    return f"{tenant_hash(tenant)}/"


def upload_key(tenant: str, file_id: str, nonce: str) -> str:
    return f"{tenant_hash(tenant)}/files/{file_id}/{nonce}"


def parts_root(tenant: str, upload_id: str) -> str:
    """Every part of an upload lies below it."""
    return f"{tenant_hash(tenant)}/uploads/{upload_id}/"


def part_key(tenant: str, upload_id: str, part_id: str) -> str:
    return f"{parts_root(tenant, upload_id)}{part_id}"


def batch_root(tenant: str, batch_id: str) -> str:
    """Everything a batch wrote lies below it, its output and error files excepted."""
    return f"{tenant_hash(tenant)}/batches/{batch_id}"


def ingest_prefix(tenant: str, batch_id: str, nonce: str) -> str:
    return f"{ingest_root(tenant, batch_id)}{nonce}"


def model_map(prefix: str) -> str:
    return f"{prefix}/model_map.json"


def plan(prefix: str, safe: str) -> str:
    """16-byte entries in dispatch order."""
    return f"{prefix}/plans/{safe}.plan"


def slice_table(prefix: str, safe: str) -> str:
    """A fixed-size record per slice."""
    return f"{prefix}/plans/{safe}.slices"


def shard(prefix: str, safe: str) -> str:
    """The model's lines in dispatch order, a newline after each."""
    return f"{prefix}/shards/{safe}.jsonl"


def duplicates(prefix: str, safe: str) -> str:
    """Lines of the model that ask what others ask, each with its place, the other's, and its custom id."""
    return f"{prefix}/duplicates/{safe}.jsonl"


def unserved(prefix: str) -> str:
    """A segment of the lines ingestion settled itself; absent where there are none."""
    return f"{prefix}/unserved.segment"


def adopted_root(prefix: str) -> str:
    """Segments of the lines that another batch had settled; none where nothing was taken over."""
    return f"{prefix}/adopted/"


def adopted(prefix: str, number: int) -> str:
    return f"{adopted_root(prefix)}{number:06d}.segment"


def ingest_root(tenant: str, batch_id: str) -> str:
    """Every attempt of ingestion wrote below a prefix of its own there."""
    return f"{batch_root(tenant, batch_id)}/ingest/"


def results_root(tenant: str, batch_id: str) -> str:
    return f"{batch_root(tenant, batch_id)}/results/"


def slice_results(tenant: str, batch_id: str, safe: str, number: int) -> str:
    return f"{results_root(tenant, batch_id)}{safe}/{number:06d}/"


def segment(folder: str, generation: int, attempt: int, nonce: str, sequence: int) -> str:
    """Names sort by the order of generations, attempts and flushes and never collide."""
    return f"{folder}{generation:04d}-{attempt:06d}-{nonce}-{sequence:05d}"


def output_key(tenant: str, file_id: str, nonce: str) -> str:
    """An output or error file; unique per attempt of finalization."""
    return upload_key(tenant, file_id, nonce)
