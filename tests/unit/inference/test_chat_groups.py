"""Chats that share a request to an executor: which chats may share, and which results are accepted.

An executor is a user's own program that takes several conversations in one request.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from batchwright.contracts.model_registry.registry_config import LimitConfig
from batchwright.contracts.terms import Endpoint
from batchwright.inference.backend_client import RequestSender, parse_response
from batchwright.inference.microbatch_sender import MicrobatchSender
from batchwright.inference.sender_choice import MicrobatchSenders, load_chat_executors
from batchwright.inference.transport.base import TargetUrl
from batchwright.rules.backends.chat_microbatch import ChatAdapter, ChatResult
from batchwright.rules.backends.microbatch import MicrobatchFailed, MicrobatchPart
from batchwright.rules.dispatch.retry_policy import SUCCESS
from batchwright.settings import Settings, SettingsError, load
from batchwright.telemetry.metrics import Metrics
from tests.activities.execution.sending.test_microbatch import Slow

TARGET = TargetUrl.of("http://backend/v1/chat/completions")
ANSWER = b'{"choices":[],"usage":{"prompt_tokens":1}}'
HERE = "tests.unit.inference.test_chat_groups"


class Executor:
    """An executor that sends conversations as a list, and expects a list of `[status, body]`."""

    def join(self, params: bytes, conversations: Sequence[bytes]) -> bytes:
        return b'{"params":%s,"conversations":[%s]}' % (params, b",".join(conversations))

    def split(self, response: bytes, count: int) -> Sequence[ChatResult]:
        return [ChatResult(status, json.dumps(body).encode()) for status, body in json.loads(response)]


NOT_AN_EXECUTOR = object()


def chat(words: str = "hello", **more: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": words}], **more}).encode()


PLAIN = [
    "{}",
    '{"n":1}',
    '{"stream":false}',
    '{"tools":[]}',
    '{"response_format":{"type":"text"}}',
    '{"n":null}',
]
MORE_THAN_A_MESSAGE = [
    '{"n":2}',
    '{"stream":true}',
    '{"tools":[{"type":"function"}]}',
    '{"functions":[{"name":"f"}]}',
    '{"tool_choice":"auto"}',
    '{"response_format":{"type":"json_schema"}}',
    '{"response_format":"text"}',
    '{"messages":"hello"}',
    '{"logprobs":true}',
]


def with_parameters(more: str) -> bytes:
    return json.dumps({**json.loads(chat()), **json.loads(more)}).encode()


def parts(count: int = 2) -> list[MicrobatchPart]:
    found = [ChatAdapter(Executor()).part(chat(str(number))) for number in range(count)]
    return [part for part in found if part is not None]


@pytest.mark.parametrize("more", PLAIN)
def test_a_plain_chat_may_share_a_request(more: str) -> None:
    assert ChatAdapter(Executor()).part(with_parameters(more)) is not None


@pytest.mark.parametrize("more", MORE_THAN_A_MESSAGE)
def test_a_chat_whose_answer_is_more_than_a_message_is_sent_alone(more: str) -> None:
    assert ChatAdapter(Executor()).part(with_parameters(more)) is None


def test_only_chats_with_equal_parameters_share_a_request() -> None:
    kind = ChatAdapter(Executor())
    one, other, hotter = kind.part(chat("a")), kind.part(chat("b")), kind.part(chat("a", temperature=2))
    assert one is not None
    assert other is not None
    assert hotter is not None
    assert one.shared == other.shared != hotter.shared


def test_the_executor_gets_the_common_parameters_and_each_conversation() -> None:
    sent = json.loads(ChatAdapter(Executor()).join(parts()))
    assert sent["params"] == {"model": "m"}
    assert [messages[0]["content"] for messages in sent["conversations"]] == ["0", "1"]


def test_a_result_without_usage_fails_its_line_and_no_other() -> None:
    response = json.dumps([[200, {"choices": []}], [200, json.loads(ANSWER)]]).encode()
    first, second = ChatAdapter(Executor()).split(response, parts())
    assert (first.status, bool(first.problem)) == (0, True)
    assert (second.status, second.problem) == (200, "")


def test_a_result_that_is_not_json_fails_its_line_and_no_other() -> None:
    class WritesText(Executor):
        def split(self, response: bytes, count: int) -> Sequence[ChatResult]:
            return [ChatResult(200, b"hello"), ChatResult(200, ANSWER)]

    first, second = ChatAdapter(WritesText()).split(b"", parts())
    assert (first.status, bool(first.problem)) == (0, True)
    assert (second.status, second.problem) == (200, "")


def test_an_unstructured_error_is_an_invalid_request_of_its_line() -> None:
    response = json.dumps([[None, "too long"], [429, {}]]).encode()
    first, second = ChatAdapter(Executor()).split(response, parts())
    assert (first.status, json.loads(first.body)["error"]["type"]) == (400, "invalid_request_error")
    assert second.status == 429


@pytest.mark.parametrize("response", [b"[]", b"[[200, {}]]", b"no json"])
def test_an_answer_for_another_number_of_chats_is_not_divided(response: bytes) -> None:
    with pytest.raises(MicrobatchFailed):
        ChatAdapter(Executor()).split(response, parts())


@dataclass(eq=False)
class At:
    """The address of a backend, and the client that sends requests to this backend."""

    client: RequestSender


class Broken(Executor):
    def join(self, params: bytes, conversations: Sequence[bytes]) -> bytes:
        raise RuntimeError("broken")


class Leaves(Executor):
    def join(self, params: bytes, conversations: Sequence[bytes]) -> bytes:
        raise SystemExit(1)


class JoinsText(Executor):
    def join(self, params: bytes, conversations: Sequence[bytes]) -> str:  # pyright: ignore[reportIncompatibleMethodOverride] - the operator's mistake
        return "text"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class SplitsBadly(Executor):
    """An executor whose result for each conversation is what the method `rubbish` returns or raises."""

    def split(self, response: bytes, count: int) -> Sequence[ChatResult]:
        return [self.rubbish() for _ in range(count)]

    def rubbish(self) -> ChatResult:
        raise Unspeakable


class SplitsToNothing(SplitsBadly):
    def rubbish(self) -> ChatResult:
        return None  # pyright: ignore[reportReturnType]


class SplitsToText(SplitsBadly):
    def rubbish(self) -> ChatResult:
        return ChatResult(200, "{}")  # pyright: ignore[reportArgumentType]


class SplitsToWords(SplitsBadly):
    def rubbish(self) -> ChatResult:
        return ChatResult("200", b"{}")  # pyright: ignore[reportArgumentType]


class SplitsToNoStatus(SplitsBadly):
    def rubbish(self) -> ChatResult:
        return ChatResult(0, b"{}")


@pytest.mark.parametrize(
    ("executor", "reason"),
    [
        (Broken, "joined"),
        (Leaves, "joined"),
        (JoinsText, "joined"),
        (SplitsBadly, "split"),
        (SplitsToNothing, "split"),
        (SplitsToText, "split"),
        (SplitsToWords, "split"),
        (SplitsToNoStatus, "split"),
    ],
)
async def test_chats_of_an_executor_that_raises_or_returns_garbage_are_sent_alone(
    executor: type[Executor], reason: str
) -> None:
    slow = Slow()
    slow.release.set()
    metrics = Metrics()
    senders = MicrobatchSenders(settings(chat_executor=f"{HERE}:{executor.__name__}"), metrics)
    sender = senders.sender_for(At(slow), "m", Endpoint.CHAT_COMPLETIONS)
    outcomes = await asyncio.gather(*(sender.send(TARGET, chat(str(n)), f"r-{n}") for n in range(4)))
    assert [outcome.status for outcome in outcomes] == [200] * 4
    assert metrics.chat_fallbacks.labels(reason).value == 4


class Splits(Executor):
    result = ChatResult(500, b'{"error":{"message":"out of memory"}}')

    def split(self, response: bytes, count: int) -> Sequence[ChatResult]:
        return [self.result] * count


class SplitsToErrors(Splits):
    result = ChatResult(200, b'{"usage":{},"error":{"message":"slow down","code":429}}')


class SplitsToBrokenText(Splits):
    result = ChatResult(200, b'{"usage":{},"choices":["\xff"]}')


@pytest.mark.parametrize("executor", [Splits, SplitsToErrors, SplitsToBrokenText])
async def test_a_result_is_checked_as_if_its_chat_had_been_sent_alone(executor: type[Splits]) -> None:
    slow = Slow()
    slow.release.set()
    senders = MicrobatchSenders(settings(chat_executor=f"{HERE}:{executor.__name__}"), Metrics())
    sender = senders.sender_for(At(slow), "m", Endpoint.CHAT_COMPLETIONS)
    outcomes = await asyncio.gather(*(sender.send(TARGET, chat(str(n)), f"r-{n}") for n in range(4)))
    status, body = executor.result
    assert status is not None
    assert outcomes == [parse_response(status, {}, body)] * 4
    assert outcomes[0].verdict is not SUCCESS


async def test_chats_that_share_a_request_are_counted_by_requests_and_their_size() -> None:
    slow = Slow()
    slow.release.set()
    metrics = Metrics()
    sender = MicrobatchSenders(settings(chat_executor=f"{HERE}:Executor"), metrics).sender_for(
        At(slow), "m", Endpoint.CHAT_COMPLETIONS
    )
    await asyncio.gather(*(sender.send(TARGET, chat(str(n)), f"r-{n}") for n in range(4)))
    value = metrics.registry.get_sample_value
    assert value("batchwright_chat_microbatch_requests_total", {"status": "success"}) == 1
    assert value("batchwright_chat_microbatch_size_sum") == 4
    assert value("batchwright_microbatch_size_bucket", {"model": "m", "le": "2.0"}) == 0
    assert value("batchwright_microbatch_size_bucket", {"model": "m", "le": "4.0"}) == 1


async def test_chats_that_cannot_share_are_counted_by_reason() -> None:
    slow = Slow()
    slow.release.set()
    metrics = Metrics()
    sender = MicrobatchSenders(
        settings(chat_executor=f"{HERE}:Executor", input_tokens_per_request=20), metrics
    ).sender_for(At(slow), "m", Endpoint.CHAT_COMPLETIONS)
    await sender.send(TARGET, chat(tools=[{"type": "function"}]), "r-1")
    await sender.send(TARGET, chat("word " * 100), "r-2")
    assert metrics.chat_fallbacks.labels("shape").value == 1
    assert metrics.chat_fallbacks.labels("tokens").value == 1
    assert metrics.microbatch_ineligible.labels("m", "shape").value == 1
    assert metrics.microbatch_ineligible.labels("m", "tokens").value == 1


def settings(**limits: object) -> Settings:
    return load(models={"m": {"inputs_per_request": 4, **limits}})


def test_chats_are_joined_only_if_an_executor_is_named() -> None:
    place = At(plain := Slow())
    without = MicrobatchSenders(settings(), Metrics())
    assert without.sender_for(place, "m", Endpoint.CHAT_COMPLETIONS) is plain
    assert without.sender_for(place, "other", Endpoint.EMBEDDINGS) is plain
    named = MicrobatchSenders(settings(chat_executor=f"{HERE}:Executor"), Metrics())
    assert isinstance(named.sender_for(place, "m", Endpoint.CHAT_COMPLETIONS), MicrobatchSender)
    assert named.sender_for(place, "m", Endpoint.RESPONSES) is plain
    assert named.sender_for(place, "m", Endpoint.EMBEDDINGS) is named.sender_for(
        place, "m", Endpoint.EMBEDDINGS
    )


def test_a_registry_change_applies_to_the_next_shared_requests() -> None:
    place, senders = At(plain := Slow()), MicrobatchSenders(load(), Metrics())
    first = LimitConfig(inputs_per_request=8, input_tokens_per_request=100)
    grouping = senders.sender_for(place, "m", Endpoint.EMBEDDINGS, first)
    assert isinstance(grouping, MicrobatchSender)
    assert senders.is_enabled("m", Endpoint.EMBEDDINGS, first)
    assert senders.sender_for(place, "m", Endpoint.EMBEDDINGS, first) is grouping
    assert senders.sender_for(place, "m", Endpoint.CHAT_COMPLETIONS, first) is plain
    changed = senders.sender_for(place, "m", Endpoint.EMBEDDINGS, LimitConfig(inputs_per_request=9))
    assert isinstance(changed, MicrobatchSender)
    assert changed is not grouping
    assert senders.sender_for(place, "m", Endpoint.EMBEDDINGS, LimitConfig()) is plain
    of_the_settings = MicrobatchSenders(load(models={"m": {"inputs_per_request": 8}}), Metrics())
    assert of_the_settings.is_enabled("m", Endpoint.EMBEDDINGS, LimitConfig())
    assert not of_the_settings.is_enabled("m", Endpoint.EMBEDDINGS, LimitConfig(inputs_per_request=1))


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no-colon", "form module:attribute"),
        ("no_such_module:Executor", "cannot be imported: ModuleNotFoundError"),
        (f"{HERE}:Nothing", "cannot be imported: AttributeError"),
        (f"{HERE}:NOT_AN_EXECUTOR", "has no method 'join'"),
    ],
)
def test_a_name_that_is_not_an_executor_is_a_settings_error(reference: str, message: str) -> None:
    with pytest.raises(
        SettingsError, match=rf"^BATCHWRIGHT_MODELS is wrong: chat_executor of 'm': .*{message}"
    ):
        load_chat_executors(settings(chat_executor=reference))
