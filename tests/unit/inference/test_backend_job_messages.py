"""Job responses of backends: statuses, ids, results (kept byte for byte), and unreadable responses."""

import pytest

from batchwright.contracts.errors import LineCode
from batchwright.contracts.model_registry.backend_job_config import JobConfig
from batchwright.inference import backend_job_messages
from batchwright.inference.request_outcome import Outcome
from batchwright.rules.backends.backend_job_reports import (
    InvalidJobReport,
    JobState,
    job_path,
    parse_job_report,
)
from batchwright.rules.backends.body_rewriting import with_string
from batchwright.rules.dispatch import retry_policy
from batchwright.rules.dispatch.retry_policy import Budget

PLAIN = JobConfig()
NESTED = JobConfig(id_field="job.key", status_field="job.state", result_field="job.out.body")


def answer(body: bytes, status: int = 200) -> Outcome:
    return Outcome(retry_policy.SUCCESS, status, body)


@pytest.mark.parametrize("word", ["success", "completed", "done", "succeeded", "DONE", " Completed "])
def test_a_word_for_success_ends_the_job(word: str) -> None:
    report = parse_job_report(b'{"status":"%s","result":{"a":1}}' % word.encode(), PLAIN)
    assert (report.state, report.result) == (JobState.DONE, b'{"a":1}')


@pytest.mark.parametrize("word", ["failed", "error", "cancelled", "Canceled", "expired"])
def test_a_word_for_failure_ends_the_job(word: str) -> None:
    report = parse_job_report(b'{"status":"%s","error":{"message":"no room"}}' % word.encode(), PLAIN)
    assert (report.state, report.error, report.is_final) == (JobState.FAILED, "no room", False)


@pytest.mark.parametrize("word", [b'"queued"', b'"processing"', b"null", b"7", b"[]"])
def test_with_any_other_status_the_job_continues(word: bytes) -> None:
    assert parse_job_report(b'{"status":%s,"job_id":"j"}' % word, PLAIN).state is JobState.RUNNING


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (b'{"status":"done","result": {"b" : 1.10, "n":18446744073709551616} }',
         b'{"b" : 1.10, "n":18446744073709551616}'),
        (b'{"status":"completed","id":"resp_1"}', b'{"status":"completed","id":"resp_1"}'),
        (b'{"status":"done","result":null,"x":1}', b'{"status":"done","result":null,"x":1}'),
    ],
)  # fmt: skip
def test_a_result_is_what_was_sent_byte_for_byte(body: bytes, result: bytes) -> None:
    assert parse_job_report(body, PLAIN).result == result


def test_field_paths_address_nested_objects() -> None:
    body = b'{"job":{"key":17,"state":"done","out":{"body":{"a":1}}}}'
    report = parse_job_report(body, NESTED)
    assert (report.state, report.job_id, report.result) == (JobState.DONE, "17", b'{"a":1}')
    with pytest.raises(InvalidJobReport, match=r"sent no result at job\.out\.body"):
        parse_job_report(b'{"job":{"state":"done","out":3}}', NESTED)


@pytest.mark.parametrize(
    ("body", "job_id"),
    [
        (b'{"job_id":"a","id":"b"}', "a"),
        (b'{"id":"b"}', "b"),
        (b'{"id":7}', "7"),
        (b'{"id":".."}', ""),
        (b'{"id":"a\\nb"}', ""),
        (b'{"id":"%s"}' % (b"x" * 513), ""),
        (b'{"id":{}}', ""),
    ],
)
def test_a_job_id_must_be_valid_in_a_path(body: bytes, job_id: str) -> None:
    assert parse_job_report(body, PLAIN).job_id == job_id


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b'"x"', b"\xff", b'{"a":"\xff"}'])
def test_a_response_that_is_not_an_object_is_unreadable(body: bytes) -> None:
    with pytest.raises(InvalidJobReport):
        parse_job_report(body, PLAIN)


def test_a_job_id_cannot_change_the_url_path() -> None:
    assert job_path("/status/{id}?full=1", "a/../b?c#d e") == "/status/a%2F..%2Fb%3Fc%23d%20e?full=1"


def test_a_backend_with_callbacks_may_answer_a_submit_with_anything() -> None:
    assert (
        backend_job_messages.from_submit(answer(b"ok", 202), PLAIN, calls_back=True)
        == backend_job_messages.JOB_RUNNING
    )
    refused = backend_job_messages.from_submit(answer(b"ok", 202), PLAIN, calls_back=False)
    assert isinstance(refused, Outcome)
    assert refused.code is LineCode.INVALID_RESPONSE


def test_an_empty_poll_response_means_that_the_job_continues() -> None:
    assert backend_job_messages.from_poll(answer(b"", 204), PLAIN) == backend_job_messages.JOB_RUNNING


def test_a_callback_without_a_status_is_the_result_and_one_with_an_unknown_status_is_not() -> None:
    report = backend_job_messages.from_callback(b'{"choices":[]}', PLAIN)
    assert not isinstance(report, Outcome)
    assert report.result == b'{"choices":[]}'
    wrong = backend_job_messages.from_callback(b'{"status":"running"}', PLAIN)
    assert isinstance(wrong, Outcome)
    assert "'running', which is not a final status" in wrong.message


def test_a_result_that_is_an_error_is_not_an_answer() -> None:
    ended = backend_job_messages.from_finished_job(
        parse_job_report(b'{"status":"done","result":{"error":{"message":"x"}}}', PLAIN)
    )
    assert (ended.verdict, ended.status) == (retry_policy.INVALID_RESPONSE, 0)


def test_a_failed_poll_uses_no_attempt_unless_the_backend_does_not_know_the_job() -> None:
    unreachable = backend_job_messages.from_failed_polls(
        Outcome(retry_policy.classify(500), 500, message="The backend answered 500."), "j"
    )
    assert (unreachable.verdict.budget, unreachable.status) == (Budget.CAPACITY, 0)
    locked = backend_job_messages.from_failed_polls(
        Outcome(retry_policy.classify(401), 401, message="401"), "j"
    )
    assert locked.verdict.budget is Budget.CREDENTIALS
    lost = backend_job_messages.from_failed_polls(Outcome(retry_policy.classify(404), 404), "j")
    assert (lost.verdict, lost.code) == (retry_policy.JOB_LOST, LineCode.JOB_LOST)


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b'{"a":1}', b'{"a":1, "hook": "u"}'),
        (b"{ }", b'{ "hook": "u"}'),
        (b'{"hook":"evil","a":1}\n', b'{"hook":"u","a":1, "hook": "u"}\n'),
        (b'{"hook":{"x":1}}', b'{"hook":{"x":1}, "hook": "u"}'),
        (b"[1]", b"[1]"),
    ],
)
def test_a_repeated_key_ends_with_the_added_value(body: bytes, sent: bytes) -> None:
    assert with_string(body, "hook", "u") == sent
