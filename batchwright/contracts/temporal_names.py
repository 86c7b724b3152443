"""Names in Temporal: task queues and workflow ids."""

CONTROL_QUEUE = "control"
IO_QUEUE = "io"
WEBHOOK_QUEUE = "webhooks"
OUTPUT_QUEUE = "outputs"  # copies of output files to other buckets
INFERENCE_PREFIX = "inference."
DISPATCH_QUEUE = "dispatch"  # slices of the models that share one rate limit


def inference_queue(safe_model: str) -> str:
    """Return the name of Temporal's task queue for the activities that send the lines of a model.

    `safe_model` is the model's name as returned by `rules.ids.safe_name`.
    """
    return INFERENCE_PREFIX + safe_model


def model_run_id(batch_id: str, safe_model: str, number: int = 1) -> str:
    """Return the id of the workflow that sends a batch's lines for one model.

    If the history of this workflow becomes long, the remaining lines are sent by another workflow with the
    next `number`.
    """
    return f"{batch_id}/{safe_model}" + (f"/{number}" if number > 1 else "")


def is_run_of_model(workflow_id: str, safe_model: str) -> bool:
    """Return True if the child workflow with this id sends a batch's lines for the model `safe_model`."""
    return workflow_id.split("/")[1:2] == [safe_model]


def output_copy_id(batch_id: str) -> str:
    """Return the id of the workflow that copies the files of a batch to its output location."""
    return f"output-copy-{batch_id}"


def webhook_delivery_id(delivery_id: str, replays: int) -> str:
    """Return the id of the workflow that sends a webhook delivery.

    `replays` is the number of times that a client has requested to send the delivery again. The number is
    a part of the id, because each of these requests starts a new workflow.
    """
    return f"{delivery_id}/{replays}"
