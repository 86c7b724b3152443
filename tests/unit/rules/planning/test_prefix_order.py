"""The order of prompts: prompts with a common beginning are next to each other."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from batchwright.rules import growing_bytes
from batchwright.rules.input.digest_set import DigestNumbers, DigestSet
from batchwright.rules.input.line_parser import read_body
from batchwright.rules.planning import prefix_order, shared_prefix
from batchwright.rules.planning.prefix_order import ModelLines, PlanOrder, PromptPrefixes
from batchwright.rules.planning.shared_prefix import Prompt, lexicographic_order, prompt_of, system_hash
from tests.unit.rules.texts import texts

TEXTS = st.text(alphabet="ab", max_size=4) | st.sampled_from(
    ["x" * 60 + "b", "x" * 60 + "a", "x" * 300, "x" * 1100 + "b", "x" * 1100 + "a", "ä"]
)
REQUESTS = st.lists(st.tuples(st.none() | TEXTS, TEXTS), max_size=30)


def a_prompt(**body: object) -> Prompt:
    return prompt_of(read_body(Raw(json.dumps(body).encode())))


def fnv_1a(data: bytes) -> int:
    """Return the FNV-1a hash, computed by the algorithm that its authors published."""
    value = 0x811C_9DC5
    for byte in data:
        value = ((value ^ byte) * 0x0100_0193) & 0xFFFF_FFFF
    return value


def message(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("text", "value"), [("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968)]
)  # fmt: skip
def test_the_hash_of_a_system_prompt_is_fnv_1a_by_its_published_vectors(text: str, value: int) -> None:
    assert system_hash(a_prompt(messages=[message("system", text)])) == value


def test_leading_system_and_developer_messages_are_shared() -> None:
    turns = [message("system", "a"), message("developer", "b"), message("user", "c"), message("system", "d")]
    prompt = a_prompt(messages=turns, tools=[1])
    assert (prompt.system, prompt.tools) == ((b'"a"', b'"b"'), b"[1]")
    assert prompt.rest.startswith(b'"c"')


def test_instructions_of_responses_are_the_system_prompt() -> None:
    assert a_prompt(instructions="be kind", input="hello") == Prompt((b'"be kind"',), b"", b'"hello"')


UNKNOWN_SHAPES = {
    "numbers": "[1,2]",
    "arrays": '[["x"]]',
    "text": '"text"',
    "object": '{"role":"system"}',
    "too many turns": "[" + "{}," * 20_000 + "{}]",
}


@pytest.mark.parametrize("turns", UNKNOWN_SHAPES.values(), ids=UNKNOWN_SHAPES)
def test_a_conversation_of_unknown_shape_counts_as_prompt(turns: str) -> None:
    body = read_body(Raw(f'{{"messages":{turns}}}'))
    assert prompt_of(body) == Prompt((), b"", turns.encode())


@pytest.mark.parametrize(("braces", "taken_apart"), [(0, True), (63, True), (9_998, True), (9_999, False)])
def test_a_long_conversation_is_parsed_unless_it_may_have_very_many_objects(
    braces: int, taken_apart: bool
) -> None:
    prompt = a_prompt(messages=[message("system", "be kind"), message("user", "x" * 20_000 + "{" * braces)])
    assert (prompt.system == (b'"be kind"',)) is taken_apart


def test_the_hash_is_that_of_the_text_not_of_its_spelling() -> None:
    assert system_hash(a_prompt(messages=[message("system", "ä\n")])) == fnv_1a("ä\n".encode())


@given(texts())
def test_the_hash_of_any_text_is_fnv_1a(text: str) -> None:
    assert system_hash(a_prompt(instructions=text)) == fnv_1a(text.encode())


def test_without_a_system_prompt_the_hash_is_zero() -> None:
    assert system_hash(a_prompt(messages=[message("user", "a")])) == 0


@given(st.lists(st.binary(max_size=300) | st.sampled_from([b"x" * 200, b"x" * 200 + b"y"])))
def test_texts_are_sorted_with_any_size_of_stored_prefix(texts: list[bytes]) -> None:
    def read(member: int, start: int, width: int) -> bytes:
        return texts[member][start : start + width]

    expected = sorted(range(len(texts)), key=lambda member: (texts[member], member))
    assert list(lexicographic_order(range(len(texts)), read)) == expected


def test_texts_with_a_long_equal_prefix_are_ordered_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prefix, "_HELD_BYTES", 1)
    texts = [b"x" * shared_prefix.COMPARED_BYTES + end for end in (b"b", b"a")]
    assert list(lexicographic_order(range(2), lambda member, at, width: texts[member][at : at + width])) == [
        0,
        1,
    ]


@given(st.lists(st.binary(max_size=2), max_size=50))
def test_digests_number_in_the_order_of_first_sight(shown: list[bytes]) -> None:
    digests = DigestNumbers()
    first: dict[bytes, int] = {}
    for data in shown:
        new = data not in first
        assert digests.number(data) == (first.setdefault(data, len(first)), new)
    assert len(digests) == len(first)


def test_a_table_of_digests_grows() -> None:
    digests = DigestNumbers()
    shown = [str(number).encode() for number in range(5_000)]
    assert [digests.number(data) for data in shown] == [(number, True) for number in range(5_000)]
    assert [digests.number(data) for data in shown] == [(number, False) for number in range(5_000)]


def test_a_set_of_digests_keeps_its_members_while_it_grows() -> None:
    seen = DigestSet()
    shown = [str(number).encode() for number in range(5_000)]
    assert all(seen.add(data) for data in shown)
    assert not any(seen.add(data) for data in shown)
    assert len(seen) == 5_000


class Input:
    """An input for one model, made of pairs of system prompt and user text."""

    def __init__(self, requests: list[tuple[str | None, str]], costs: Sequence[int] = ()) -> None:
        self.lines = [self._line(system, text) for system, text in requests]
        self._costs = costs or [1] * len(requests)

    def planned(self, order: PlanOrder) -> list[bytes]:
        prefixes, lines, offset = PromptPrefixes(), ModelLines(order), 0
        self.places: dict[int, bytes] = {}
        for line, cost in zip(self.lines, self._costs, strict=True):
            self.places[offset] = line
            prompt = self.prompt(line)
            number, fnv = prefixes.intern(prompt, offset, len(line))
            lines.add(offset, len(line), number, fnv, prefixes.sort_key(number, prompt.rest), cost)
            offset += len(line)
        found = lines.in_order(prefixes.ranks(self._read), self._read)
        return [self._read(line.entry.offset, line.entry.length) for line in found]

    def prompt(self, line: bytes) -> Prompt:
        return prompt_of(read_body(Raw(json.dumps(json.loads(line)["body"]).encode())))

    def _read(self, offset: int, length: int) -> bytes:
        assert len(self.places[offset]) == length
        return self.places[offset]

    def _line(self, system: str | None, text: str) -> bytes:
        leading = [] if system is None else [message("system", system)]
        return json.dumps({"body": {"messages": [*leading, message("user", text)]}}).encode() + b"\n"


@given(REQUESTS, st.sampled_from(["prefix", "hash", "file"]))
def test_a_plan_is_a_permutation_of_the_lines(
    requests: list[tuple[str | None, str]], order: PlanOrder
) -> None:
    found = Input(requests)
    assert sorted(found.planned(order)) == sorted(found.lines)


@given(REQUESTS, st.integers(1, 4), st.sampled_from(["prefix", "hash", "file"]))
def test_the_order_does_not_depend_on_how_many_rows_are_sorted_at_once(
    requests: list[tuple[str | None, str]], at_once: int, order: PlanOrder
) -> None:
    found = Input(requests)
    whole = found.planned(order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing_bytes, "_RUN_ROWS", at_once)
        assert found.planned(order) == whole


@given(REQUESTS)
def test_equal_prefixes_are_neighbours_and_in_order(requests: list[tuple[str | None, str]]) -> None:
    found = Input(requests)
    prefixes = [found.prompt(line).shared for line in found.planned("prefix")]
    assert prefixes == sorted(prefixes)


@given(REQUESTS)
def test_a_plan_that_is_too_large_to_be_reordered_is_in_the_order_of_all_texts(
    requests: list[tuple[str | None, str]],
) -> None:
    found = Input(requests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_order, "_MAX_REORDERED", 0)
        prompts = [found.prompt(line) for line in found.planned("prefix")]
    texts = [(prompt.shared, prompt.rest) for prompt in prompts]
    assert texts == sorted(texts)


def test_lines_with_nothing_in_common_keep_the_order_of_the_input() -> None:
    texts = [str(number * 7919 % 1009) for number in range(300)]
    found = Input([("s", text) for text in texts])
    assert found.planned("prefix") == found.lines


def planned_texts(requests: list[tuple[str | None, str]], costs: list[int]) -> list[str]:
    found = Input(requests, costs)
    planned = [json.loads(line)["body"]["messages"] for line in found.planned("prefix")]
    return ["/".join(turn["content"][-2:] for turn in turns) for turns in planned]


def test_of_lines_with_the_same_system_prompt_the_most_expensive_go_first() -> None:
    requests: list[tuple[str | None, str]] = [("b", "b1"), ("a", "a1"), ("b", "b2"), ("a", "a2"), ("a", "a3")]
    assert planned_texts(requests, [1, 2, 9, 2, 5]) == ["a/a3", "a/a1", "a/a2", "b/b2", "b/b1"]


def test_lines_whose_texts_begin_alike_stay_together_whatever_they_cost() -> None:
    template = "x" * 200
    texts = ["b1", template + "t1", "a1", template + "t2", "template" + "c1"]
    assert planned_texts([(None, text) for text in texts], [4, 1, 2, 5, 3]) == ["t1", "t2", "b1", "c1", "a1"]


@pytest.mark.parametrize(("common", "planned"), [(127, ["t2", "a1", "t1"]), (128, ["t1", "t2", "a1"])])
def test_lines_stay_together_if_their_texts_have_128_bytes_more_in_common_than_all(
    common: int, planned: list[str]
) -> None:
    texts = ["x" * (common - 1) + "t1", "x" * (common - 1) + "t2", "a1"]
    assert planned_texts([(None, text) for text in texts], [1, 3, 2]) == planned


def test_what_all_texts_of_a_prefix_have_in_common_does_not_keep_lines_together() -> None:
    texts = ["x" * 300 + end for end in ("a1", "b1", "c1")]
    assert planned_texts([("s", text) for text in texts], [1, 2, 3]) == ["s/c1", "s/b1", "s/a1"]


def test_lines_of_a_large_plan_are_not_sorted_by_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_order, "_MAX_BY_COST", 2)
    template = "x" * 200
    texts = ["c1", template + "t2", "b1", template + "t1", "a1"]
    planned = planned_texts([(None, text) for text in texts], [1, 2, 3, 4, 5])
    assert planned == ["c1", "t1", "t2", "b1", "a1"]


@given(REQUESTS)
def test_hash_order_is_by_hash_then_by_position(requests: list[tuple[str | None, str]]) -> None:
    found = Input(requests)
    assert found.planned("hash") == sorted(found.lines, key=lambda line: system_hash(found.prompt(line)))


@given(REQUESTS)
def test_file_order_is_the_input_s(requests: list[tuple[str | None, str]]) -> None:
    found = Input(requests)
    assert found.planned("file") == found.lines
