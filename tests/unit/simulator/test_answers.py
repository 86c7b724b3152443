"""Responses of the simulator, parsed by the official client."""

import statistics
from collections.abc import AsyncGenerator

import openai
import pytest

from batchwright.simulator.backend import SimulatorOptions
from tests.unit.simulator.simulators import CHAT, MODEL, OTHER, Simulated, simulated


@pytest.fixture
async def sim() -> AsyncGenerator[Simulated]:
    async with simulated() as running:
        yield running


@pytest.fixture
async def client(sim: Simulated) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{sim.url}/v1",
        api_key="none",
        max_retries=0,
        http_client=sim.http,  # pyright: ignore[reportArgumentType] - it takes httpx too, its types do not
    )


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], max_completion_tokens=5, n=2
    )
    first, second = answer.choices
    assert first.message.content is not None
    assert len(first.message.content.split()) == 5
    assert first.finish_reason == "length"
    assert first.message.content != second.message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 10
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 10


async def test_streams_have_as_many_words_as_whole_answers(client: openai.AsyncOpenAI) -> None:
    chat = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        max_completion_tokens=5,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in chat]
    words = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
    ends = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert (len(words), ends) == (10, ["length", "length"])
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 10
    text = await client.completions.create(model=MODEL, prompt="once upon", stream=True)
    pieces = [chunk async for chunk in text]
    assert len("".join(chunk.choices[0].text for chunk in pieces).split()) == 16
    assert all(chunk.usage is None for chunk in pieces)
    response = await client.responses.create(model=MODEL, input="hi", stream=True)
    events = [event async for event in response]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert events[-1].type == "response.completed"
    assert "".join(deltas) == events[-1].response.output_text


async def test_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt="once upon")
    assert answer.choices[0].finish_reason == "stop"
    assert len(answer.choices[0].text.split()) == 16


async def test_responses(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(
        model=MODEL, input="hi", instructions="be short", max_output_tokens=3
    )
    assert len(answer.output_text.split()) == 3
    assert answer.usage is not None
    assert answer.usage.output_tokens == 3


async def test_embeddings_are_the_same_packed_and_plain(client: openai.AsyncOpenAI) -> None:
    packed = await client.embeddings.create(model=MODEL, input=["a", "b"], dimensions=5)  # asks for base64
    plain = await client.embeddings.create(
        model=MODEL, input=["a", "b"], encoding_format="float", dimensions=5
    )
    assert [len(item.embedding) for item in plain.data] == [5, 5]
    assert plain.data[0].embedding != plain.data[1].embedding
    assert packed.data[1].embedding == pytest.approx(plain.data[1].embedding)


async def test_a_list_of_tokens_is_one_embedding(client: openai.AsyncOpenAI) -> None:
    answer = await client.embeddings.create(model=MODEL, input=[1, 2, 3], encoding_format="float")
    assert len(answer.data) == 1


async def test_moderations_flag_by_word(client: openai.AsyncOpenAI) -> None:
    answer = await client.moderations.create(input=["a calm day", "so much Violence"])
    assert [result.flagged for result in answer.results] == [False, True]
    assert answer.model == MODEL


@pytest.mark.parametrize(
    ("path", "name"), [("images/generations", "data"), ("images/edits", "data"), ("videos", "id")]
)
async def test_pictures_and_videos_have_a_shape(sim: Simulated, path: str, name: str) -> None:
    answer = await sim.http.post(f"/v1/{path}", json={"model": MODEL, "prompt": "a cat"})
    assert answer.json()[name]


async def test_scores_and_ranks_have_a_shape(sim: Simulated) -> None:
    body = {"model": MODEL, "text_1": "what", "text_2": ["one", "two"]}
    scores = (await sim.http.post("/v1/score", json=body)).json()
    assert [each["index"] for each in scores["data"]] == [0, 1]
    assert all(0 <= each["score"] <= 1 for each in scores["data"])
    body = {"model": MODEL, "query": "what", "documents": ["one", "two", "three"]}
    ranks = (await sim.http.post("/v1/rerank", json=body)).json()
    relevance = [each["relevance_score"] for each in ranks["results"]]
    assert relevance == sorted(relevance, reverse=True)
    assert sorted(each["index"] for each in ranks["results"]) == [0, 1, 2]
    assert scores["usage"]["total_tokens"] > 0
    assert ranks["usage"]["total_tokens"] > 0


async def test_models_are_listed_and_found(client: openai.AsyncOpenAI) -> None:
    listed = [model.id async for model in client.models.list()]
    assert listed == [MODEL, OTHER]
    assert (await client.models.retrieve(OTHER)).id == OTHER
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt-none")


async def test_the_same_body_gets_the_same_answer(sim: Simulated) -> None:
    first, second, third = [await sim.chat("same"), await sim.chat("same"), await sim.chat("other")]
    assert first.content == second.content
    assert first.content != third.content


async def test_the_lengths_of_answers_differ_around_the_one_that_is_set() -> None:
    options = SimulatorOptions(models=(MODEL,), output_tokens=100, output_jitter=1.0)
    async with simulated(options) as sim:
        answers = [(await sim.chat(f"question {number}")).json() for number in range(200)]
    lengths = [answer["usage"]["completion_tokens"] for answer in answers]
    assert 80 < statistics.median(lengths) < 125
    assert max(lengths) > 5 * min(lengths)
    assert lengths == [len(answer["choices"][0]["message"]["content"].split()) for answer in answers]


async def test_a_shared_prefix_is_reported_as_cached(sim: Simulated) -> None:
    shared = "You are a careful assistant. " * 20
    first, second = [(await sim.chat(shared + end)).json()["usage"] for end in ("one", "two")]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] == second["prompt_tokens"] // 16 * 16


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        (b"{", 400, None, None),
        (b"[]", 400, None, None),
        (b'{"model":"\xff"}', 400, None, None),
        (b'{"messages":[]}', 400, "model", None),
        (b'{"model":"m"}', 400, "messages", "missing_required_parameter"),
        (b'{"model":"m","messages":[],"n":0}', 400, "n", "invalid_value"),
        (b'{"model":"m","messages":[]}', 404, "model", "model_not_found"),
    ],
)
async def test_a_bad_call_is_refused_as_openai_does(
    sim: Simulated, body: bytes, status: int, param: str | None, code: str | None
) -> None:
    answer = await sim.http.post(CHAT, content=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, param, code)
    assert error["type"] == "invalid_request_error"


async def test_endpoints_without_streams_refuse_them(sim: Simulated) -> None:
    answer = await sim.http.post("/v1/embeddings", json={"model": MODEL, "input": "a", "stream": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")


async def test_an_input_of_the_wrong_type_is_refused(sim: Simulated) -> None:
    answer = await sim.http.post("/v1/embeddings", json={"model": MODEL, "input": 7})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/nothing"), ("POST", "/v1/nothing"), ("PUT", CHAT)])
async def test_an_unknown_url_is_404(sim: Simulated, method: str, path: str) -> None:
    assert (await sim.http.request(method, path)).status_code == 404


async def test_a_key_is_required_if_one_is_set() -> None:
    async with simulated(SimulatorOptions(models=(MODEL,), api_key="secret")) as sim:
        assert (await sim.chat()).status_code == 401
        assert (await sim.http.get("/v1/models")).status_code == 401
        sim.http.headers["authorization"] = "Bearer secret"
        assert (await sim.chat()).status_code == 200
        assert sim.ledger.requests == 1
