"""Asynchronous client: submit batches and find them again."""

import asyncio
from collections.abc import Iterable, Mapping
from tempfile import SpooledTemporaryFile

from openai import AsyncOpenAI, PermissionDeniedError
from openai.types import Batch

from batchwright.client.async_batch_handle import AsyncBatchHandle
from batchwright.client.async_group_handle import AsyncGroupHandle, group_batches
from batchwright.client.groups import parts_of_group
from batchwright.client.requests import (
    MAX_BYTES_IN_MEMORY,
    BatchLimits,
    Body,
    Request,
    Submission,
    Upload,
)
from batchwright.rules.input.oversized_input import is_group


class AsyncBatches:
    """A client that submits batches, and returns handles with which you follow and control them.

    If the API responds with an error, each method raises an exception of the official client, such as
    `openai.NotFoundError`.

    Args:
        client: the official client, with the base URL of Batchwright's API and your key.
    """

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    async def submit(
        self,
        requests: Iterable[Request | Body],
        *,
        endpoint: str,
        completion_window: str = "24h",
        metadata: Mapping[str, str] | None = None,
        x_batchwright: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
    ) -> "AsyncBatchHandle":
        """Upload requests as an input file, create a batch from this file, and return the batch's handle.

        If the requests are too many or too large for one batch, they are divided into a group of several
        batches, and the returned handle has the class `AsyncGroupHandle`. If the official client repeats a
        request after a connection error, the API does not create a second file or batch.

        Args:
            requests: request bodies, `Request`s (bodies with custom ids), or the result of the function
                `table`. A body gets the custom id `request-N`; N is its index, from 0.
            endpoint: endpoint of all requests, such as `/v1/chat/completions`.
            completion_window: time after which the batch expires, such as `90m`.
            metadata: up to 16 pairs that are stored with the batch.
            x_batchwright: Batchwright's own fields of a new batch, such as `{"priority": 5}`.
            idempotency_key: for 24 hours, calls with the same key and the same requests return the same
                batch, even from different processes. If None, each call creates a batch.

        Raises:
            ValueError: there are no requests, a custom id occurs twice or is not valid Unicode text, or a
                body is not valid JSON.
            TypeError: a body has a value that JSON cannot represent.
        """
        with SpooledTemporaryFile(MAX_BYTES_IN_MEMORY) as file:
            submission = await asyncio.to_thread(Submission, requests, endpoint, file, idempotency_key)
            limits = await self._limits()
            uploads, group = await asyncio.to_thread(
                submission.uploads, limits, completion_window, metadata, x_batchwright
            )
            handles = [await self._create(upload) for upload in uploads]
        return AsyncGroupHandle(self._client, group, handles) if group else handles[0]

    async def _limits(self) -> BatchLimits:
        try:
            return await self._client.get("/x/limits", cast_to=BatchLimits)
        except PermissionDeniedError:  # a key without the scope `read`
            return BatchLimits()

    async def _create(self, upload: Upload) -> "AsyncBatchHandle":
        headers = upload.headers
        uploaded = await self._client.files.create(
            file=("requests.jsonl", upload.file), purpose="batch", extra_headers=headers
        )
        body = {"input_file_id": uploaded.id, **upload.creation}
        batch = await self._client.post("/batches", cast_to=Batch, body=body, options={"headers": headers})
        return AsyncBatchHandle(self._client, batch, upload.custom_ids)

    async def handle(self, batch_id: str) -> "AsyncBatchHandle":
        """Return the handle of an existing batch or group. A group consists of the batches of one large
        input.

        The batch may have been created in any way, for example with the official client.

        Raises:
            openai.NotFoundError: there is no such batch.
            LookupError: there is no such group, or a batch of the group is missing.
        """
        if is_group(batch_id):
            found = await group_batches(self._client, batch_id)
            handles = [AsyncBatchHandle(self._client, batch) for batch in parts_of_group(batch_id, found)]
            return AsyncGroupHandle(self._client, batch_id, handles)
        return AsyncBatchHandle(self._client, await self._client.batches.retrieve(batch_id))
