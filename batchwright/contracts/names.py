"""Names in Temporal: task queues, workflow ids, search attributes, signals."""

from temporalio.common import SearchAttributeKey

CONTROL_QUEUE = "control"
IO_QUEUE = "io"
INFERENCE_PREFIX = "inference."
DISPATCH_QUEUE = "dispatch"  # slices of the models that share a rate over all models


def inference_queue(safe_model: str) -> str:
    """The task queue of one model; `safe_model` as `rules.ids.safe_name` makes it."""
    return INFERENCE_PREFIX + safe_model


def model_run_id(batch_id: str, safe_model: str) -> str:
    return f"{batch_id}/{safe_model}"


# Registered by `batchwright dev` and by whoever runs a cluster; low cardinality, no personal data.
STATUS = SearchAttributeKey.for_keyword("BatchwrightStatus")
TENANT = SearchAttributeKey.for_keyword("BatchwrightTenant")
MODELS = SearchAttributeKey.for_keyword_list("BatchwrightModels")
DEADLINE = SearchAttributeKey.for_datetime("BatchwrightDeadline")
SEARCH_ATTRIBUTES = (STATUS, TENANT, MODELS, DEADLINE)
