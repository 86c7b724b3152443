"""Failure messages for tenants contain no host, port, path or exception of the operator's system."""

import httpx
import pytest
from temporalio.exceptions import ActivityError, ApplicationError, RetryState

from batchwright.activities.services.worker_slices.slice_deferrals import waiting_reason
from batchwright.contracts.errors import Failure, LineCode
from batchwright.inference.backend_client import from_status
from batchwright.inference.circuits.circuit_breaker import CircuitBreaker
from batchwright.inference.request_outcome import from_exception, quotable_error
from batchwright.workflows.failures import code_for_tenant, gave_up_on_storage, sentence_for_tenant

SECRET = "connect to 10.1.2.3:8000 failed, see /srv/keys/backend.pem"


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError(SECRET),
        httpx.ConnectTimeout(SECRET),
        httpx.ReadTimeout(SECRET),
        httpx.RemoteProtocolError(SECRET),
        httpx.RemoteProtocolError(f"Server disconnected: {SECRET}"),
        httpx.ReadError(SECRET),
        httpx.DecodingError(SECRET),
    ],
    ids=["connect", "connect in time", "read in time", "no HTTP", "disconnected", "read", "decoding"],
)
def test_a_request_failure_is_described_without_the_exception(error: Exception) -> None:
    outcome = from_exception(error, seconds=5, max_bytes=100)
    assert outcome.message.endswith(".")
    assert "10.1.2.3" not in outcome.message + outcome.detail
    if not isinstance(error, httpx.TimeoutException) or isinstance(error, httpx.ConnectTimeout):
        assert SECRET in outcome.operator_message


def test_the_target_of_a_redirect_is_shown_only_to_operators() -> None:
    outcome = from_status(302, {b"location": b"http://10.1.2.3:8000/login?token=x"}, b"")
    assert outcome.message == "The backend redirects (302), which is not followed."
    assert outcome.cause == "to http://10.1.2.3:8000"


FOR_TENANTS = (Failure.UNEXPECTED, Failure.MODEL_RUN_FAILED)  # their messages are written for them


@pytest.mark.parametrize("kind", [*(kind for kind in Failure if kind not in FOR_TENANTS), "ValueError"])
def test_a_step_failure_is_described_without_its_message(kind: str) -> None:
    error = ActivityError(
        "Activity task failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="worker@10.1.2.3",
        activity_type="finalize",
        activity_id="1",
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
    error.__cause__ = ApplicationError(SECRET, type=kind)
    sentence = sentence_for_tenant(error)
    assert sentence.endswith(".")
    assert "10.1.2.3" not in sentence
    assert "/srv" not in sentence


@pytest.mark.parametrize(
    ("kind", "code"),
    [(Failure.WORKER_CRASHED, "worker_crashed"), (Failure.UNEXPECTED, "system_error"), ("", "system_error")],
)
def test_the_code_of_a_failed_batch_says_if_a_step_crashed_its_workers(kind: str, code: str) -> None:
    error = ActivityError(
        "Activity task failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="",
        activity_type="ingest",
        activity_id="1",
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
    error.__cause__ = ApplicationError("gone", type=kind)
    assert code_for_tenant(error) == code


def test_an_answer_for_one_tenant_is_not_in_the_waiting_reason_of_another() -> None:
    circuit = CircuitBreaker(3)
    circuit.remember_error("a", "cannot draw a cat")
    assert 'the backend\'s last error: "cannot draw a cat"' in waiting_reason(circuit, "a")
    assert "cat" not in waiting_reason(circuit, "b")


@pytest.mark.parametrize("status", [0, 1, 99])
def test_a_status_outside_http_is_not_an_answer(status: int) -> None:
    outcome = from_status(status, {}, b"{}")
    assert (outcome.code, outcome.status) == (LineCode.INVALID_RESPONSE, 0)
    assert f"{status:03}" in outcome.message


def quoted(message: bytes, status: int = 500) -> str:
    return quotable_error(from_status(status, {}, message))


@pytest.mark.parametrize(
    "address",
    [
        "http://10.1.2.3:8000/v1",
        "HTTPS://Gpu-3.example/v1",
        "10.1.2.3",
        "10.1.2.3:8000",
        "gpu-3:8000",
        "gpu-3.models.svc:8000",
        "fd00::1:2",
        "fd00:1:2:3:4:5:6:7",
    ],
)
def test_a_backend_error_is_quoted_without_addresses(address: str) -> None:
    body = f'{{"error":{{"message":"cannot reach the encoder at ({address}) for this image"}}}}'
    assert quoted(body.encode()).startswith("cannot reach the encoder at ([address]")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"out of\n\tmemory\x1b[31m", "out of memory [31m"),
        (b"<html><body>Internal Server Error</body></html>", ""),
        (b"x" * 1000, "x" * 200),
        (b"", "HTTP 500"),
    ],
)
def test_a_backend_error_is_quoted_in_one_short_line(body: bytes, words: str) -> None:
    assert quoted(body) == words


@pytest.mark.parametrize("status", [200, 400, 401, 404, 429, 503])
def test_the_text_of_a_refusal_that_uses_no_attempt_is_not_quoted(status: int) -> None:
    assert quoted(b'{"error":{"message":"the quota of our account is used up"}}', status) == ""


@pytest.mark.parametrize(
    ("kind", "state", "gave_up"),
    [
        (Failure.STORAGE_UNAVAILABLE, RetryState.NON_RETRYABLE_FAILURE, True),
        (Failure.STORAGE_UNAVAILABLE, RetryState.TIMEOUT, False),
        (Failure.RESULTS_DAMAGED, RetryState.NON_RETRYABLE_FAILURE, False),
    ],
)
def test_only_a_step_that_does_not_wait_for_storage_gives_up_on_it(
    kind: Failure, state: RetryState, gave_up: bool
) -> None:
    error = ActivityError(
        "Activity task failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="",
        activity_type="finalize",
        activity_id="1",
        retry_state=state,
    )
    error.__cause__ = ApplicationError("away", type=kind)
    assert gave_up_on_storage(error) is gave_up
