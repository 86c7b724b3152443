"""`batchwright queues`: the task queues of models, for those who scale or limit them from outside."""

from typing import Annotated

import typer

from batchwright.contracts.names import inference_queue
from batchwright.rules.ids import safe_name


def queues(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="As the backends name them.", show_default=False)
    ],
) -> None:
    """Print the Temporal task queue of each model, a line each."""
    for model in models:
        print(inference_queue(safe_name(model)))
