"""Names in Temporal: task queues and workflow ids."""

CONTROL_QUEUE = "control"
IO_QUEUE = "io"
INFERENCE_PREFIX = "inference."
DISPATCH_QUEUE = "dispatch"  # slices of the models that share a rate over all models


def inference_queue(safe_model: str) -> str:
    """The task queue of one model; `safe_model` as `rules.ids.safe_name` makes it."""
    return INFERENCE_PREFIX + safe_model


def model_run_id(batch_id: str, safe_model: str) -> str:
    return f"{batch_id}/{safe_model}"
