"""Client of the API's routes for operators: batches, models, quotas, rate limits, holds, audit log.

A hold stops the sending of lines of a tenant or a model.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from urllib.parse import quote

from httpx import QueryParams, Response

from batchwright.contracts.api_objects.audit_log import AuditLogPage
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.api_objects.operator import (
    BatchCountsObject,
    BatchSlicesObject,
    DeadLetterPage,
    DeadLetterRetryPage,
    DeletedDeadLetter,
    HoldList,
    ModelSettingsObject,
    OperatorBatch,
    OperatorBatchPage,
    RegisteredModels,
    StatsObject,
)
from batchwright.contracts.api_objects.quotas import LimitsObject, QuotaList, RateList
from batchwright.starter.client import Client, window_body
from batchwright.starter.options import api_client

_RATES = "/admin/rates"
_QUOTAS = "/admin/quotas"
_HOLDS = "/admin/holds"
_MODELS = "/admin/models"
_DEAD_LETTERS = "/admin/dlq"
_BATCHES = "/admin/batches"
_AUDIT_LOG = "/admin/audit-log"


class OperatorClient:
    """A client for the API routes that only operators may call.

    Each method raises ClientError if the call fails.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def rates(self) -> RateList:
        return self._client.call("GET", _RATES, RateList)

    def set_rate(self, model: str | None, requests_per_second: float) -> RateList:
        body = {"model": model, "requests_per_second": requests_per_second}
        return self._client.call("PUT", _RATES, RateList, body)

    def clear_rate(self, model: str | None) -> RateList:
        query = "" if model is None else f"?{QueryParams({'model': model})}"
        return self._client.call("DELETE", _RATES + query, RateList)

    def holds(self) -> HoldList:
        return self._client.call("GET", _HOLDS, HoldList)

    def hold(self, target: Mapping[str, str]) -> HoldList:
        """Hold a tenant or a model: none of its lines are sent until the hold is released. Return all holds.

        Args:
            target: `{"tenant": NAME}` or `{"model": NAME}`.
        """
        return self._client.call("PUT", _HOLDS, HoldList, target)

    def release(self, target: Mapping[str, str]) -> HoldList:
        return self._client.call("DELETE", f"{_HOLDS}?{QueryParams(dict(target))}", HoldList)

    def quotas(self) -> QuotaList:
        return self._client.call("GET", _QUOTAS, QuotaList)

    def quotas_of(self, tenant: str) -> LimitsObject:
        return self._client.call("GET", f"{_QUOTAS}/{quote(tenant, safe='')}", LimitsObject)

    def set_quotas(self, tenant: str, changes: Mapping[str, object]) -> QuotaList:
        return self._client.call("PUT", _QUOTAS, QuotaList, {"tenant": tenant, **changes})

    def clear_quotas(self, tenant: str) -> QuotaList:
        return self._client.call("DELETE", f"{_QUOTAS}?{QueryParams({'tenant': tenant})}", QuotaList)

    def batches(self, query: Mapping[str, str]) -> OperatorBatchPage:
        """Return one page of the batches of all tenants. `query` has filters of the API, such as `tenant`."""
        return self._client.call("GET", f"{_BATCHES}?{QueryParams(dict(query))}", OperatorBatchPage)

    def batch_counts(self) -> BatchCountsObject:
        return self._client.call("GET", f"{_BATCHES}/counts", BatchCountsObject)

    def batch(self, batch_id: str) -> OperatorBatch:
        return self._client.call("GET", f"{_BATCHES}/{quote(batch_id, safe='')}", OperatorBatch)

    def batch_slices(self, batch_id: str) -> BatchSlicesObject:
        path = f"{_BATCHES}/{quote(batch_id, safe='')}/slices"
        return self._client.call("GET", path, BatchSlicesObject)

    def control_batch(self, batch_id: str, action: str) -> OperatorBatch:
        """Change a batch of any tenant, and return it.

        Args:
            action: `cancel`, `pause`, `resume` or `abandon`.
        """
        return self._client.call("POST", f"{_BATCHES}/{quote(batch_id, safe='')}/{action}", OperatorBatch)

    def prioritize_batch(self, batch_id: str, priority: int) -> OperatorBatch:
        path = f"{_BATCHES}/{quote(batch_id, safe='')}/priority"
        return self._client.call("POST", path, OperatorBatch, {"priority": priority})

    def dead_letters(
        self, *, tenant: str | None, batch_id: str | None, limit: int, after: str | None
    ) -> DeadLetterPage:
        given = {"tenant": tenant, "batch_id": batch_id, "limit": str(limit), "after": after}
        query = QueryParams({name: value for name, value in given.items() if value is not None})
        return self._client.call("GET", f"{_DEAD_LETTERS}?{query}", DeadLetterPage)

    def retry_dead_letter(self, id: str, window: str | None) -> BatchObject:
        return self._client.call(
            "POST", f"{_DEAD_LETTERS}/{quote(id, safe='')}/retry", BatchObject, window_body(window)
        )

    def retry_dead_letters(
        self, *, tenant: str | None, batch_id: str | None, window: str | None, after: str | None
    ) -> DeadLetterRetryPage:
        """Create batches that retry dead letters (lines that used up their attempts).

        One call processes one page of batches. If the result's `has_more` is True, call this again with the
        result's `last_id` as `after`.

        Args:
            tenant: retry only lines of this tenant; None for all tenants.
            batch_id: retry only lines of this batch; None for all batches.
            window: completion window of the new batches; None for the original batch's window.
            after: `last_id` of the previous page; None for the first page.
        """
        body = {"tenant": tenant, "batch_id": batch_id, "completion_window": window, "after": after}
        return self._client.call("POST", _DEAD_LETTERS + "/retry-all", DeadLetterRetryPage, body)

    def delete_dead_letter(self, id: str) -> DeletedDeadLetter:
        return self._client.call("DELETE", f"{_DEAD_LETTERS}/{quote(id, safe='')}", DeletedDeadLetter)

    def stats(self) -> StatsObject:
        return self._client.call("GET", "/v1/stats", StatsObject)

    def registered(self) -> RegisteredModels:
        return self._client.call("GET", _MODELS, RegisteredModels)

    def model(self, model: str) -> ModelSettingsObject:
        return self._client.call("GET", f"{_MODELS}/{quote(model, safe='')}", ModelSettingsObject)

    def register(self, model: str, config: Mapping[str, object], *, replace: bool) -> RegisteredModels:
        """Register `model`, and return all registered models.

        Args:
            config: settings of the model, as in the registry file.
            replace: True to replace an existing model. False to let the API reject the call if the model
                exists.
        """
        headers = None if replace else {"If-None-Match": "*"}
        return self._client.call(
            "PUT", f"{_MODELS}/{quote(model, safe='')}", RegisteredModels, config, headers
        )

    def set_model(
        self, model: str, changes: Mapping[str, object], version: int | None
    ) -> ModelSettingsObject:
        """Change some settings of a model, keep all others, and return the resulting settings.

        Args:
            changes: new values by the names of settings. None undoes an earlier change of a setting.
            version: expected version of the model. If the model has another version, the API rejects the
                change. None accepts any version.
        """
        headers = None if version is None else {"If-Match": f'"{version}"'}
        return self._client.call(
            "PATCH", f"{_MODELS}/{quote(model, safe='')}", ModelSettingsObject, changes, headers
        )

    def remove_model(self, model: str) -> RegisteredModels:
        return self._client.call("DELETE", f"{_MODELS}/{quote(model, safe='')}", RegisteredModels)

    def revert_model(self, model: str) -> RegisteredModels:
        return self._client.call("DELETE", f"/admin/model-configs/{quote(model, safe='')}", RegisteredModels)

    def audit_log(self, query: Mapping[str, str | int]) -> AuditLogPage:
        """Return one page of the audit log. `query` has parameters of the API, such as `action`."""
        return self._client.call("GET", f"{_AUDIT_LOG}?{QueryParams(dict(query))}", AuditLogPage)

    @contextmanager
    def exported_audit_log(self, query: Mapping[str, str | int]) -> Generator[Response]:
        """Context manager that exports the audit log. It yields the response, whose body is JSON lines."""
        with self._client.streamed(f"{_AUDIT_LOG}/export?{QueryParams(dict(query))}") as response:
            yield response


@contextmanager
def operator_client(url: str | None, tenant: str | None) -> Generator[OperatorClient]:
    """Context manager that yields a client of operator routes.

    If a call of the API fails in the block, the command ends with a short error.

    Args:
        url: address of the API; None for the configured address.
        tenant: tenant for which requests are sent; None for the configured tenant.
    """
    with api_client(url, tenant) as client:
        yield OperatorClient(client)
