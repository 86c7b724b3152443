"""Recorded answers of servers that the tests cannot run, replayed over HTTP.

Each answer has the outcome that the documentation describes.
"""

import asyncio
import json
from dataclasses import dataclass, field
from http import HTTPStatus

import pytest
from pydantic import JsonValue

from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.contracts.terms import Endpoint, Usage
from batchwright.rules.results.event_stream import EventStream
from batchwright.rules.results.token_usage import Tokens
from tests.activities.execution.fixture import ExecutionFixture, plan_slice, request
from tests.activities.execution.outcomes.test_bad_responses import finished
from tests.compatibility.record import CASES, body_of
from tests.compatibility.recorded import Answer, Effect, recordings
from tests.fakes.hostile_backends import response
from tests.fakes.raw_servers import read_request, served

ANSWERS = {(each.project, answer.case): answer for each in recordings() for answer in each.answers}
# As a person reads it in the recorded bodies.
USAGE = {
    ("vllm", "chat, a part of the prompt cached"): Usage(
        input_tokens=353, cached_tokens=256, output_tokens=8
    ),
    ("vllm", "chat, reasoning in a field of its own"): Usage(input_tokens=353, output_tokens=8),
    ("vllm", "completions"): Usage(input_tokens=8, output_tokens=8),
    ("vllm", "responses"): Usage(input_tokens=26, output_tokens=8),
    ("vllm", "messages"): Usage(input_tokens=353, cached_tokens=256, output_tokens=8),
    ("vllm", "embeddings"): Usage(input_tokens=7),
    ("vllm", "stream of a chat"): Usage(input_tokens=353, cached_tokens=256, output_tokens=2),
}


def having(effect: Effect) -> list[object]:
    return [
        pytest.param(name, id=" ".join(name)) for name, answer in ANSWERS.items() if answer.effect is effect
    ]


@dataclass
class Replay:
    """A server that sends each of its recorded answers once, in order, and then the last one again and again.

    Attributes:
        requests: path and body of each request that it received.
    """

    answers: list[Answer]
    requests: list[tuple[str, JsonValue]] = field(default_factory=list[tuple[str, JsonValue]])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await read_request(reader)
        again = asyncio.StreamReader()
        again.feed_data(head + body)
        if head.startswith(b"GET "):  # the list of models
            return await response(b'{"object":"list","data":[]}')(again, writer)
        answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append((head.split(b" ")[1].decode(), json.loads(body)))
        headers = [f"{name}: {value}".encode() for name, value in answer.headers.items()]
        status = f"{answer.status} {HTTPStatus(answer.status).phrase}".encode()
        await response(answer.body.encode(), *headers, status=status)(again, writer)


@dataclass(frozen=True)
class Run:
    """The result of a finished slice with one line, and the requests that its backend received."""

    result: SliceResult
    line: dict[str, JsonValue]
    usage: Usage
    requests: list[tuple[str, JsonValue]]


async def run(*answers: Answer, attempts: int = 1) -> Run:
    """Run a slice whose only line is the request that belongs to the first answer.

    The backend replies with these answers, in order.
    """
    replay = Replay(list(answers))
    async with served(replay.serve) as target:
        config = ModelConfig(backends=[GatewayConfig(url=f"http://{target.authority.decode()}")])
        execution = ExecutionFixture(
            lambda content: pytest.fail(content), config=config, sockets=True, max_attempts=attempts
        )
        execution.hurry()
        case = answers[0].case
        sent = json.dumps(body_of(case)).encode()
        await plan_slice(execution.storage, [b'{"custom_id":"c-0","body":%b}' % sent])
        try:
            result = await finished(execution, request(endpoint=Endpoint(CASES[case].path)))
        finally:
            await execution.clients.aclose()
        [record] = (await execution.settled()).values()
    usage = execution.progress.upserts[-1][-1].usage
    return Run(result, json.loads(record.payload), usage, replay.requests)


@pytest.mark.parametrize("name", having(Effect.RESULT))
async def test_a_success_is_in_the_output_unchanged_with_its_tokens(name: tuple[str, str]) -> None:
    answer = ANSWERS[name]
    done = await run(answer)
    assert done.result == SliceResult(finished=True, completed=1)
    assert done.requests == [(CASES[answer.case].path, body_of(answer.case))]
    assert isinstance(response := done.line["response"], dict)
    assert (response["status_code"], response["body"]) == (200, json.loads(answer.body))
    assert done.usage == USAGE[name]


@pytest.mark.parametrize("name", having(Effect.ERROR))
async def test_an_error_that_a_retry_would_not_change_ends_the_line_with_the_servers_words(
    name: tuple[str, str],
) -> None:
    answer = ANSWERS[name]
    done = await run(answer)
    assert done.result == SliceResult(finished=True, failed=1)
    assert len(done.requests) == 1
    assert isinstance(response := done.line["response"], dict)
    assert (response["status_code"], response["body"]) == (answer.status, json.loads(answer.body))


@pytest.mark.parametrize("name", having(Effect.RETRY))
async def test_an_overload_costs_no_attempt(name: tuple[str, str]) -> None:
    refusal, success = ANSWERS[name], a_chat_of(name[0])
    done = await run(refusal, refusal, success)
    assert done.result == SliceResult(finished=True, completed=1)
    assert len(done.requests) == 3
    assert isinstance(response := done.line["response"], dict)
    assert response["body"] == json.loads(success.body)


@pytest.mark.parametrize("name", having(Effect.ATTEMPT))
async def test_a_crash_of_the_engine_is_retried(name: tuple[str, str]) -> None:
    crash, success = ANSWERS[name], a_chat_of(name[0])
    done = await run(crash, success, attempts=2)
    assert done.result == SliceResult(finished=True, completed=1)
    assert len(done.requests) == 2


def a_chat_of(project: str) -> Answer:
    return ANSWERS[project, "chat, a part of the prompt cached"]


@pytest.mark.parametrize("name", having(Effect.STREAM))
def test_the_tokens_of_a_stream_are_read_and_its_bytes_passed_on(name: tuple[str, str]) -> None:
    content = ANSWERS[name].body.encode()
    stream = EventStream(hides_usage=False)
    assert stream.feed(content) + stream.finish() == content
    usage = USAGE[name]
    assert stream.usage == Tokens(usage.input_tokens, usage.cached_tokens, usage.output_tokens)
