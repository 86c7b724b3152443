"""The reference page of errors: every code a line can carry, and what becomes of each bad answer."""

from typing import NamedTuple

from batchwright.contracts.errors import NEVER_RETRIED, Failure, LineCode
from batchwright.rules.retries import STATUSES, Budget, judge


class Told(NamedTuple):
    """Of a code: why a line has it, and what to do."""

    cause: str
    remedy: str


CODES: dict[LineCode, Told] = {
    LineCode.BATCH_EXPIRED: Told(
        "The window closed before the line had a result: it was not sent yet, or its answer came too late.",
        "Resume the batch with another window; `waiting` of the batch says what it waited for.",
    ),
    LineCode.BATCH_CANCELLED: Told("The batch was cancelled before the line had a result.", "Resume it."),
    LineCode.BATCH_FAILED: Told(
        "The batch failed as a whole before the line had a result.",
        "Look at `errors` of the batch, then resume it.",
    ),
    LineCode.REQUEST_TIMEOUT: Told(
        "The backend took the request and gave no answer in time, or took it as a job that did not end in "
        "time, on every attempt.",
        "Raise `BATCHWRIGHT_REQUEST_TIMEOUT_SECONDS` or the backend's own `request_timeout`, of jobs "
        "`max_poll_time`, or ask for less (`max_tokens`); then retry the line.",
    ),
    LineCode.CONNECTION_ERROR: Told(
        "The connection ended after the request was sent and before its answer did, on every attempt.",
        "Look into the backend's log: requests that kill a server end like this; and at whatever stands "
        "between, for its timeout. Then retry the line.",
    ),
    LineCode.INVALID_RESPONSE: Told(
        "What the backend sent is not HTTP, or not a result, on every attempt; the message says which.",
        "Check that the URL leads to the API and to no web page; ask the backend for the same by hand.",
    ),
    LineCode.RESPONSE_TOO_LARGE: Told(
        "The answer is larger than `BATCHWRIGHT_MAX_RESPONSE_BYTES`; it was not read.",
        "Raise it, or ask for less.",
    ),
    LineCode.MODEL_NOT_FOUND: Told(
        "No backend serves the line's model.",
        "`GET /v1/models` lists what is served: correct the line, or register the model.",
    ),
    LineCode.POLICY_REJECTED: Told(
        "The tenant may not use the line's model, or may not any more; the API key that created the batch "
        "was revoked or has expired; the budget of tokens of the tenant, of its organization, of that key "
        "or of its user is used up; or a hook of the operator's refused it. The message says which.",
        "`GET /v1/models` lists what the tenant may use, `GET /v1/x/limits` what is left of its budgets: "
        "retry the batch with another key, or when the day in UTC is over or the budget raised. A hook has a "
        "message of its own.",
    ),
    LineCode.WORKER_CRASHED: Told(
        "Workers died each time they executed the line, the last times with nothing else of its slice in "
        "flight.",
        "Look into the worker's log and its memory limit; then retry the line alone.",
    ),
    LineCode.JOB_FAILED: Told(
        "The backend took the request as a job and said that the job failed, on every attempt, or with "
        "`retryable` false; the message has its words.",
        "Look for the job in the backend's log; correct the line, or retry it.",
    ),
    LineCode.JOB_LOST: Told(
        "The backend took the request as a job and did not know the job any more when it was asked after it "
        "(404 or 410, three times in a row), on every attempt.",
        "See whether the backend restarts, forgets jobs too early, or stands with others behind one URL; and "
        "whether `poll_endpoint_template` is right. Then retry the line.",
    ),
    LineCode.HOOK_FAILED: Told(
        "A hook of the operator's raised, took too long or returned no body, on every attempt: the line was "
        "not sent. The message says which.",
        "The worker's log has what the hook raised. Mend the hook, or raise "
        "`BATCHWRIGHT_HOOK_TIMEOUT_SECONDS` where it took too long; restart the workers, and retry the line.",
    ),
}


class Answer(NamedTuple):
    """A row of the second table. `ends`: the line's code, or in words what the line shows."""

    what: str
    budget: Budget
    ends: LineCode | str


_S, _A, _C, _B = Budget.SETTLED, Budget.ATTEMPT, Budget.CAPACITY, Budget.BLOCKED
_RESULT, _ITS_ANSWER, _WAITS = "its answer, in the output", "its answer, in the error file", "waits"
_INVALID = LineCode.INVALID_RESPONSE

# A test plays each of them with a server of its own, and compares.
ANSWERS = [
    Answer("200 with HTML, whatever its content type", _A, _INVALID),
    Answer("200 with nothing", _A, _INVALID),
    Answer("200 with JSON that is cut off", _A, _INVALID),
    Answer("200 with an event stream", _A, _INVALID),
    Answer("200 with text that is not UTF-8", _A, _INVALID),
    Answer("200 with a content encoding that it does not have", _A, _INVALID),
    Answer("200 with JSON that is no object", _A, _INVALID),
    Answer("200 with an error in its body", _A, _INVALID),
    Answer("200 with an error in its body that names 429", _C, _WAITS),
    Answer("200 with an error in its body that names 400", _S, _ITS_ANSWER),
    Answer("200 with a JSON object and another content type", _S, _RESULT),
    Answer("200 without usage: no tokens are counted", _S, _RESULT),
    Answer("200 with a usage that is none, such as one below zero: no tokens are counted", _S, _RESULT),
    Answer("200 with more than the limit, announced", _S, LineCode.RESPONSE_TOO_LARGE),
    Answer("200 with 100 MB, not announced", _S, LineCode.RESPONSE_TOO_LARGE),
    Answer("200 with a packed body that unpacks beyond the limit", _S, LineCode.RESPONSE_TOO_LARGE),
    Answer("200 with a body packed twice that unpacks beyond the limit", _S, LineCode.RESPONSE_TOO_LARGE),
    Answer("204", _A, _INVALID),
    Answer("500 of a gateway that says it cannot reach what is behind it", _C, _WAITS),
    Answer("embeddings: not as many as inputs", _A, _INVALID),
    Answer("embeddings: an index twice", _A, _INVALID),
    Answer("embeddings: no list of them", _A, _INVALID),
    Answer("embeddings: in another order, with their indexes", _S, _RESULT),
    Answer("a redirect, to its own or another host: none is followed", _C, _WAITS),
    Answer("interim answers (1xx) without end", _A, _INVALID),
    Answer("a switch to another protocol (101)", _A, _INVALID),
    Answer("a head without end", _A, _INVALID),
    Answer("a trailer without end", _A, _INVALID),
    Answer("something that is not HTTP", _A, _INVALID),
    Answer("a status below 100", _A, _INVALID),
    Answer("the connection ends in mid-answer", _A, LineCode.CONNECTION_ERROR),
    Answer("the connection ends without an answer", _A, LineCode.CONNECTION_ERROR),
    Answer("no answer in time", _A, LineCode.REQUEST_TIMEOUT),
    Answer("silence in mid-answer", _A, LineCode.REQUEST_TIMEOUT),
    Answer("no connection: nobody listens", _C, _WAITS),
    Answer("no connection: the host has no address", _C, _WAITS),
    Answer("no connection: TLS with a certificate that expired", _C, _WAITS),
    Answer("no connection: TLS with a certificate for another host", _C, _WAITS),
    Answer("no connection: TLS by an authority that is not trusted", _C, _WAITS),
    Answer("no connection: https to a port without TLS", _C, _WAITS),
    Answer("no connection: a TLS handshake that never ends", _C, _WAITS),
]

_AGAIN = {_S: "no", _A: "`max_attempts` times", _C: "until the window closes", _B: "until the window closes"}
_CIRCUIT = {_S: "stays", _A: "stays *", _C: "opens after several", _B: "opens at once"}
_TABLE = "| {} | asked again | circuit | the line at last |\n|---|---|---|---|"

_BAD = """
## What becomes of bad answers

A backend's answer is judged by its status and its body; what it says of its content type is not looked at.
Only an object of JSON is a result. An error body that names a status is judged as if it had come with it.
Gateways such as LiteLLM's proxy answer 500 where others answer 502: one that speaks of a connection error,
a refused connection or a name that is not known is judged as a 502 is. Any other 500 may be the line's own.

*waits*: the line costs nothing and is asked again, of another backend at once where there is one, until the
window closes (`batch_expired`), or for `give_up_after` where that is set. *The circuit* is that of the model
at this backend: while it is open, only trials are sent there, and other backends get the lines; it opens
after `BATCHWRIGHT_CIRCUIT_FAILURES` such answers in a row.

\\* What may be a line's own fault uses an attempt of it only if the backend answers other lines meanwhile.
Where it answers none, as many lines as open the circuit count as the backend's failure: from then on nothing
is used up.
"""

_STATUSES = """
## What becomes of each status

A wait that the backend asks for (`retry-after-ms`, `retry-after` in seconds or as a date) is kept, up to
five minutes. `x-should-retry` decides where the line may be at fault: `true` asks again, `false` ends the
line with its answer.
"""


def page(generated: str) -> str:
    """The whole page."""
    codes = [f"| `{code}` | {told.cause} | {told.remedy} |" for code, told in CODES.items()]
    failures = [f"| `{name}` | {'no' if name in NEVER_RETRIED else 'yes'} |" for name in Failure]
    return "\n".join(
        [
            f"# Error codes\n\n{generated}",
            "Codes a line of the error file can carry when it has no answer of a backend. "
            "[How to retry or resume](../how-to/give-second-chances.md).\n",
            "| code | cause | remedy |\n|---|---|---|",
            *codes,
            _BAD,
            _TABLE.format("the backend sends"),
            *(_row(answer.what, answer.budget, _shown(answer.ends)) for answer in ANSWERS),
            _STATUSES,
            _TABLE.format("status"),
            *_statuses(),
            "\n## Failures of activities\n\nSeen in the Temporal Web UI.\n",
            "| type | retried |\n|---|---|",
            *failures,
            "",
        ]
    )


def _shown(ends: LineCode | str) -> str:
    return f"`{ends}`" if isinstance(ends, LineCode) else ends


def _row(what: str, budget: Budget, ends: str) -> str:
    return f"| {what} | {_AGAIN[budget]} | {_CIRCUIT[budget]} | {ends} |"


def _statuses() -> list[str]:
    """Those that mean the same in one row, and the rest of each hundred."""
    groups: dict[Budget, list[str]] = {}
    for status, verdict in sorted(STATUSES.items()):
        if status not in range(521, 530):
            name = "520 to 529" if status == 520 else str(status)
            groups.setdefault(verdict.budget, []).append(name)
    for status, name in ((300, "3xx"), (400, "every other 4xx"), (500, "every other 5xx")):
        groups.setdefault(judge(status).budget, []).append(name)
    ends = {_S: _ITS_ANSWER, _A: _ITS_ANSWER, _C: _WAITS, _B: _WAITS}
    return [_row(", ".join(groups[budget]), budget, ends[budget]) for budget in (_S, _A, _C, _B)]
