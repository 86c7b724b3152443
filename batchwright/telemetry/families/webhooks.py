"""Metrics of webhooks, counted by the workers that deliver them."""

from batchwright.telemetry.families.factory import MetricFactory


class WebhookMetrics:
    def __init__(self, create: MetricFactory) -> None:
        self.webhook_attempts = create.counter(
            "webhook_attempts_total",
            "Requests to webhook endpoints, by result: `succeeded` or `failed`",
            ["result"],
        )
        self.webhook_deliveries = create.counter(
            "webhook_deliveries_total",
            "Webhook deliveries that ended, by result: `delivered`, or `failed` after the last attempt",
            ["result"],
        )
        self.webhook_attempt_seconds = create.histogram(
            "webhook_attempt_duration_seconds", "Time of one request to a webhook endpoint"
        )
        self.webhook_endpoints_disabled = create.counter(
            "webhook_endpoints_disabled_total",
            "Webhook endpoints that were disabled because every delivery had failed for 72 hours",
        )
        self.webhook_backlog_seconds = create.gauge(
            "webhook_backlog_age_seconds",
            "Age of the oldest event that is to be delivered and has no workflow yet; 0 if there is none",
        )
