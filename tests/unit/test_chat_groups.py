"""Chats that share a request through an executor of the user's: which may, and what each result must hold."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from batchwright.contracts.openai import Endpoint
from batchwright.inference.engine import Target
from batchwright.inference.grouping import GroupingSender, Sender
from batchwright.inference.outcomes import judged
from batchwright.inference.routes import Sends
from batchwright.inference.senders import Senders, chat_executors
from batchwright.rules.chat_groups import ChatResult, Chats
from batchwright.rules.microbatch import CannotShare, Part
from batchwright.rules.retries import SUCCESS
from batchwright.settings import Settings, SettingsError, load
from batchwright.telemetry.metrics import Metrics
from tests.activities.test_execution_groups import Slow

TARGET = Target.of("http://backend/v1/chat/completions")
ANSWER = b'{"choices":[],"usage":{"prompt_tokens":1}}'
HERE = "tests.unit.test_chat_groups"


class Executor:
    """Conversations as a list; the answer is a list of `[status, body]`."""

    def join(self, params: bytes, conversations: Sequence[bytes]) -> bytes:
        return b'{"params":%s,"conversations":[%s]}' % (params, b",".join(conversations))

    def split(self, answer: bytes, count: int) -> Sequence[ChatResult]:
        return [ChatResult(status, json.dumps(body).encode()) for status, body in json.loads(answer)]


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


def parts(count: int = 2) -> list[Part]:
    found = [Chats(Executor()).part(chat(str(number))) for number in range(count)]
    return [part for part in found if part is not None]


@pytest.mark.parametrize("more", PLAIN)
def test_a_plain_chat_may_share_a_request(more: str) -> None:
    assert Chats(Executor()).part(with_parameters(more)) is not None


@pytest.mark.parametrize("more", MORE_THAN_A_MESSAGE)
def test_a_chat_whose_answer_is_more_than_a_message_is_asked_alone(more: str) -> None:
    assert Chats(Executor()).part(with_parameters(more)) is None


def test_only_chats_with_equal_parameters_share_a_request() -> None:
    kind = Chats(Executor())
    one, other, hotter = kind.part(chat("a")), kind.part(chat("b")), kind.part(chat("a", temperature=2))
    assert one is not None
    assert other is not None
    assert hotter is not None
    assert one.shared == other.shared != hotter.shared


def test_the_executor_gets_the_common_parameters_and_each_conversation() -> None:
    sent = json.loads(Chats(Executor()).join(parts()))
    assert sent["params"] == {"model": "m"}
    assert [messages[0]["content"] for messages in sent["conversations"]] == ["0", "1"]


def test_a_result_without_usage_fails_its_line_and_no_other() -> None:
    answer = json.dumps([[200, {"choices": []}], [200, json.loads(ANSWER)]]).encode()
    first, second = Chats(Executor()).split(answer, parts())
    assert (first.status, bool(first.problem)) == (0, True)
    assert (second.status, second.problem) == (200, "")


def test_an_error_without_form_is_an_invalid_request_of_its_line() -> None:
    answer = json.dumps([[None, "too long"], [429, {}]]).encode()
    first, second = Chats(Executor()).split(answer, parts())
    assert (first.status, json.loads(first.body)["error"]["type"]) == (400, "invalid_request_error")
    assert second.status == 429


@pytest.mark.parametrize("answer", [b"[]", b"[[200, {}]]", b"no json"])
def test_an_answer_for_another_number_of_chats_is_not_divided(answer: bytes) -> None:
    with pytest.raises(CannotShare):
        Chats(Executor()).split(answer, parts())


@dataclass
class At:
    """A backend that this client asks."""

    client: Sender
    grouping: dict[tuple[str, Endpoint], Sends] = field(default_factory=dict[tuple[str, Endpoint], Sends])


class Broken(Executor):
    def join(self, params: bytes, conversations: Sequence[bytes]) -> bytes:
        raise RuntimeError("broken")


class Leaves(Executor):
    def join(self, params: bytes, conversations: Sequence[bytes]) -> bytes:
        raise SystemExit(1)


class JoinsText(Executor):
    def join(self, params: bytes, conversations: Sequence[bytes]) -> str:  # pyright: ignore
        return "text"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class SplitsBadly(Executor):
    """Does with each share what `rubbish` returns or raises."""

    def split(self, answer: bytes, count: int) -> Sequence[ChatResult]:
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
async def test_an_executor_that_raises_or_returns_rubbish_costs_its_chats_no_more_than_company(
    executor: type[Executor], reason: str
) -> None:
    slow = Slow()
    slow.release.set()
    metrics = Metrics()
    senders = Senders(settings(chat_executor=f"{HERE}:{executor.__name__}"), metrics)
    sender = senders.of(At(slow), "m", Endpoint.CHAT_COMPLETIONS)
    outcomes = await asyncio.gather(*(sender.send(TARGET, chat(str(n)), f"r-{n}") for n in range(4)))
    assert [outcome.status for outcome in outcomes] == [200] * 4
    assert metrics.chat_fallbacks.labels(reason).value == 4


class Splits(Executor):
    result = ChatResult(500, b'{"error":{"message":"out of memory"}}')

    def split(self, answer: bytes, count: int) -> Sequence[ChatResult]:
        return [self.result] * count


class SplitsToErrors(Splits):
    result = ChatResult(200, b'{"usage":{},"error":{"message":"slow down","code":429}}')


class SplitsToBrokenText(Splits):
    result = ChatResult(200, b'{"usage":{},"choices":["\xff"]}')


@pytest.mark.parametrize("executor", [Splits, SplitsToErrors, SplitsToBrokenText])
async def test_a_result_is_judged_as_if_its_chat_had_been_asked_alone(executor: type[Splits]) -> None:
    slow = Slow()
    slow.release.set()
    senders = Senders(settings(chat_executor=f"{HERE}:{executor.__name__}"), Metrics())
    sender = senders.of(At(slow), "m", Endpoint.CHAT_COMPLETIONS)
    outcomes = await asyncio.gather(*(sender.send(TARGET, chat(str(n)), f"r-{n}") for n in range(4)))
    status, body = executor.result
    assert status is not None
    assert outcomes == [judged(status, {}, body)] * 4
    assert outcomes[0].verdict is not SUCCESS


async def test_chats_that_share_a_request_are_counted_by_requests_and_their_size() -> None:
    slow = Slow()
    slow.release.set()
    metrics = Metrics()
    sender = Senders(settings(chat_executor=f"{HERE}:Executor"), metrics).of(
        At(slow), "m", Endpoint.CHAT_COMPLETIONS
    )
    await asyncio.gather(*(sender.send(TARGET, chat(str(n)), f"r-{n}") for n in range(4)))
    value = metrics.registry.get_sample_value
    assert value("batchwright_chat_microbatch_requests_total", {"status": "success"}) == 1
    assert value("batchwright_chat_microbatch_size_sum") == 4


async def test_chats_that_cannot_share_are_counted_by_what_hinders_them() -> None:
    slow = Slow()
    slow.release.set()
    metrics = Metrics()
    sender = Senders(settings(chat_executor=f"{HERE}:Executor", input_tokens_per_request=20), metrics).of(
        At(slow), "m", Endpoint.CHAT_COMPLETIONS
    )
    await sender.send(TARGET, chat(tools=[{"type": "function"}]), "r-1")
    await sender.send(TARGET, chat("word " * 100), "r-2")
    assert metrics.chat_fallbacks.labels("shape").value == 1
    assert metrics.chat_fallbacks.labels("tokens").value == 1
    assert metrics.microbatch_ineligible.labels("m", "shape").value == 1
    assert metrics.microbatch_ineligible.labels("m", "tokens").value == 1


def settings(**limits: object) -> Settings:
    return load(models={"m": {"inputs_per_request": 4, **limits}})


def test_chats_are_joined_only_where_an_executor_is_named() -> None:
    place = At(plain := Slow())
    without = Senders(settings(), Metrics())
    assert without.of(place, "m", Endpoint.CHAT_COMPLETIONS) is plain
    assert without.of(place, "other", Endpoint.EMBEDDINGS) is plain
    named = Senders(settings(chat_executor=f"{HERE}:Executor"), Metrics())
    assert isinstance(named.of(place, "m", Endpoint.CHAT_COMPLETIONS), GroupingSender)
    assert named.of(place, "m", Endpoint.RESPONSES) is plain
    assert named.of(place, "m", Endpoint.EMBEDDINGS) is named.of(place, "m", Endpoint.EMBEDDINGS)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("no-colon", "form module:attribute"),
        ("no_such_module:Executor", "cannot be imported: ModuleNotFoundError"),
        (f"{HERE}:Nothing", "cannot be imported: AttributeError"),
        (f"{HERE}:NOT_AN_EXECUTOR", "has no method 'join'"),
    ],
)
def test_an_executor_that_is_none_is_a_wrong_setting(reference: str, said: str) -> None:
    with pytest.raises(SettingsError, match=rf"^BATCHWRIGHT_MODELS is wrong: chat_executor of 'm': .*{said}"):
        chat_executors(settings(chat_executor=reference))
