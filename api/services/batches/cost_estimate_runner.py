"""Estimates the tokens and the cost of a batch from its input, without creating the batch."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, closing
from functools import partial

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import (
    ApiError,
    estimate_too_slow,
    file_not_found,
    input_refused,
    invalid_value,
)
from batchwright.api.schemas.batch_create import EstimateRequest, parse_estimate
from batchwright.api.services.batches.creation import check_input_location
from batchwright.api.services.expensive_task_limiter import ExpensiveTaskLimiter
from batchwright.api.services.quota_checks import QuotaChecks
from batchwright.contracts.api_objects.estimates import EstimatedTime, EstimateObject
from batchwright.contracts.errors import LineCode
from batchwright.rules.forecast.end_of_new_batch import forecast_new_batch
from batchwright.rules.forecast.work_ahead import UnsettledWork
from batchwright.rules.ids import is_file_id
from batchwright.rules.input.input_validator import InputValidator
from batchwright.rules.planning.cost_estimate import InputEstimator, estimate_object
from batchwright.storage.base import ObjectMissing
from batchwright.storage.files import run_in_thread
from batchwright.storage.referenced_input import InputRefused, ReferencedInput, StoredBytes
from batchwright.storage.spill.spilled_bytes import SpillSpace

_AT_ONCE = 4  # an estimate takes about a second of CPU time for 50,000 lines
# Beyond so many lines, an estimate takes up to 64 MiB of memory more, and then disk. One at a time may do so.
_LARGE_LINES = 1_000_000
_WAIT_SECONDS = 20.0
_MAX_SECONDS = 600.0  # for one input, so that a slow bucket does not keep a place forever
_DEFAULT_WEIGHT = 1.0


class EstimateRunner:
    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._limiter = ExpensiveTaskLimiter(_AT_ONCE, _WAIT_SECONDS, work="estimates are being made")
        work = f"estimates of inputs of more than {_LARGE_LINES:,} lines are being made"
        self._large = ExpensiveTaskLimiter(1, _WAIT_SECONDS, work=work)

    async def estimate(self, tenant: str, fields: Mapping[str, object]) -> EstimateObject:
        """Read the input of a batch, and return the estimated lines, tokens and cost of the batch.

        Args:
            fields: body of the request.

        Raises:
            ApiError: a field is not valid. The input cannot be read or is too large. Reading the input takes
                too long (503). Too many other estimates are running (429).
        """
        request = parse_estimate(fields, self._deps.settings)
        content = await self._content(tenant, request)
        name = request.input_file_id or request.input_location
        async with self._limiter.slot(tenant, name), AsyncExitStack() as held:
            enter_large = partial(held.enter_async_context, self._large.slot(tenant, name))
            return await self._estimate_content(tenant, request, content, enter_large)

    async def _estimate_content(
        self,
        tenant: str,
        request: EstimateRequest,
        content: AsyncGenerator[bytes],
        enter_large: Callable[[], Awaitable[object]],
    ) -> EstimateObject:
        """Return the estimate of a batch, from the content of its input.

        Args:
            request: the validated request for an estimate.
            content: the bytes of the input, in parts.
            enter_large: function that is called once if the input is large (more than _LARGE_LINES lines). It
                waits until no other estimate of a large input runs. If it waits too long, it raises ApiError
                (429).
        """
        settings = self._deps.settings
        served = await self._deps.models.served_now()
        with closing(SpillSpace(settings.spool_dir, "An estimate")) as space:
            validator = InputValidator(
                request.endpoint, settings.profile, settings.input_limits, space.new_bytes
            )
            estimator = InputEstimator(
                request.endpoint, validator, self._canonical, settings.max_models_per_batch
            )
            await self._read(content, estimator, enter_large)
        models, own = estimator.models.keys(), await self._deps.database.quotas.get(tenant)
        refused: dict[str, str] = {}
        for model in models:
            if model and not own.may_use(model):
                refused[model] = LineCode.POLICY_REJECTED
            elif model not in served and not self._deps.models.accepts_unlisted(model):
                refused[model] = LineCode.MODEL_NOT_FOUND
        found = ((model, self._deps.models.prices_of(model)) for model in models)
        prices = {model: price for model, price in found if price is not None}
        history = await self._deps.database.batch_list.output_history(tenant, request.endpoint, list(models))
        found = estimate_object(estimator, prices, history, refused)
        lines = {each.model: each.lines for each in found.models if each.error is None}
        forecast = await self._forecast(tenant, lines, weight=own.weight or _DEFAULT_WEIGHT)
        return found.model_copy(update={"forecast": forecast})

    async def _forecast(
        self, tenant: str, lines: Mapping[str, int], *, weight: float
    ) -> EstimatedTime | None:
        """Return how long a batch with these lines would take; None if this cannot be forecast.

        Args:
            tenant: tenant of the batch.
            lines: number of the batch's lines, by model.
            weight: the tenant's share of the workers, relative to other tenants.
        """
        table, now = self._deps.database.forecasts, self._deps.clock()
        speeds = await table.speeds(lines.keys(), now)
        if not lines or speeds.keys() != lines.keys():
            return None
        began = now.timestamp()
        batch = [
            UnsettledWork(tenant, "", model, settled=0, left=left, began=began, weight=weight)
            for model, left in lines.items()
        ]
        queue = [each.unsettled for each in await table.work(now, lines.keys())]
        expected = forecast_new_batch(batch, queue, speeds)
        if expected is None:
            return None
        return EstimatedTime(
            seconds_p50=round(expected.p50),
            seconds_p90=round(expected.p90),
            lines_ahead=round(expected.lines_ahead),
        )

    async def _content(self, tenant: str, request: EstimateRequest) -> AsyncGenerator[bytes]:
        """Check that the tenant may read the input, and return its bytes in parts.

        Raises:
            ApiError: the URL of the input is not valid (400). The operator has not allowed this URL (403).
                The input file does not exist (404). The input file is too large (400).
        """
        settings = self._deps.settings
        if url := request.input_location:
            check_input_location(settings, url, tenant)
            quota, used = await QuotaChecks(self._deps, tenant).storage_quota()
            return ReferencedInput(self._deps.input_objects, url, StoredBytes(used, quota)).pieces()
        file_id = request.input_file_id
        file = await self._deps.database.files.get(tenant, file_id) if is_file_id(file_id) else None
        if file is None:
            raise file_not_found(file_id)
        if file.bytes > settings.max_batch_file_bytes:
            message = (
                f"The file has {file.bytes} bytes; a batch takes at most {settings.max_batch_file_bytes}."
            )
            raise invalid_value("input_file_id", message)
        return self._stored_content(file.id, file.storage_key)

    async def _stored_content(self, file_id: str, key: str) -> AsyncGenerator[bytes]:
        try:
            async for piece in self._deps.storage.read(key):
                yield piece
        except ObjectMissing:
            message = f"The content of file '{file_id}' is missing."
            raise ApiError(500, message, code="content_missing") from None

    async def _read(
        self,
        content: AsyncGenerator[bytes],
        estimator: InputEstimator,
        enter_large: Callable[[], Awaitable[object]],
    ) -> None:
        """Pass the input to the estimator in parts. Only one part is in memory at a time.

        Args:
            content: the bytes of the input, in parts.
            estimator: object that counts the lines and estimates their tokens.
            enter_large: function that is called once if the input is large (more than _LARGE_LINES lines). It
                waits until no other estimate of a large input runs.

        Raises:
            ApiError: the input cannot be read. Reading the input takes too long (503). `enter_large` has
                waited too long (429).
        """
        try:
            async with asyncio.timeout(_MAX_SECONDS), aclosing(content):
                is_large = False
                async for piece in content:
                    if not is_large and estimator.lines >= _LARGE_LINES:
                        await enter_large()
                        is_large = True
                    await run_in_thread(partial(estimator.feed, piece))
                await run_in_thread(estimator.finish)
        except TimeoutError:
            raise estimate_too_slow(_MAX_SECONDS) from None
        except InputRefused as refused:
            raise input_refused(refused.error) from None

    def _canonical(self, name: str | None) -> str:
        return self._deps.models.canonical(name or self._deps.settings.default_model)
