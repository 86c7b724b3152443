"""Forecast when a batch will be done, before its first line is sent, and decide whether to refuse it."""

from collections.abc import Mapping
from datetime import UTC, datetime

from batchwright.activities.ingestion.scanner import IngestionContext, Scanner
from batchwright.contracts.temporal_payloads.batch import StartFit, StartForecast
from batchwright.contracts.terms import ValidationError, WindowTooShort
from batchwright.database.database import Database
from batchwright.database.tables.operations.forecasts import ForecastsTable
from batchwright.rules.forecast.end_of_new_batch import forecast_new_batch
from batchwright.rules.forecast.work_ahead import UnsettledWork
from batchwright.rules.input.validation_errors import window_too_short
from batchwright.telemetry.metrics import Metrics


async def check_window(
    database: Database, metrics: Metrics, context: IngestionContext, scanner: Scanner
) -> ValidationError | None:
    """Forecast when a validated batch will be done. Return an error if the batch is refused, otherwise None.

    The batch is refused if both conditions hold: the forecast says that it cannot be done before its
    deadline, and the tenant's setting for this case is `WindowTooShort.REFUSE`.

    The forecast and the decision are stored together. If ingestion has several attempts, all of them use the
    first stored forecast and decision.
    """
    lines = {model: len(planned) for model, planned in scanner.models.items() if len(planned)}
    if scanner.deadline_passed or not lines:
        return None
    forecast = context.start_forecast or await _forecast_start(database.forecasts, context, lines)
    if forecast is None or not forecast.refused:
        return None
    metrics.quota_refusals.labels(metrics.tenants(context.order.tenant), "window_too_short").inc()
    return window_too_short(context.order, forecast)


async def _forecast_start(
    table: ForecastsTable, context: IngestionContext, lines: Mapping[str, int]
) -> StartForecast | None:
    """Forecast when a batch will be done. Store the forecast, and whether the batch is refused.

    Return the stored forecast. Return None in two cases: the speed of one of the models is not known, or the
    status of the batch is no longer `validating`.

    Args:
        table: contains the speeds of models and the lines that other batches still have to send, and stores
            the forecast.
        context: the batch and its quotas.
        lines: number of lines to send, by model.
    """
    order, quotas, now = context.order, context.access.quotas, datetime.now(UTC)
    speeds = await table.speeds(lines.keys(), now)
    if speeds.keys() != lines.keys():
        return None
    work = [
        UnsettledWork(
            tenant=order.tenant,
            batch_id=order.batch_id,
            model=model,
            settled=0,
            left=count,
            began=now.timestamp(),
            weight=order.weight if quotas.weight is None else quotas.weight,
            priority=order.priority,
        )
        for model, count in lines.items()
    ]
    queue = [each.unsettled for each in await table.work(now, lines.keys())]
    expected = forecast_new_batch(work, queue, speeds)
    if expected is None:
        return None
    fit = expected.fit((order.deadline - now).total_seconds())
    forecast = StartForecast(
        made_at=now,
        window=fit,
        p50_seconds=round(expected.p50, 1),
        p90_seconds=round(expected.p90, 1),
        soonest_seconds=round(expected.soonest, 1),
        lines_ahead=round(expected.lines_ahead),
        refused=fit is StartFit.CANNOT and quotas.window_too_short is WindowTooShort.REFUSE,
    )
    return await table.record_start(order.tenant, order.batch_id, forecast)
