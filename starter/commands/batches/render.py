"""`batchwright render`: makes the input of a batch from a template and a table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from batchwright.contracts.terms import Endpoint
from batchwright.rules.input.line_rules import InputLimits
from batchwright.rules.input.line_writer import request_line
from batchwright.starter.output import ExitCode, stderr, stop
from batchwright.starter.tables.custom_ids import CustomIds
from batchwright.starter.tables.errors import RowError, TableError
from batchwright.starter.tables.reading import Table, most_repeated_first, open_table
from batchwright.starter.tables.templates import RenderError, RequestTemplate
from batchwright.starter.tables.writing import check_output, output_file

TableFile = Annotated[
    Path, typer.Argument(metavar="TABLE", help="A .csv, .jsonl or .parquet file.", show_default=False)
]
IdColumn = Annotated[
    str | None,
    typer.Option(
        "--id", metavar="COLUMN", help="Column with the custom ids. [row-1, row-2, ...]", show_default=False
    ),
]


def render(
    template: Annotated[
        Path,
        typer.Argument(
            metavar="TEMPLATE",
            help="Body of a request as JSON, with Jinja templates in its strings.",
            show_default=False,
        ),
    ],
    table: TableFile,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write to this file, once all rows are rendered.", show_default=False
        ),
    ] = None,
    id_column: IdColumn = None,
    endpoint: Annotated[
        Endpoint, typer.Option(metavar="ENDPOINT", help="Endpoint of the requests.")
    ] = Endpoint.CHAT_COMPLETIONS,
) -> None:
    """Make requests from TEMPLATE and the rows of TABLE.

    Exits with 1 if a row cannot be rendered.
    """
    count = 0
    try:
        if output is not None:
            check_output(output, template, table)
        body, rows = RequestTemplate(template), open_table(table)
        with output_file(output) as file:
            for line in request_lines(body, rows, id_column, endpoint):
                file.write(line)
                count += 1
            if not count:
                raise TableError(f"{table} has no rows.")
    except RowError as error:
        stop(str(error), ExitCode.FAILED)
    except TableError as error:
        stop(str(error))
    if output is not None:
        requests = "1 request" if count == 1 else f"{count:,} requests"
        stderr().print(f"Wrote {requests} to {output}.", style="dim", markup=False)


def request_lines(
    template: RequestTemplate, table: Table, id_column: str | None, endpoint: Endpoint
) -> Iterator[bytes]:
    """Yield one line of a batch's input for each row of a table.

    Raises:
        RowError: a row cannot be rendered, or it has no usable custom id (the user's id of the request).
        TableError: the table cannot be read.
    """
    ids, columns = CustomIds(table, id_column), most_repeated_first(table)
    most = InputLimits().max_line_bytes
    for number, row in enumerate(table.rows(), 1):
        custom_id = ids.take(number, row)
        try:
            line = request_line(custom_id, endpoint, template.render(row, columns))
        except RenderError as error:
            raise RowError(table.path, number, str(error)) from None
        except (TypeError, ValueError) as error:
            why = f"the request is not JSON ({error}); `{{{{ name | string }}}}` makes a value text."
            raise RowError(table.path, number, why) from None
        if len(line) > most:
            raise RowError(table.path, number, f"the request has {len(line):,} bytes, more than {most:,}.")
        yield line
