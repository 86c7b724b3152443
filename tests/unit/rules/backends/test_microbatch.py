"""Lines that share a request: which ones may, what is sent, and which part of the response each line gets."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.rules.backends.microbatch import (
    EmbeddingsAdapter,
    MicrobatchFailed,
    MicrobatchPart,
    MicrobatchSize,
    divide,
)
from tests.unit.rules.texts import texts

KIND = EmbeddingsAdapter()


def body(own: object, **more: object) -> bytes:
    return json.dumps({"model": "m", "input": own, **more}).encode()


def part(own: object, **more: object) -> MicrobatchPart:
    found = KIND.part(body(own, **more))
    assert found is not None
    return found


def answer(*indexes: int, **more: object) -> bytes:
    items = [{"object": "embedding", "index": index, "embedding": [index + 0.25]} for index in indexes]
    usage = {"prompt_tokens": 10, "total_tokens": 10}
    return json.dumps({"object": "list", "data": items, "model": "m", "usage": usage, **more}).encode()


prompts = texts(min_size=1)
inputs = st.one_of(prompts, st.lists(st.integers(0, 200_000), min_size=1))


@pytest.mark.parametrize("own", ["a text", [1, 2, 3]])
def test_a_text_and_an_array_of_tokens_may_share_a_request(own: object) -> None:
    assert KIND.part(body(own)) is not None


@pytest.mark.parametrize("own", [["a", "b"], [[1], [2]], "", [], 3, None, [1.5], {"a": 1}])
def test_other_inputs_are_sent_alone(own: object) -> None:
    assert KIND.part(body(own)) is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"null", b"{}"])
def test_a_body_that_is_not_a_request_is_sent_alone(data: bytes) -> None:
    assert KIND.part(data) is None


@pytest.mark.parametrize(
    "more", [{"dimensions": 8}, {"encoding_format": "base64"}, {"user": "u"}, {"model": "n"}]
)
def test_only_equal_parameters_share_a_request(more: dict[str, object]) -> None:
    assert part("a", **more).shared == part("b", **more).shared
    assert part("a", **more).shared != part("a").shared


def test_texts_and_tokens_do_not_share_a_request() -> None:
    assert part("a").shared != part([1]).shared


def test_the_order_of_parameters_does_not_matter() -> None:
    one = KIND.part(b'{"model":"m","input":"a","dimensions":8}')
    other = KIND.part(b'{"dimensions":8,"input":"b","model":"m"}')
    assert one is not None
    assert other is not None
    assert one.shared == other.shared


@given(st.lists(prompts, min_size=1, max_size=5))
def test_a_joined_request_holds_the_inputs_in_order_and_the_common_parameters(owns: list[str]) -> None:
    sent = json.loads(KIND.join([part(own, dimensions=8, user='a{"b') for own in owns]))
    assert sent == {"model": "m", "dimensions": 8, "user": 'a{"b', "input": owns}


def test_a_request_with_only_inputs_is_joined() -> None:
    alone = KIND.part(b'{"input":"a"}')
    assert alone is not None
    assert json.loads(KIND.join([alone, alone])) == {"input": ["a", "a"]}


def test_each_line_gets_its_own_embedding_whatever_the_order() -> None:
    results = KIND.split(answer(2, 0, 1), [part("a"), part("b"), part("c")])
    bodies = [json.loads(result.body) for result in results]
    assert [each["data"] for each in bodies] == [
        [{"object": "embedding", "index": 0, "embedding": [place + 0.25]}] for place in range(3)
    ]
    assert {(each["object"], each["model"]) for each in bodies} == {("list", "m")}
    assert {result.status for result in results} == {200}


def test_numbers_stay_as_the_backend_wrote_them() -> None:
    data = b'{"data":[{"index":0,"embedding":[0.10,1e-05]},{"index":1,"embedding":"AAA="}]}'
    first, second = KIND.split(data, [part("a"), part("b")])
    assert b"[0.10,1e-05]" in first.body
    assert b'"AAA="' in second.body


@given(st.integers(0, 10**9), st.lists(st.one_of(st.integers(1, 10**6), st.just(1)), min_size=1, max_size=50))
def test_shares_are_whole_in_proportion_and_add_up_exactly(total: int, weights: list[int]) -> None:
    shares = divide(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - total * weight / sum(weights)) < 1


def test_usage_is_shared_by_tokens_with_its_details() -> None:
    usage = {"prompt_tokens": 8, "prompt_tokens_details": {"cached_tokens": 4}, "cost": 0.5, "other": None}
    results = KIND.split(answer(0, 1, usage=usage), [part([1, 2, 3]), part([1])])
    assert [json.loads(result.body)["usage"] for result in results] == [
        {"prompt_tokens": 6, "prompt_tokens_details": {"cached_tokens": 3}, "cost": 0.375, "other": None},
        {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}, "cost": 0.125, "other": None},
    ]


def test_an_answer_without_usage_gives_none() -> None:
    results = KIND.split(answer(0, 1, usage=None), [part("a"), part("b")])
    assert ["usage" in json.loads(result.body) for result in results] == [False, False]


@pytest.mark.parametrize(
    "data",
    [
        answer(0),
        answer(0, 0),
        answer(0, 2),
        answer(0, 1, 2),
        b"[]",
        b"{}",
        b"\xff",
        b'{"data":[{"index":0},{"index":1}]}',
        b'{"data":[{"embedding":[]},{"embedding":[]}]}',
        b'{"data":[{"index":"0","embedding":[]},{"index":1,"embedding":[]}]}',
        b'{"data":{"index":0}}',
        answer(0, 1, usage={"prompt_tokens": "many"}),
    ],
)
def test_an_answer_without_clear_indexes_is_not_split(data: bytes) -> None:
    with pytest.raises(MicrobatchFailed):
        KIND.split(data, [part("a"), part("b")])


def test_repeated_failures_halve_the_lines_that_share_a_request_down_to_one() -> None:
    size = MicrobatchSize(8)
    seen: list[int] = []
    for _ in range(9):
        seen.append(size.current)
        size.record_failure()
    assert seen == [8, 8, 4, 4, 2, 2, 1, 1, 1]


def test_a_single_failure_changes_nothing() -> None:
    size = MicrobatchSize(8)
    for _ in range(5):
        size.record_failure()
        size.record_success()
    assert size.current == 8


def test_shared_requests_grow_again_after_successes_up_to_the_setting() -> None:
    size = MicrobatchSize(4)
    for _ in range(4):
        size.record_failure()
    grown = [size.current]
    for _ in range(20):
        size.record_success()
        grown.append(size.current)
    assert grown[0] == 1
    assert grown[-1] == 4
    assert all(after - before in (0, 1) for before, after in pairwise(grown))
