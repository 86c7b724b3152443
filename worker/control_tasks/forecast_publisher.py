"""Forecasts of batches that have not ended, for the API, for metrics and for Temporal's Web UI.

Workers with the role `control` make the forecasts.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from batchwright.activities.services.signal_budget import history_has_room
from batchwright.contracts.temporal_payloads.batch import BatchForecast
from batchwright.database.database import Database
from batchwright.database.tables.operations.forecasts import ForecastRow
from batchwright.rules.forecast.end_of_live_batches import Forecaster, must_report, window_fit
from batchwright.rules.forecast.model_queue import RemainingTime
from batchwright.rules.worker_stats import FRESH_AGE
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
_SIGNAL_TIMEOUT = timedelta(seconds=2)
_NO_ANSWER = (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)


class ForecastSignal(Protocol):
    """A function that sends a forecast to the batch's workflow."""

    async def __call__(self, batch_id: str, forecast: BatchForecast) -> bool:
        """Send the forecast to the batch's workflow. Return False if Temporal does not respond.

        If the result is False, the caller must send the forecast again. In all other cases, the result is
        True, even if the workflow does not accept the forecast. For example, the workflow has ended, or its
        history is too long.
        """
        ...


class _Batch(NamedTuple):
    tenant: str
    priority: int
    created_at: datetime
    deadline: datetime


class ForecastPublisher:
    """The publisher of forecasts: when each live batch will end.

    It stores the forecasts, and shows them as metrics. All control workers compute the same forecasts, and
    usually only one worker stores them. If a forecast has changed enough, the worker that stores it also
    sends it to the batch's workflow.

    Each refresh also stores the speeds of models, which forecasts of new batches use, and samples of the
    batches' progress.
    """

    def __init__(self, database: Database, metrics: Metrics, report: ForecastSignal) -> None:
        self._database, self._metrics, self._report = database, metrics, report
        self._forecaster = Forecaster()
        self._reported: dict[str, BatchForecast] = {}

    async def refresh(self, now: datetime) -> None:
        """Forecast the ends of all live batches.

        Store the forecasts, set metrics, and send changed forecasts to the workflows of their batches.

        Raises:
            DatabaseUnavailable: the database does not respond. The next refresh tries again.
        """
        work = await self._database.forecasts.work(now)
        traffic = await self._database.workers.traffic(FRESH_AGE)
        self._forecaster.observe([each.unsettled for each in work], traffic, now.timestamp())
        batches = {
            each.batch_id: _Batch(each.tenant, each.priority, each.created_at, each.deadline) for each in work
        }
        rows = [
            ForecastRow(batches[batch_id].tenant, batch_id, _forecast(remaining, batches[batch_id], now))
            for batch_id, remaining in self._forecaster.remaining().items()
        ]
        self._show(rows, batches, now)
        await self._database.progress.sample(now)
        await self._database.forecasts.publish_speeds(self._forecaster.speeds(), now)
        written = await self._database.forecasts.publish(rows, now)
        self._reported = {id: forecast for id, forecast in self._reported.items() if id in batches}
        for row in rows:
            if row.batch_id in written and not await self._report_news(row, batches[row.batch_id]):
                break  # the next refresh reports the others; metrics must not wait for Temporal

    def _show(self, rows: Sequence[ForecastRow], batches: dict[str, _Batch], now: datetime) -> None:
        counts = Counter[tuple[str, str]]()
        slack: dict[tuple[str], float] = {}
        for row in rows:
            batch = batches[row.batch_id]
            priority = str(batch.priority)
            counts[priority, row.forecast.window] += 1
            left = (batch.deadline - now).total_seconds() - row.forecast.p90_seconds
            slack[priority,] = min(left, slack.get((priority,), left))
        self._metrics.forecast_batches.replace(counts)
        self._metrics.forecast_slack.replace(slack)

    async def _report_news(self, row: ForecastRow, batch: _Batch) -> bool:
        before, window = self._reported.get(row.batch_id), batch.deadline - batch.created_at
        if before is not None and not must_report(before, row.forecast, window):
            return True
        if not await self._report(row.batch_id, row.forecast):
            return False
        self._reported[row.batch_id] = row.forecast
        return True


def _forecast(remaining: RemainingTime, batch: _Batch, now: datetime) -> BatchForecast:
    seconds_left = (batch.deadline - now).total_seconds()
    return BatchForecast(
        made_at=now,
        lines_per_second=round(remaining.lines_per_second, 3),
        lines_ahead=round(remaining.lines_ahead),
        p50_seconds=round(remaining.p50, 1),
        p90_seconds=round(remaining.p90, 1),
        window=window_fit(remaining, seconds_left),
    )


def temporal_forecast_signal(client: Client) -> ForecastSignal:
    """Return a function that sends a forecast to the workflow of its batch, as the signal `forecast`."""

    async def send(batch_id: str, forecast: BatchForecast) -> bool:
        workflow = client.get_workflow_handle(batch_id)
        try:
            if await history_has_room(workflow, rpc_timeout=_SIGNAL_TIMEOUT):
                await workflow.signal("forecast", forecast, rpc_timeout=_SIGNAL_TIMEOUT)
        except RPCError as error:
            logger.info("forecast not delivered", extra={"batch_id": batch_id, "error": error.message})
            return error.status not in _NO_ANSWER
        return True

    return send
