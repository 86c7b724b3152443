"""Many batches and many lines for tests of the web pages. They are copies of one batch that has run."""

import json

from batchwright.database.pool import open_connection_pool
from tests.e2e.stack import Stack

_FILES = """
SELECT f.id, f.storage_key FROM files f
JOIN batches b ON b.tenant = f.tenant AND f.id IN (b.input_file_id, b.output_file_id)
WHERE b.id = $1"""
_COUNT = """
UPDATE batches SET total = $2::bigint, completed = $2, models = (
    SELECT jsonb_agg(m || jsonb_build_object('lines', $2::bigint, 'completed', $2::bigint))
    FROM jsonb_array_elements(models) m)
WHERE id = $1"""
_COLUMNS = """
SELECT column_name FROM information_schema.columns
WHERE table_name = $1 AND table_schema = current_schema() AND is_generated = 'NEVER'"""


async def multiply(stack: Stack, batch: str, lines: int, batches: int) -> None:
    """Copy the only line and the database row of an ended batch many times.

    The batch must have one line, `line-0` with `question 0`. Its input and output file get `lines` lines,
    which are copies with other numbers. `batches` copies of its row are inserted, each a second older than
    the one before.
    """
    connections = await open_connection_pool(stack.now.postgres, size=1, patience_seconds=10)
    try:
        for id, key in await connections.fetch(_FILES, batch):
            file = stack.objects / key
            line = json.dumps(json.loads(file.read_bytes()))
            copies = "".join(_copy(line, number) for number in range(lines)).encode()
            file.write_bytes(copies)
            await connections.execute("UPDATE files SET bytes = $2 WHERE id = $1", id, len(copies))
        await connections.execute(_COUNT, batch, lines)
        for table, id in (("batches", "id"), ("batch_tags", "batch_id")):
            changed = {id: "'batch_' || md5(n::text)", "created_at": "created_at - n * interval '1 second'"}
            columns = [str(name) for (name,) in await connections.fetch(_COLUMNS, table)]
            values = ", ".join(changed.get(name, name) for name in columns)
            await connections.execute(
                f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} "
                f"FROM {table}, generate_series(1, {batches}) n WHERE {id} = $1",
                batch,
            )
    finally:
        await connections.close()


def _copy(line: str, number: int) -> str:
    """Return a copy of a line of an input or output file with another number.

    Like the lines of result files, it has no spaces between its fields.
    """
    copied = json.loads(line.replace("line-0", f"line-{number}").replace("question 0", f"question {number}"))
    if copied.get("id", "").startswith("batch_req_"):
        copied["id"] = f"batch_req_{number:032x}"
    return json.dumps(copied, separators=(",", ":")) + "\n"
