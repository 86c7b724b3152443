"""`batchwright folder`: runs the files that users drop into a directory as batches."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from batchwright.contracts.terms import Endpoint
from batchwright.starter.folder.folder_runner import FolderRunner
from batchwright.starter.folder.input_batches import BatchOptions
from batchwright.starter.folder.input_states import FolderError, InputFolder
from batchwright.starter.options import Tenant, Url, WindowOption, api_client
from batchwright.starter.output import ExitCode, stdout, stop


def folder(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder of the inputs; created if missing, unless --once is given.",
            show_default=False,
        ),
    ],
    endpoint: Annotated[
        Endpoint, typer.Option(metavar="ENDPOINT", help="Endpoint of the requests.")
    ] = Endpoint.CHAT_COMPLETIONS,
    window: WindowOption = "24h",
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model of inputs with a prompt.txt.", show_default=False),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Exit when all inputs have ended.")] = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Run each file that appears in DIR as a batch.

    The results of DIR/NAME.jsonl are written to DIR/output/NAME. If the batch
    fails, the reason is written to DIR/failed/NAME. You can stop this command at
    any time. When you start it again, it continues.
    """
    console = stdout()

    def say(text: str) -> None:
        console.print(text, markup=False, no_wrap=True, overflow="ellipsis")

    with api_client(url, tenant) as client:
        try:
            with InputFolder(directory, create=not once) as inbox:
                runner = FolderRunner(inbox, client, BatchOptions(endpoint, window, model), say)
                before = signal.signal(signal.SIGTERM, signal.default_int_handler)
                try:
                    say(f"Inputs of {directory} are run by {client.url}.")
                    runner.run(once=once)
                except KeyboardInterrupt:
                    is_one = runner.running == 1
                    inputs = "input continues" if is_one else "inputs continue"
                    say(f"Stopped; {runner.running:,} running {inputs} at the API.")
                    raise typer.Exit(int(ExitCode.UNFINISHED if once else ExitCode.COMPLETED)) from None
                finally:
                    signal.signal(signal.SIGTERM, before)
        except FolderError as error:
            stop(str(error))
    if runner.has_failures:
        raise typer.Exit(int(ExitCode.FAILED))
