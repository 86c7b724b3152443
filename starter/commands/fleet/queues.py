"""`batchwright queues`: shows the task queues of models and their backlog (waiting tasks)."""

from typing import Annotated

import typer

from batchwright.contracts.temporal_names import inference_queue
from batchwright.rules.ids import safe_name
from batchwright.starter.options import JsonLine


def queues(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Only print the names of these queues.", show_default=False),
    ] = None,
    json: JsonLine = False,
) -> None:
    """Show the backlog of Temporal task queues.

    If no worker polls a queue, the tasks in this queue wait. The limit of a queue is the maximum number of
    activities that may start per second. If you name models, the command does not connect to Temporal, and
    prints only the names of the models' queues.
    """
    if models:
        for model in models:
            print(inference_queue(safe_name(model)))
        return
    # Imported here, because Temporal's client takes a second to load and scripts need only the names, fast.
    from batchwright.starter.commands.fleet.queue_table import show_queues

    show_queues(json)
