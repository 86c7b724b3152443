"""Answers of the API."""

from batchwright.telemetry.families.declare import QUICK, Declare


class ApiMetrics:
    def __init__(self, declare: Declare) -> None:
        self.api_requests = declare.counter(
            "api_requests_total", "Answers of the API", ["method", "route", "status"]
        )
        self.api_refusals = declare.counter(
            "api_refusals_total",
            "Requests that were not let in: no_key, wrong_key, attempts, scope, tenant, header",
            ["reason"],
        )
        self.api_seconds = declare.histogram(
            "api_request_duration_seconds",
            "From a request's head to the head of its answer, uploads included",
            ["method", "route"],
            buckets=QUICK,
        )
