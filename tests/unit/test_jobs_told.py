"""What backends say of jobs: words, ids, results byte for byte, and what cannot be read."""

import pytest

from batchwright.contracts.errors import LineCode
from batchwright.contracts.jobs import JobConfig
from batchwright.inference import jobs
from batchwright.inference.outcomes import Outcome
from batchwright.rules import retries
from batchwright.rules.jobs import NotOfJob, State, job_path, read_told
from batchwright.rules.renaming import with_last
from batchwright.rules.retries import Budget

PLAIN = JobConfig()
NESTED = JobConfig(id_field="job.key", status_field="job.state", result_field="job.out.body")


def answer(body: bytes, status: int = 200) -> Outcome:
    return Outcome(retries.SUCCESS, status, body)


@pytest.mark.parametrize("word", ["success", "completed", "done", "succeeded", "DONE", " Completed "])
def test_a_word_for_success_ends_the_job(word: str) -> None:
    told = read_told(b'{"status":"%s","result":{"a":1}}' % word.encode(), PLAIN)
    assert (told.state, told.result) == (State.DONE, b'{"a":1}')


@pytest.mark.parametrize("word", ["failed", "error", "cancelled", "Canceled", "expired"])
def test_a_word_for_failure_ends_the_job(word: str) -> None:
    told = read_told(b'{"status":"%s","error":{"message":"no room"}}' % word.encode(), PLAIN)
    assert (told.state, told.error, told.is_final) == (State.FAILED, "no room", False)


@pytest.mark.parametrize("word", [b'"queued"', b'"processing"', b"null", b"7", b"[]"])
def test_with_any_other_word_it_goes_on(word: bytes) -> None:
    assert read_told(b'{"status":%s,"job_id":"j"}' % word, PLAIN).state is State.GOES_ON


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
    assert read_told(body, PLAIN).result == result


def test_fields_lead_into_objects() -> None:
    body = b'{"job":{"key":17,"state":"done","out":{"body":{"a":1}}}}'
    told = read_told(body, NESTED)
    assert (told.state, told.job_id, told.result) == (State.DONE, "17", b'{"a":1}')
    with pytest.raises(NotOfJob, match=r"named no result at job\.out\.body"):
        read_told(b'{"job":{"state":"done","out":3}}', NESTED)


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
def test_an_id_is_one_that_can_stand_in_a_path(body: bytes, job_id: str) -> None:
    assert read_told(body, PLAIN).job_id == job_id


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b'"x"', b"\xff", b'{"a":"\xff"}'])
def test_what_is_no_object_cannot_be_read(body: bytes) -> None:
    with pytest.raises(NotOfJob):
        read_told(body, PLAIN)


def test_an_id_leads_nowhere_else() -> None:
    assert job_path("/status/{id}?full=1", "a/../b?c#d e") == "/status/a%2F..%2Fb%3Fc%23d%20e?full=1"


def test_a_backend_that_calls_back_may_answer_a_submit_with_anything() -> None:
    assert jobs.taken(answer(b"ok", 202), PLAIN, calls_back=True) == jobs.GOES_ON
    refused = jobs.taken(answer(b"ok", 202), PLAIN, calls_back=False)
    assert isinstance(refused, Outcome)
    assert refused.code is LineCode.INVALID_RESPONSE


def test_an_empty_answer_says_that_the_job_goes_on() -> None:
    assert jobs.looked(answer(b"", 204), PLAIN) == jobs.GOES_ON


def test_a_call_without_a_status_is_the_result_and_one_with_another_word_is_none() -> None:
    told = jobs.called(b'{"choices":[]}', PLAIN)
    assert not isinstance(told, Outcome)
    assert told.result == b'{"choices":[]}'
    wrong = jobs.called(b'{"status":"running"}', PLAIN)
    assert isinstance(wrong, Outcome)
    assert "'running', which is no end" in wrong.message


def test_a_result_that_is_an_error_is_no_answer() -> None:
    ended = jobs.ended(read_told(b'{"status":"done","result":{"error":{"message":"x"}}}', PLAIN))
    assert (ended.verdict, ended.status) == (retries.UNREADABLE, 0)


def test_a_job_out_of_sight_costs_capacity_unless_its_backend_does_not_know_it() -> None:
    away = jobs.out_of_sight(Outcome(retries.judge(500), 500, message="The backend answered 500."), "j")
    assert (away.verdict.budget, away.status) == (Budget.CAPACITY, 0)
    locked = jobs.out_of_sight(Outcome(retries.judge(401), 401, message="401"), "j")
    assert locked.verdict.budget is Budget.BLOCKED
    lost = jobs.out_of_sight(Outcome(retries.judge(404), 404), "j")
    assert (lost.verdict, lost.code) == (retries.JOB_LOST, LineCode.JOB_LOST)


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
def test_the_last_of_a_name_is_ours(body: bytes, sent: bytes) -> None:
    assert with_last(body, "hook", "u") == sent
