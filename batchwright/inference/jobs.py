"""What was told of a job as the outcome of its line."""

from batchwright.contracts.errors import LineCode
from batchwright.contracts.jobs import JobConfig
from batchwright.inference.outcomes import Outcome, unreadable
from batchwright.rules import retries
from batchwright.rules.answers import is_json
from batchwright.rules.jobs import NotOfJob, State, Told, read_told, result_of
from batchwright.rules.retries import Budget, Verdict
from batchwright.rules.usable import problem_of

GOES_ON = Told(State.GOES_ON)
_UNKNOWN = (404, 410)


def taken(outcome: Outcome, config: JobConfig, *, calls_back: bool) -> Told | Outcome:
    """What a backend said that accepted a submit: a job that goes on has an id, unless it calls back."""
    if calls_back and not is_json(outcome.body):
        return GOES_ON
    try:
        told = read_told(outcome.body, config)
    except NotOfJob as error:
        return unreadable(f"The backend took the request as a job and {error}.")
    if told.state is State.GOES_ON and not told.job_id and not calls_back:
        names = config.id_field or "job_id or id"
        return unreadable(f"The backend took the request as a job and named no id at {names}.")
    return told


def looked(outcome: Outcome, config: JobConfig) -> Told | Outcome:
    """What came of asking after a job; an Outcome where that says nothing of it."""
    if not 200 <= outcome.status < 300:
        return outcome
    if not outcome.body.strip():
        return GOES_ON
    try:
        return read_told(outcome.body, config)
    except NotOfJob as error:
        return unreadable(f"Asked after a job, the backend {error}.")


def called(body: bytes, config: JobConfig) -> Told | Outcome:
    """What a backend told by its call, which it makes once, at the end; without a status it is the result."""
    try:
        told = read_told(body, config)
        if told.state is not State.GOES_ON:
            return told
        if told.word:
            return unreadable(f"The backend called back with the status {told.word!r}, which is no end.")
        return told._replace(state=State.DONE, result=result_of(body, config))
    except NotOfJob as error:
        return unreadable(f"The backend called back and {error}.")


def ended(told: Told, job_id: str = "", backend_request_id: str = "") -> Outcome:
    """Of a job that goes on no more."""
    if told.state is State.DONE:
        if (problem := problem_of(200, told.result)) is not None:
            return unreadable(problem.message, problem.detail)
        return Outcome(retries.SUCCESS, 200, told.result, backend_request_id)
    verdict = retries.JOB_REFUSED if told.is_final else retries.JOB_FAILED
    said = f": {told.error}" if told.error else f" with the status {told.word!r}"
    return Outcome(verdict, code=LineCode.JOB_FAILED, message=f"The job {job_id or told.job_id} failed{said}")


def out_of_sight(outcome: Outcome, job_id: str) -> Outcome:
    """It was asked after in vain, again and again: it is lost, or else its backend takes nothing now."""
    if outcome.status in _UNKNOWN:
        message = f"The backend does not know the job {job_id} any more: it answered {outcome.status}."
        return Outcome(retries.JOB_LOST, code=LineCode.JOB_LOST, message=message)
    verdict = outcome.verdict
    if verdict.budget is not Budget.BLOCKED:
        verdict = Verdict(Budget.CAPACITY, verdict.category)
    message = f"The job {job_id} could not be asked after: {outcome.message or f'status {outcome.status}'}"
    return Outcome(verdict, code=outcome.code, message=message, retry_after=outcome.retry_after)


def overdue(config: JobConfig, job_id: str) -> Outcome:
    message = f"The job {job_id} did not end within {config.max_poll_time:g} s."
    return Outcome(retries.NO_ANSWER_IN_TIME, code=LineCode.REQUEST_TIMEOUT, message=message)


def too_large(size: int, most: int) -> Outcome:
    message = f"The backend called back with {size} bytes; the answer is larger than {most} bytes."
    return Outcome(retries.TOO_LARGE, code=LineCode.RESPONSE_TOO_LARGE, message=message)
