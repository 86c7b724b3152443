"""The API over HTTP, for the command line; every failure is one sentence with what to do about it."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import BinaryIO, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from starter.operator_views import (
    DeletedLetter,
    LetterPage,
    QuotaPage,
    RatePage,
    RegisteredModels,
    RetriedPage,
    Stats,
    TenantLimits,
)
from starter.views import Batch, BatchPage, DeletedFile, FileObject

_Body = Mapping[str, object]
_Answer = TypeVar("_Answer", bound=BaseModel)
_RATES = "/admin/rates"
_QUOTAS = "/admin/quotas"
_MODELS = "/admin/models"
_LETTERS = "/admin/dlq"
_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
# Storing and checking a large upload may take the API long after its last byte has arrived.
_UPLOAD_TIMEOUT = httpx.Timeout(600.0, connect=5.0)


class ClientError(Exception):
    """`passing`: the same call may succeed in a moment. `refused`: the API did nothing of what was asked.

    `code` is the API's, where it gave one.
    """

    def __init__(
        self, message: str, *, passing: bool = False, refused: bool = False, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.passing, self.refused, self.code = passing, refused, code


class Client:
    """Used as a context manager. It and its calls raise ClientError."""

    def __init__(
        self, url: str, *, api_key: str = "", tenant: str = "", tenant_header: str = "X-Tenant"
    ) -> None:
        self.url = url
        headers: dict[str, str] = {}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        if tenant:
            headers[tenant_header] = tenant
        # Proxies of the environment are not asked: the API is usually on this machine or in this network.
        with self._plainly():
            # Certificates take longer to read than most calls do, and redirects to https are not followed.
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

    def upload(self, file: BinaryIO, name: str) -> FileObject:
        """Streams `file` as the input of a batch."""
        parts = {"file": (name, file, "application/jsonl")}
        with self._plainly():
            answer = self._http.post(
                "/v1/files", data={"purpose": "batch"}, files=parts, timeout=_UPLOAD_TIMEOUT
            )
        return self._read(answer, FileObject)

    def create(
        self,
        *,
        file_id: str,
        endpoint: str,
        window: str,
        metadata: dict[str, str] | None,
        deduplicate: bool = False,
        headers: dict[str, str] | None = None,
    ) -> Batch:
        """Without `deduplicate` it is as the API's settings say. `headers` are for the backends."""
        extension = {"x_batchwright": {"deduplicate": True}} if deduplicate else {}
        body = {
            "input_file_id": file_id,
            "endpoint": endpoint,
            "completion_window": window,
            "metadata": metadata,
        }
        return self._call("POST", "/v1/batches", Batch, body | extension, headers)

    def delete_file(self, file_id: str) -> DeletedFile:
        return self._call("DELETE", f"/v1/files/{quote(file_id, safe='')}", DeletedFile)

    def batch(self, batch_id: str) -> Batch:
        return self._call("GET", _path(batch_id), Batch)

    def batches(self, *, limit: int, after: str | None) -> BatchPage:
        query = httpx.QueryParams({"limit": limit} | ({"after": after} if after else {}))
        return self._call("GET", f"/v1/batches?{query}", BatchPage)

    def cancel(self, batch_id: str) -> Batch:
        return self._call("POST", _path(batch_id, "/cancel"), Batch)

    def pause(self, batch_id: str) -> Batch:
        return self._call("POST", _path(batch_id, "/x/pause"), Batch)

    def resume(self, batch_id: str, window: str | None = None) -> Batch:
        """The batch itself where it was paused; a new one where it has ended, within `window`."""
        return self._call("POST", _path(batch_id, "/x/resume"), Batch, _within(window))

    def retry(self, batch_id: str, window: str | None = None) -> Batch:
        return self._call("POST", _path(batch_id, "/x/retry"), Batch, _within(window))

    def rates(self) -> RatePage:
        return self._call("GET", _RATES, RatePage)

    def set_rate(self, model: str | None, requests_per_second: float) -> RatePage:
        body = {"model": model, "requests_per_second": requests_per_second}
        return self._call("PUT", _RATES, RatePage, body)

    def clear_rate(self, model: str | None) -> RatePage:
        query = "" if model is None else f"?{httpx.QueryParams({'model': model})}"
        return self._call("DELETE", _RATES + query, RatePage)

    def quotas(self) -> QuotaPage:
        return self._call("GET", _QUOTAS, QuotaPage)

    def quotas_of(self, tenant: str) -> TenantLimits:
        return self._call("GET", f"{_QUOTAS}/{quote(tenant, safe='')}", TenantLimits)

    def set_quotas(self, tenant: str, changes: Mapping[str, object]) -> QuotaPage:
        return self._call("PUT", _QUOTAS, QuotaPage, {"tenant": tenant, **changes})

    def clear_quotas(self, tenant: str) -> QuotaPage:
        return self._call("DELETE", f"{_QUOTAS}?{httpx.QueryParams({'tenant': tenant})}", QuotaPage)

    def dead_letters(
        self, *, tenant: str | None, batch_id: str | None, limit: int, after: str | None
    ) -> LetterPage:
        asked = {"tenant": tenant, "batch_id": batch_id, "limit": str(limit), "after": after}
        query = httpx.QueryParams({name: value for name, value in asked.items() if value is not None})
        return self._call("GET", f"{_LETTERS}?{query}", LetterPage)

    def retry_letter(self, letter: str, window: str | None) -> Batch:
        return self._call("POST", f"{_LETTERS}/{quote(letter, safe='')}/retry", Batch, _within(window))

    def retry_letters(
        self, *, tenant: str | None, batch_id: str | None, window: str | None, after: str | None
    ) -> RetriedPage:
        """Of some batches; behind `after` there may be more."""
        body = {"tenant": tenant, "batch_id": batch_id, "completion_window": window, "after": after}
        return self._call("POST", _LETTERS + "/retry-all", RetriedPage, body)

    def delete_letter(self, letter: str) -> DeletedLetter:
        return self._call("DELETE", f"{_LETTERS}/{quote(letter, safe='')}", DeletedLetter)

    def stats(self) -> Stats:
        return self._call("GET", "/v1/stats", Stats)

    def registered(self) -> RegisteredModels:
        return self._call("GET", _MODELS, RegisteredModels)

    def register(self, model: str, config: Mapping[str, object]) -> RegisteredModels:
        return self._call("PUT", f"{_MODELS}/{quote(model, safe='')}", RegisteredModels, config)

    def remove_model(self, model: str) -> RegisteredModels:
        return self._call("DELETE", f"{_MODELS}/{quote(model, safe='')}", RegisteredModels)

    def revert_model(self, model: str) -> RegisteredModels:
        return self._call("DELETE", f"/admin/model-configs/{quote(model, safe='')}", RegisteredModels)

    @contextmanager
    def content(self, file_id: str) -> Generator[Iterator[bytes]]:
        """The file's bytes, piece by piece."""
        with self._plainly(), self._http.stream("GET", f"/v1/files/{file_id}/content") as answer:
            if answer.is_error:
                answer.read()
                raise self._refusal(answer)
            yield answer.iter_bytes()

    def _call(
        self,
        method: str,
        path: str,
        kind: type[_Answer],
        body: _Body | None = None,
        headers: dict[str, str] | None = None,
    ) -> _Answer:
        with self._plainly():
            answer = self._http.request(method, path, json=body, headers=headers)
        return self._read(answer, kind)

    def _read(self, answer: httpx.Response, kind: type[_Answer]) -> _Answer:
        if answer.is_error:
            raise self._refusal(answer)
        try:
            return kind.model_validate_json(answer.content)
        except ValidationError:
            raise ClientError(
                f"What answers at {self.url} is not Batchwright's API; set BATCHWRIGHT_URL or --url."
            ) from None

    def _refusal(self, answer: httpx.Response) -> ClientError:
        code = None
        try:
            error = _ErrorBody.model_validate_json(answer.content).error
            message, code = error.message, error.code
        except ValidationError:
            message = f"{self.url} answered {answer.status_code} without saying why; check BATCHWRIGHT_URL."
        if answer.status_code == 401:
            message += " The command line sends BATCHWRIGHT_API_KEY."
        return ClientError(
            message,
            passing=answer.status_code in (429, 502, 503, 504),
            refused=answer.is_client_error,
            code=code,
        )

    @contextmanager
    def _plainly(self) -> Generator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise ClientError(
                f"Nothing answers at {self.url}: start `batchwright dev`, or set BATCHWRIGHT_URL or --url.",
                passing=True,
            ) from None
        except httpx.TimeoutException:
            raise ClientError(f"{self.url} did not answer in time; try again.", passing=True) from None
        except httpx.HTTPError as error:
            detail = str(error) or type(error).__name__
            raise ClientError(
                f"The connection to {self.url} broke ({detail}); try again.", passing=True
            ) from None
        except httpx.InvalidURL as error:
            raise ClientError(
                f"{self.url!r} is no usable URL ({error}); set BATCHWRIGHT_URL or --url."
            ) from None


def _within(window: str | None) -> _Body | None:
    return None if window is None else {"completion_window": window}


def _path(batch_id: str, below: str = "") -> str:
    """Whatever was typed stays one part of the path."""
    return f"/v1/batches/{quote(batch_id, safe='')}{below}"


class _ErrorDetail(BaseModel):
    message: str
    code: str | None = None


class _ErrorBody(BaseModel):
    error: _ErrorDetail
