"""Writes the reference page of errors: all error codes of lines, and how responses affect a line."""

from typing import NamedTuple

from batchwright.contracts.errors import NEVER_RETRIED, Failure, LineCode
from batchwright.rules.dispatch.retry_policy import STATUS_CLASSES, Budget, classify


class CodeExplanation(NamedTuple):
    """Cause of an error code, and its remedy."""

    cause: str
    remedy: str


CODES: dict[LineCode, CodeExplanation] = {
    LineCode.BATCH_EXPIRED: CodeExplanation(
        "The completion window ended before the line had a result: it was not sent, or its response came too "
        "late.",
        "Resume the batch with another window. `waiting` of the batch says what it waited for.",
    ),
    LineCode.BATCH_CANCELLED: CodeExplanation(
        "The batch was cancelled before the line had a result.", "Resume it."
    ),
    LineCode.BATCH_FAILED: CodeExplanation(
        "The batch failed as a whole before the line had a result.",
        "Read `errors` of the batch, then resume it.",
    ),
    LineCode.BUDGET_EXCEEDED: CodeExplanation(
        "The batch reached the cap on its cost (`x_batchwright.max_cost`) before the line was sent.",
        "`cost` of the batch says what it has cost. Resume it with a higher `max_cost`.",
    ),
    LineCode.REQUEST_TIMEOUT: CodeExplanation(
        "On every attempt, the backend accepted the request but did not respond in time, or its job did not "
        "end in time.",
        "Raise `BATCHWRIGHT_REQUEST_TIMEOUT_SECONDS` or the backend's `request_timeout` (for jobs "
        "`max_poll_time`), or request a shorter response (`max_tokens`). Then retry the line.",
    ),
    LineCode.CONNECTION_ERROR: CodeExplanation(
        "On every attempt, the connection ended after the request was sent and before the response was "
        "complete.",
        "Read the backend's log: the request may crash the server. Check the timeouts of proxies on the way. "
        "Then retry the line.",
    ),
    LineCode.INVALID_RESPONSE: CodeExplanation(
        "On every attempt, the backend sent something that is not HTTP or not a result. The message says "
        "what.",
        "Check that the URL belongs to an API and not to a web page. Send the request by hand.",
    ),
    LineCode.RESPONSE_TOO_LARGE: CodeExplanation(
        "The response is larger than `BATCHWRIGHT_MAX_RESPONSE_BYTES` and was not read.",
        "Raise the setting, or request a shorter response.",
    ),
    LineCode.INVALID_REQUEST: CodeExplanation(
        "The `params` of a request in a message batch are not valid. The message says why. In other batches, "
        "such a line fails the whole batch.",
        "Correct the request, and create a new batch of it.",
    ),
    LineCode.MODEL_NOT_FOUND: CodeExplanation(
        "No backend serves the line's model.",
        "`GET /v1/models` lists the served models: correct the line, or register the model.",
    ),
    LineCode.POLICY_REJECTED: CodeExplanation(
        "The tenant may not use the line's model, or no longer may; the API key that created the batch "
        "was revoked or has expired; a daily budget of the tenant, of that key, or of an organization, "
        "team or user that they belong to is used up; or a hook of the operator's refused it. The message "
        "says which.",
        "`GET /v1/models` lists what the tenant may use, `GET /v1/x/limits` what is left of its budgets: "
        "retry the batch with another key, or when the day in UTC is over or the budget raised. A hook has a "
        "message of its own.",
    ),
    LineCode.WORKER_CRASHED: CodeExplanation(
        "Workers crashed each time they executed the line, finally while they executed no other line of "
        "its slice. In `errors` of a failed batch: workers crashed each time they read its input, its "
        "results or its lines, finally while no other work that may crash them was running.",
        "Read the worker's log and check its memory limit. Then retry only this line, or resume the batch. "
        "If it fails again, submit its file in smaller parts.",
    ),
    LineCode.JOB_FAILED: CodeExplanation(
        "The backend accepted the request as a job, and the job failed on every attempt, or once with "
        "`retryable` false. The message quotes the backend.",
        "Find the job in the backend's log. Correct the line, or retry it.",
    ),
    LineCode.JOB_LOST: CodeExplanation(
        "On every attempt, the backend accepted the request as a job but did not know the job when it was "
        "polled (404 or 410, three times in a row).",
        "Check whether the backend restarts, forgets jobs too early, or shares its URL with other servers, "
        "and whether `poll_endpoint_template` is correct. Then retry the line.",
    ),
    LineCode.HOOK_FAILED: CodeExplanation(
        "On every attempt, one of the operator's hooks raised an exception, took too long or returned no "
        "body, so the line was not sent. The message says which.",
        "Read the exception in the worker's log. Correct the hook, or raise "
        "`BATCHWRIGHT_HOOK_TIMEOUT_SECONDS` if it took too long. Restart the workers, and retry the line.",
    ),
}


class AnswerOutcome(NamedTuple):
    """A row in the table of responses: a kind of response, and its effect on the line.

    `what` describes the response. `budget` decides if the response ends the line, uses up one of its
    attempts, or makes it wait. `ends` is the error code that the line may end with, or a description of how
    the line ends.
    """

    what: str
    budget: Budget
    ends: LineCode | str


_S, _A, _C, _B = Budget.SETTLED, Budget.ATTEMPT, Budget.CAPACITY, Budget.CREDENTIALS
_RESULT, _ITS_ANSWER, _WAITS = "the response, in the output file", "the response, in the error file", "waits"
_INVALID = LineCode.INVALID_RESPONSE

# A test sends each of these responses from a server of its own, and compares the effect.
ANSWER_OUTCOMES = [
    AnswerOutcome("200 with HTML, with any content type", _A, _INVALID),
    AnswerOutcome("200 with an empty body", _A, _INVALID),
    AnswerOutcome("200 with truncated JSON", _A, _INVALID),
    AnswerOutcome("200 with an event stream", _A, _INVALID),
    AnswerOutcome("200 with text that is not UTF-8", _A, _INVALID),
    AnswerOutcome("200 with a content encoding that the body does not have", _A, _INVALID),
    AnswerOutcome("200 with JSON that is not an object", _A, _INVALID),
    AnswerOutcome("200 with an error in its body", _A, _INVALID),
    AnswerOutcome("200 with an error in its body that has status 429", _C, _WAITS),
    AnswerOutcome("200 with an error in its body that has status 400", _S, _ITS_ANSWER),
    AnswerOutcome("200 with a JSON object and another content type", _S, _RESULT),
    AnswerOutcome("200 without usage: no tokens are counted", _S, _RESULT),
    AnswerOutcome("200 with invalid usage, such as a negative number: no tokens are counted", _S, _RESULT),
    AnswerOutcome("200 with a body above the limit, announced", _S, LineCode.RESPONSE_TOO_LARGE),
    AnswerOutcome("200 with a body of 100 MB, not announced", _S, LineCode.RESPONSE_TOO_LARGE),
    AnswerOutcome(
        "200 with a compressed body that decompresses to more than the limit", _S, LineCode.RESPONSE_TOO_LARGE
    ),
    AnswerOutcome(
        "200 with a body compressed twice that decompresses to more than the limit",
        _S,
        LineCode.RESPONSE_TOO_LARGE,
    ),
    AnswerOutcome("204", _A, _INVALID),
    AnswerOutcome("500 of a gateway that cannot reach its upstream", _C, _WAITS),
    AnswerOutcome("embeddings: another number than inputs", _A, _INVALID),
    AnswerOutcome("embeddings: the same index twice", _A, _INVALID),
    AnswerOutcome("embeddings: not a list", _A, _INVALID),
    AnswerOutcome("embeddings: in another order, with their indexes", _S, _RESULT),
    AnswerOutcome("a redirect, to the same or another host: it is not followed", _C, _WAITS),
    AnswerOutcome("endless interim responses (1xx)", _A, _INVALID),
    AnswerOutcome("a switch to another protocol (101)", _A, _INVALID),
    AnswerOutcome("endless headers", _A, _INVALID),
    AnswerOutcome("an endless trailer", _A, _INVALID),
    AnswerOutcome("something that is not HTTP", _A, _INVALID),
    AnswerOutcome("a status below 100", _A, _INVALID),
    AnswerOutcome("the connection ends within the response", _A, LineCode.CONNECTION_ERROR),
    AnswerOutcome("the connection ends without a response", _A, LineCode.CONNECTION_ERROR),
    AnswerOutcome("no response in time", _A, LineCode.REQUEST_TIMEOUT),
    AnswerOutcome("the response stops before its end", _A, LineCode.REQUEST_TIMEOUT),
    AnswerOutcome("no connection: no process listens", _C, _WAITS),
    AnswerOutcome("no connection: the host has no address", _C, _WAITS),
    AnswerOutcome("no connection: expired TLS certificate", _C, _WAITS),
    AnswerOutcome("no connection: TLS certificate for another host", _C, _WAITS),
    AnswerOutcome("no connection: TLS certificate of an untrusted CA", _C, _WAITS),
    AnswerOutcome("no connection: https to a port without TLS", _C, _WAITS),
    AnswerOutcome("no connection: a TLS handshake that never ends", _C, _WAITS),
]

_AGAIN = {_S: "no", _A: "`max_attempts` times", _C: "until the window ends", _B: "until the window ends"}
_CIRCUIT = {_S: "unchanged", _A: "unchanged *", _C: "opens after several", _B: "opens at once"}
_TABLE = "| {} | retried | circuit breaker | final result of the line |\n|---|---|---|---|"

_BAD = """
## Invalid responses

Batchwright judges a response by its status and its body, not by its content type. Only a JSON object is a
result. An error body that contains a status is treated as a response with that status. Gateways such as
LiteLLM's proxy respond 500 where others respond 502: a 500 whose error names a failed connection, in its
type or at the beginning of its message, is treated as 502, unless the request itself contains these words.
Any other 500 may be caused by the line.

*waits*: the line uses no attempt. It is sent again, at once to another backend if there is one, until the
window ends (`batch_expired`) or for `give_up_after` if that is set.

*circuit breaker*: that of the model at this backend. It opens after `BATCHWRIGHT_CIRCUIT_FAILURES` such
responses in a row. While it is open, only probes are sent there, and other backends get the lines.

\\* A response that may be caused by the line uses one of its attempts if the backend answers other lines
meanwhile. If as many lines as open the circuit breaker fail and none succeeds, the worker probes the
backend. It sends a minimal request ("ping", one token; likewise for embeddings, completions, responses,
messages and moderations) with the backend's key and the request id `batchwright-probe`. Other endpoints and
jobs are not probed.

- If the probe succeeds, the lines are at fault, and each ends with its response after its attempts.
- If it fails, but `GET /health` (or the model list, if `/health` does not exist) succeeds, the circuit
  breaker opens. One line is tried each second, and a 5xx response uses an attempt of that line.
- If both fail, the backend is at fault. No attempt is used, and the lines wait.

Failures of one tenant's lines do not open the circuit breaker before a waiting line of another tenant was
tried. While lines wait, the batch's waiting reason quotes the backend's last error for the tenant's own
lines. The error file quotes it for lines that have no result when the window ends or the batch is cancelled.
"""

_STATUSES = """
## Statuses

If the backend asks for a wait (`retry-after-ms`, or `retry-after` in seconds or as a date), Batchwright
waits for that time, up to five minutes. If the line may be at fault, the header `x-should-retry` decides:
`true` retries it, `false` ends the line with its response.
"""


def page(generated: str) -> str:
    """Return the text of the page. `generated` is the comment that marks a page as generated."""
    codes = [f"| `{code}` | {told.cause} | {told.remedy} |" for code, told in CODES.items()]
    failures = [f"| `{name}` | {_retried(name)} |" for name in Failure]
    return "\n".join(
        [
            f"# Error codes\n\n{generated}",
            "Codes of lines in the error file that have no response of a backend. "
            "[How to retry or resume](../how-to/rerun-a-batch.md).\n",
            "| code | cause | remedy |\n|---|---|---|",
            *codes,
            _BAD,
            _TABLE.format("the backend sends"),
            *(_row(answer.what, answer.budget, _shown(answer.ends)) for answer in ANSWER_OUTCOMES),
            _STATUSES,
            _TABLE.format("status"),
            *_statuses(),
            "\n## Failures of activities\n\nTemporal's Web UI shows these types.\n",
            "| type | retried |\n|---|---|",
            *failures,
            "",
        ]
    )


def _retried(failure: Failure) -> str:
    if failure is Failure.UNEXPECTED:
        return "four times, then its batch fails; the workers' log has the traceback of the exception"
    return "no" if failure in NEVER_RETRIED else "yes"


def _shown(ends: LineCode | str) -> str:
    return f"`{ends}`" if isinstance(ends, LineCode) else ends


def _row(what: str, budget: Budget, ends: str) -> str:
    return f"| {what} | {_AGAIN[budget]} | {_CIRCUIT[budget]} | {ends} |"


def _statuses() -> list[str]:
    """Return the table rows of HTTP statuses. Statuses with the same effect share a row."""
    groups: dict[Budget, list[str]] = {}
    for status, verdict in sorted(STATUS_CLASSES.items()):
        if status not in range(521, 530):
            name = "520 to 529" if status == 520 else str(status)
            groups.setdefault(verdict.budget, []).append(name)
    for status, name in ((300, "3xx"), (400, "every other 4xx"), (500, "every other 5xx")):
        groups.setdefault(classify(status).budget, []).append(name)
    ends = {_S: _ITS_ANSWER, _A: _ITS_ANSWER, _C: _WAITS, _B: _WAITS}
    return [_row(", ".join(groups[budget]), budget, ends[budget]) for budget in (_S, _A, _C, _B)]
