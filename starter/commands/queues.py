"""`batchwright queues`: the task queues of models, and what waits in them."""

from typing import Annotated

import typer

from batchwright.contracts.names import inference_queue
from batchwright.rules.ids import safe_name
from starter.options import JsonLine


def queues(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Only print the queues' names.", show_default=False),
    ] = None,
    json: JsonLine = False,
) -> None:
    """Show what waits in Temporal's task queues.

    Pollers are who takes it; a queue without any moves nothing. Limits are of slices per second.
    With models, as the backends name them, only the names of their queues are
    printed, a line each, and nothing is asked.
    """
    if models:
        for model in models:
            print(inference_queue(safe_name(model)))
        return
    # Imported when it is used: names are wanted by scripts, and Temporal's client takes a second.
    from starter.commands.fleet import show_queues

    show_queues(json)
