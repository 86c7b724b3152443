"""HTTP client of the API for the command line."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from http import HTTPStatus
from types import TracebackType
from typing import BinaryIO, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from batchwright.contracts.api_objects.estimates import EstimateObject
from batchwright.contracts.api_objects.openai import (
    BatchObject,
    BatchPage,
    DeletedBatch,
    DeletedFile,
    FileObject,
)
from batchwright.contracts.api_objects.quotas import LimitsObject
from batchwright.rules.input.oversized_input import PartLimits
from batchwright.starter.client_errors import ClientError, error_of, translated_errors

_Body = Mapping[str, object]
_Model = TypeVar("_Model", bound=BaseModel)
_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
# A waiting batch has no new results for a long time. As the connection may also be dead, it is opened again.
_FOLLOW_TIMEOUT = httpx.Timeout(600.0, connect=5.0)
# After the last byte of a large upload, the API may need a long time to store and check the file.
_UPLOAD_TIMEOUT = httpx.Timeout(600.0, connect=5.0)
# The API reads a large input for minutes, at most ten, and may wait for a place before.
_ESTIMATE_TIMEOUT = httpx.Timeout(660.0, connect=5.0)
_EVENTS = "/x/events"
_EVENT_DATA = "data: "
_EVENTS_TIMEOUT = httpx.Timeout(35.0, connect=5.0)  # the API sends something at least every 15 s


class Client:
    """An HTTP client of the API, used as a context manager. Each method calls one endpoint.

    Raises:
        ClientError: `url` is not usable, or a call to the API has failed.
    """

    def __init__(
        self, url: str, *, api_key: str = "", tenant: str = "", tenant_header: str = "X-Tenant"
    ) -> None:
        self.url = url
        headers: dict[str, str] = {}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        if tenant:
            headers[tenant_header] = tenant
        # Proxies of the environment are ignored: the API usually runs on this machine or in this network.
        with translated_errors(self.url):
            # Loading the certificates takes longer than most calls. Plain HTTP does not need them,
            # because redirects to https are not followed.
            verify = httpx.URL(url).scheme != "http"
            self._http = httpx.Client(
                base_url=url, headers=headers, timeout=_TIMEOUT, trust_env=False, verify=verify
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def upload(self, file: BinaryIO, name: str, *, idempotency_key: str | None = None) -> FileObject:
        """Upload `file` as the input of a batch, with the file name `name`, and return the file object.

        A repeated call with the same `idempotency_key` returns the file of the first call.
        """
        parts = {"file": (name, file, "application/jsonl")}
        with translated_errors(self.url):
            response = self._http.post(
                "/v1/files",
                data={"purpose": "batch"},
                files=parts,
                timeout=_UPLOAD_TIMEOUT,
                headers=_idempotency_headers(idempotency_key),
            )
        return self._read(response, FileObject)

    def create(
        self,
        *,
        file_id: str,
        endpoint: str,
        window: str,
        metadata: dict[str, str] | None,
        deduplicate: bool = False,
        priority: int | None = None,
        max_cost: str | None = None,
        webhook: str | None = None,
        output_location: str | None = None,
        start_at: str | int | None = None,
        headers: dict[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> BatchObject:
        """Create a batch, and return it.

        Args:
            file_id: id of an uploaded file, or URL `s3://bucket/key` of an object that the API may read.
            window: completion window, the time after which the batch expires, such as `24h`.
            deduplicate: True to send identical requests only once; False for the default of the API.
            priority: 1 to 5, where 5 is the most urgent; None for the default of the API.
            max_cost: maximum cost of the batch; None for no limit.
            webhook: URL that gets an event when the batch ends; None for no webhook.
            output_location: `s3://bucket/prefix` to which the output files are also copied; None for no copy.
            start_at: time at which the batch starts, as RFC 3339 or Unix seconds; None to start it now.
            headers: headers that the API forwards to backends.
            idempotency_key: a repeated call with the same key returns the batch of the first call.
        """
        options = {
            "deduplicate": True if deduplicate else None,
            "priority": priority,
            "max_cost": max_cost,
            "webhook": None if webhook is None else {"url": webhook},
            "output_location": output_location,
            "start_at": start_at,
        }
        given = {name: value for name, value in options.items() if value is not None}
        extension = {"x_batchwright": given} if given else {}
        body = {
            "input_file_id": file_id,
            "endpoint": endpoint,
            "completion_window": window,
            "metadata": metadata,
        }
        sent = {**(headers or {}), **_idempotency_headers(idempotency_key)}
        return self.call("POST", "/v1/batches", BatchObject, body | extension, sent)

    def estimate(self, file_id: str, endpoint: str) -> EstimateObject:
        """Return an estimate of the lines, tokens and cost of a batch, without creating the batch.

        Args:
            file_id: id of an uploaded file, or URL `s3://bucket/key` of an object that the API may read.
            endpoint: endpoint of the requests in this file.
        """
        body = {"input_file_id": file_id, "endpoint": endpoint}
        with translated_errors(self.url):
            response = self._http.post("/v1/batches/x/estimate", json=body, timeout=_ESTIMATE_TIMEOUT)
        return self._read(response, EstimateObject)

    def change_max_cost(self, batch_id: str, max_cost: str | None) -> BatchObject:
        """Change the maximum cost of a batch in progress, and return the batch. None removes the maximum."""
        return self.call("POST", _batch_path(batch_id, "/x/max_cost"), BatchObject, {"max_cost": max_cost})

    def part_limits(self) -> PartLimits:
        """Return the maximum size of one batch in lines and bytes.

        If the API key of this client may not read the limits of the API, return the limits of OpenAI.
        """
        try:
            limits = self.call("GET", "/v1/x/limits", LimitsObject)
        except ClientError as error:
            if error.status == HTTPStatus.FORBIDDEN:
                return PartLimits()
            raise
        return PartLimits(limits.max_lines, limits.max_batch_file_bytes)

    def delete_file(self, file_id: str) -> DeletedFile:
        return self.call("DELETE", f"/v1/files/{quote(file_id, safe='')}", DeletedFile)

    def batch(self, batch_id: str) -> BatchObject:
        return self.call("GET", _batch_path(batch_id), BatchObject)

    def events(self, batch_id: str) -> Generator[BatchObject]:
        """Yield the current state of a batch, and its new state after each change.

        The iterator ends when the batch has ended or the API ends the stream.

        Raises:
            ClientError: the API has no event stream, the connection broke, or no data arrived for 35 s.
        """
        path = _batch_path(batch_id, _EVENTS)
        with self.streamed(path, _EVENTS_TIMEOUT) as response:
            for line in response.iter_lines():
                if line.startswith(_EVENT_DATA):
                    yield self._parsed(line.removeprefix(_EVENT_DATA), BatchObject)

    def batches(self, query: Mapping[str, str | int]) -> BatchPage:
        """Return one page of the list of batches, newest first.

        Args:
            query: query parameters of the API, such as `status`.
        """
        return self.call("GET", f"/v1/batches?{httpx.QueryParams(query)}", BatchPage)

    def cancel(self, batch_id: str) -> BatchObject:
        return self.call("POST", _batch_path(batch_id, "/cancel"), BatchObject)

    def delete_batch(self, batch_id: str, *, keep_files: bool) -> DeletedBatch:
        query = "?keep_files=true" if keep_files else ""
        return self.call("DELETE", _batch_path(batch_id, query), DeletedBatch)

    def pause(self, batch_id: str) -> BatchObject:
        return self.call("POST", _batch_path(batch_id, "/x/pause"), BatchObject)

    def resume(self, batch_id: str, window: str | None = None, max_cost: str | None = None) -> BatchObject:
        """Resume a paused or ended batch.

        - If the batch is paused, it continues. Return this batch. `window` and `max_cost` have no effect.
        - If the batch has ended, create a new batch that sends the lines without a result. Return the new
          batch.

        Args:
            window: completion window of the new batch; None for the ended batch's window.
            max_cost: maximum cost of the new batch; None for the maximum of the ended batch.
        """
        body = {**(window_body(window) or {}), **_cap_body(max_cost)}
        return self.call("POST", _batch_path(batch_id, "/x/resume"), BatchObject, body or None)

    def retry(
        self,
        batch_id: str,
        window: str | None = None,
        codes: Sequence[str] | None = None,
        max_cost: str | None = None,
    ) -> BatchObject:
        """Create a batch that retries the failed lines of an ended batch, and return the new batch.

        Args:
            window: completion window of the new batch; None for the ended batch's window.
            codes: error codes of the lines to retry; None for all failed lines.
            max_cost: maximum cost of the new batch; None for the maximum of the ended batch.
        """
        given = {"codes": codes} if codes else {}
        body = {**(window_body(window) or {}), **_cap_body(max_cost), **given}
        return self.call("POST", _batch_path(batch_id, "/x/retry"), BatchObject, body or None)

    def content(self, file_id: str) -> AbstractContextManager[Iterator[bytes]]:
        """Context manager that downloads a file. It yields an iterator over the file's bytes."""
        return self.download(f"/v1/files/{file_id}/content")

    @contextmanager
    def download(self, path: str) -> Generator[Iterator[bytes]]:
        """Context manager that sends a GET request. It yields an iterator over the bytes of the response."""
        with self.streamed(path) as response:
            yield response.iter_bytes()

    @contextmanager
    def streamed(self, path: str, timeout: httpx.Timeout = _TIMEOUT) -> Generator[httpx.Response]:
        """Context manager that sends a GET request. It yields the response before its body is read."""
        with translated_errors(self.url), self._http.stream("GET", path, timeout=timeout) as response:
            if response.is_error:
                response.read()
                raise error_of(response, self.url)
            yield response

    @contextmanager
    def live_results(
        self, batch_id: str, *, failed: bool, after: str | None, in_input_order: bool
    ) -> Generator[Iterator[bytes]]:
        """Context manager that yields an iterator over the results of a batch, as bytes.

        The iterator yields results while the batch is running, and ends after the batch has ended. The API
        may also end the response earlier.

        Args:
            failed: True for the lines of the error file, False for the lines of the output file.
            after: id of a line; None to begin with the first line. The results begin after this line. If
                `in_input_order` is False, `after` must be None.
            in_input_order: True for the order of the input, False for the order in which results become
                final.
        """
        query = {"follow": "true", "status": "failed" if failed else "completed"}
        if after is not None:
            query["after"] = after
        if not in_input_order:
            query["order"] = "settled"
        path = _batch_path(batch_id, f"/x/results?{httpx.QueryParams(query)}")
        with self.streamed(path, _FOLLOW_TIMEOUT) as response:
            yield response.iter_bytes()

    def call(
        self,
        method: str,
        path: str,
        kind: type[_Model],
        body: _Body | None = None,
        headers: dict[str, str] | None = None,
    ) -> _Model:
        """Send a request with `body` as JSON to the API. Return the response as an object of type `kind`."""
        with translated_errors(self.url):
            response = self._http.request(method, path, json=body, headers=headers)
        return self._read(response, kind)

    def _read(self, response: httpx.Response, kind: type[_Model]) -> _Model:
        if response.is_error:
            raise error_of(response, self.url)
        return self._parsed(response.content, kind)

    def _parsed(self, content: str | bytes, kind: type[_Model]) -> _Model:
        try:
            # Responses of a newer API may have fields that this version does not know.
            return kind.model_validate_json(content, extra="allow")
        except ValidationError:
            raise ClientError(
                f"The server at {self.url} is not Batchwright's API; set BATCHWRIGHT_URL or --url."
            ) from None


def _idempotency_headers(idempotency_key: str | None) -> dict[str, str]:
    return {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}


def window_body(window: str | None) -> _Body | None:
    return None if window is None else {"completion_window": window}


def _cap_body(max_cost: str | None) -> _Body:
    return {} if max_cost is None else {"max_cost": max_cost}


def _batch_path(batch_id: str, below: str = "") -> str:
    """Return the URL path of a batch, with `below` (such as `/cancel`) at its end.

    Special characters in the id are escaped.
    """
    return f"/v1/batches/{quote(batch_id, safe='')}{below}"
