"""Read a backend's messages about jobs, which are requests whose results the backend returns later.

The messages are responses to submissions, responses to polls, and callbacks.
"""

from batchwright.contracts.errors import LineCode
from batchwright.contracts.model_registry.backend_job_config import JobConfig
from batchwright.inference.request_outcome import Outcome, invalid_response
from batchwright.rules.backends.backend_job_reports import (
    InvalidJobReport,
    JobReport,
    JobState,
    job_result,
    parse_job_report,
)
from batchwright.rules.backends.response_checks import find_problem
from batchwright.rules.dispatch import retry_policy
from batchwright.rules.dispatch.retry_policy import Budget, Classification
from batchwright.rules.json_text import is_json

JOB_RUNNING = JobReport(JobState.RUNNING)
_UNKNOWN = (404, 410)


def from_submit(outcome: Outcome, config: JobConfig, *, calls_back: bool) -> JobReport | Outcome:
    """Read the response to a job's submission, and return the backend's report on the job.

    A job is a request whose result the backend returns later. If the response is invalid, return an Outcome
    with the error.

    Args:
        outcome: the outcome of the submission.
        config: job settings of the model, which name the fields of the response.
        calls_back: True if the backend reports the end of the job by a callback. If False, a response without
            the id of the job is invalid, because the id is needed to poll the job.
    """
    if calls_back and not is_json(outcome.body):
        return JOB_RUNNING
    try:
        report = parse_job_report(outcome.body, config)
    except InvalidJobReport as error:
        return invalid_response(f"The backend accepted the request as a job and {error}.")
    if report.state is JobState.RUNNING and not report.job_id and not calls_back:
        names = config.id_field or "job_id or id"
        return invalid_response(f"The backend accepted the request as a job and returned no id at {names}.")
    return report


def from_poll(outcome: Outcome, config: JobConfig) -> JobReport | Outcome:
    """Read the response to a poll of a job, and return the backend's report on the job.

    A job is a request whose result the backend returns later. If the response has no valid report, return an
    Outcome with the error.

    Args:
        outcome: the outcome of the poll.
        config: job settings of the model, which name the fields of the response.
    """
    if not 200 <= outcome.status < 300:
        return outcome
    if not outcome.body.strip():
        return JOB_RUNNING
    try:
        return parse_job_report(outcome.body, config)
    except InvalidJobReport as error:
        return invalid_response(f"Polled for a job, the backend {error}.")


def from_callback(body: bytes, config: JobConfig) -> JobReport | Outcome:
    """Read the body of a callback, and return the backend's report on the job.

    A callback is a request by which the backend reports the end of a job. If the body has no status, the
    whole body is the job's result. If the body is invalid, return an Outcome with the error.
    """
    try:
        report = parse_job_report(body, config)
        if report.state is not JobState.RUNNING:
            return report
        if report.status:
            return invalid_response(
                f"The backend called back with the status {report.status!r}, which is not a final status."
            )
        return report._replace(state=JobState.DONE, result=job_result(body, config))
    except InvalidJobReport as error:
        return invalid_response(f"The backend called back and {error}.")


def from_finished_job(report: JobReport, job_id: str = "", backend_request_id: str = "") -> Outcome:
    """Return the outcome of a line whose job has succeeded or failed.

    A job is a request whose result the backend returns later.

    Args:
        report: the backend's report on the job.
        job_id: the job's id for the error message; empty to use the id in the report.
        backend_request_id: id that the backend gave to the request; empty if it gave none.
    """
    if report.state is JobState.DONE:
        if (problem := find_problem(200, report.result)) is not None:
            return invalid_response(problem.message, problem.detail)
        return Outcome(retry_policy.SUCCESS, 200, report.result, backend_request_id)
    verdict = retry_policy.JOB_FAILED_FOR_GOOD if report.is_final else retry_policy.JOB_FAILED
    detail = f": {report.error}" if report.error else f" with the status {report.status!r}"
    return Outcome(
        verdict, code=LineCode.JOB_FAILED, message=f"The job {job_id or report.job_id} failed{detail}"
    )


def from_failed_polls(outcome: Outcome, job_id: str) -> Outcome:
    """Return the outcome of a line if several requests for the result of its job have failed.

    A job is a request whose result the backend returns later. If the backend no longer knows the job, the
    outcome says that the job is lost. In all other cases, it says that the backend is unavailable.

    Args:
        outcome: the outcome of the last poll.
    """
    if outcome.status in _UNKNOWN:
        message = f"The backend no longer knows the job {job_id}: it returned {outcome.status}."
        return Outcome(retry_policy.JOB_LOST, code=LineCode.JOB_LOST, message=message)
    verdict = outcome.verdict
    if verdict.budget is not Budget.CREDENTIALS:
        verdict = Classification(Budget.CAPACITY, verdict.category)
    message = f"The job {job_id} could not be polled: {outcome.message or f'status {outcome.status}'}"
    return Outcome(
        verdict, code=outcome.code, message=message, retry_after=outcome.retry_after, cause=outcome.cause
    )


def poll_timeout(config: JobConfig, job_id: str) -> Outcome:
    message = f"The job {job_id} did not end within {config.max_poll_time:g} s."
    return Outcome(retry_policy.RESPONSE_TIMEOUT, code=LineCode.REQUEST_TIMEOUT, message=message)


def callback_too_large(size: int, max_bytes: int) -> Outcome:
    message = f"The backend called back with {size} bytes; a response may have at most {max_bytes} bytes."
    return Outcome(retry_policy.RESPONSE_TOO_LARGE, code=LineCode.RESPONSE_TOO_LARGE, message=message)
