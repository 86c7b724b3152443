"""`batchwright collect`: joins the results of batches to the table that their requests were made from."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.rules.results.line_results import LineResult
from batchwright.starter.batch_groups import batches_of
from batchwright.starter.batch_output import error_text
from batchwright.starter.client import Client
from batchwright.starter.commands.batches.render import IdColumn, TableFile
from batchwright.starter.commands.batches.results import require_files
from batchwright.starter.options import BatchesOrGroups, Tenant, Url, api_client
from batchwright.starter.output import ExitCode, stderr, stop
from batchwright.starter.tables.custom_ids import CustomIds
from batchwright.starter.tables.errors import RowError, TableError
from batchwright.starter.tables.reading import Table, open_table
from batchwright.starter.tables.results import COLUMNS, MISSING, ResultsByCustomId, results_by_custom_id
from batchwright.starter.tables.writing import RowWriter, check_output, table_writer

_SHOWN = 3  # errors of a batch, and error codes


def collect(
    batch_ids: BatchesOrGroups,
    table: TableFile,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Write to this .csv, .jsonl or .parquet file.", show_default=False
        ),
    ],
    id_column: IdColumn = None,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Join the results of batches to the rows of TABLE.

    Exits with 0 if each row has an answer, with 1 if a row has none, and with 2 if a batch is not finished
    yet.
    """
    try:
        check_output(output, table)
        rows = open_table(table)
        with results_by_custom_id() as results:
            with api_client(url, tenant) as client:
                batches = [batch for each in batch_ids for batch in batches_of(client, each)]
                for batch in batches:
                    require_files(batch)
                for batch in batches:
                    results.add(_results_of(client, batch))
                    for problem in (batch.errors.data if batch.errors else [])[:_SHOWN]:
                        stderr().print(f"{batch.id}: {error_text(problem)}", markup=False)
            with table_writer(output, rows, COLUMNS) as writer:
                counts = _join(rows, id_column, results, writer)
    except TableError as error:
        stop(str(error))
    stderr().print(f"Wrote {output}: {_summary(counts)}.", style="dim", markup=False)
    if len(counts) > 1 or None not in counts:
        raise typer.Exit(int(ExitCode.FAILED))


def _results_of(client: Client, batch: BatchObject) -> Iterator[LineResult]:
    for file_id, failed in ((batch.output_file_id, False), (batch.error_file_id, True)):
        if file_id is None:
            continue
        with client.content(file_id) as pieces:
            rest = b""
            for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                yield from (LineResult.parse(line, failed=failed) for line in lines)
            if rest:
                yield LineResult.parse(rest, failed=failed)


def _join(
    table: Table, id_column: str | None, results: ResultsByCustomId, writer: RowWriter
) -> Counter[str | None]:
    """Write each row of the table, with the columns of its result. Return the number of rows by error code.

    In the returned counter, the value for the key None is the number of rows that have an answer.

    Raises:
        TableError: the table cannot be read, it already has a column with the name of an added column, a
            custom id is missing or occurs twice, or none of the results belongs to a row.
    """
    ids, counts, found = CustomIds(table, id_column), Counter[str | None](), 0
    for number, row in enumerate(table.rows(), 1):
        taken = next((name for name, _ in COLUMNS if name in row), None)
        if taken is not None:
            raise RowError(table.path, number, f"column {taken!r} exists, but collect adds it; rename yours.")
        result = results.find(ids.take(number, row))
        found += result is not None
        columns = result or MISSING
        counts[columns.error_code] += 1
        writer.write({**row, **columns._asdict()})
    if not found and len(results):
        known = ", ".join(results.examples())
        why = f"No row of {table.path} has a result. The results have ids such as {known}; is --id right?"
        raise TableError(why)
    if found < len(results):
        others = len(results) - found
        stderr().print(f"{others:,} results belong to no row of {table.path}.", markup=False)
    return counts


def _summary(counts: Counter[str | None]) -> str:
    failed = {code: count for code, count in counts.most_common() if code is not None}
    reasons = ", ".join(f"{count:,} {code}" for code, count in list(failed.items())[:_SHOWN])
    more = ", ..." if len(failed) > _SHOWN else ""
    without = f", {sum(failed.values()):,} without ({reasons}{more})" if failed else ""
    return f"{counts[None]:,} rows with an answer{without}"
