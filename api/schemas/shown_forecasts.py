"""Builds the forecasts of a batch's end that responses of the API show. `rules/forecast/` computes them."""

from datetime import datetime, timedelta

from batchwright.contracts.api_objects.openai import ForecastObject, StartForecastObject
from batchwright.contracts.temporal_payloads.batch import StartForecast
from batchwright.database.records import BatchRow

FORECAST_AGE = timedelta(minutes=1)  # control workers forecast every 15 s


def forecast_object(row: BatchRow, now: datetime) -> ForecastObject | None:
    """Return the forecast of when a batch ends, as of the time `now`; None if there is no valid forecast.

    Control workers (worker processes that run workflows) make forecasts. A forecast is valid for
    `FORECAST_AGE` after it was made. There is no valid forecast in these cases:

    - No forecast was made yet.
    - The batch is being cancelled.
    - The batch has been paused for longer than `FORECAST_AGE`.
    - No control worker has run for longer than `FORECAST_AGE`.
    """
    forecast = row.forecast
    if forecast is None or row.cancel_requested_at is not None or now - forecast.made_at > FORECAST_AGE:
        return None
    p50, p90 = forecast.seconds_left(now)
    return ForecastObject(
        window=forecast.window,
        remaining_seconds_p50=round(p50),
        remaining_seconds_p90=round(p90),
        lines_per_second=forecast.lines_per_second,
        lines_ahead=forecast.lines_ahead,
        made_at=int(forecast.made_at.timestamp()),
    )


def start_forecast_object(forecast: StartForecast) -> StartForecastObject:
    return StartForecastObject(
        window=forecast.window,
        seconds_p50=round(forecast.p50_seconds),
        seconds_p90=round(forecast.p90_seconds),
        lines_ahead=forecast.lines_ahead,
        made_at=int(forecast.made_at.timestamp()),
    )
