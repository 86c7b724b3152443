"""Python client for the parts of Batchwright's API that OpenAI's API does not have. It uses the official
`openai` client.

`Batches` and `AsyncBatches` submit requests from lists and tables, follow a batch, yield its results in
input order while it runs, and retry its failed lines. For everything else, use the official client.
"""

from importlib.util import find_spec

if find_spec("openai") is None:
    raise ModuleNotFoundError(
        "batchwright.client needs the official client: pip install 'batchwright[client]'.", name="openai"
    )

from batchwright.client.async_batch_handle import AsyncBatchHandle
from batchwright.client.async_batches import AsyncBatches
from batchwright.client.async_group_handle import AsyncGroupHandle
from batchwright.client.batch_handle import BatchHandle
from batchwright.client.batches import Batches
from batchwright.client.group_handle import GroupHandle
from batchwright.client.groups import PartsFailed
from batchwright.client.requests import Request, table
from batchwright.client.results import RequestFailed, Result, ResultsMissing
from batchwright.rules.results.line_results import LineError

__all__ = [
    "AsyncBatchHandle",
    "AsyncBatches",
    "AsyncGroupHandle",
    "BatchHandle",
    "Batches",
    "GroupHandle",
    "LineError",
    "PartsFailed",
    "Request",
    "RequestFailed",
    "Result",
    "ResultsMissing",
    "table",
]
