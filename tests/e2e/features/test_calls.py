"""Single calls on a whole stack, with the official client."""

import asyncio
from collections.abc import Sequence

import pytest
from openai import APIError, AsyncOpenAI, NotFoundError
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import Response

from tests.clients import http_client
from tests.e2e.batches import chat_lines, ended, submit, until
from tests.e2e.stack import MODELS, Stack

pytestmark = pytest.mark.e2e
_LIVE = ("queued", "in_progress")


async def ends_of(client: AsyncOpenAI, responses: Sequence[Response]) -> list[Response]:
    """Retrieve the responses until all have ended."""
    found = list(responses)

    async def have_ended() -> bool:
        found[:] = await asyncio.gather(*(client.responses.retrieve(each.id) for each in found))
        return not any(each.status in _LIVE for each in found)

    await until(have_ended)
    return found


async def test_calls_in_the_background_are_answered_like_any_others(stack: Stack) -> None:
    async with stack.client("background") as client, http_client(stack.now.api) as http:
        made = await asyncio.gather(
            *(
                client.responses.create(
                    model=MODELS[number % 2],
                    input=f"Say {number}.",
                    background=True,
                    metadata={"n": str(number)},
                )
                for number in range(20)
            )
        )
        assert {each.status for each in made} == {"queued"}
        ended = await ends_of(client, made)
        assert {each.status for each in ended} == {"completed"}
        assert [each.id for each in ended] == [each.id for each in made]
        assert all(each.output_text for each in ended)
        # Neither list shows the batches and files behind the calls.
        assert (await client.batches.list()).data == []
        assert (await client.files.list()).data == []
        job = {"model": MODELS[0], "payload": {"messages": [{"role": "user", "content": "hi"}]}}
        id = (await http.post("/queue/submit", json=job)).raise_for_status().json()["job_id"]

        async def is_completed() -> bool:
            return (await http.get(f"/queue/{id}")).raise_for_status().json()["status"] == "completed"

        await until(is_completed)
        result = (await http.get(f"/queue/{id}")).json()["result"]
        assert result["object"] == "chat.completion"


async def test_held_connections_get_the_answers_of_the_backend(stack: Stack) -> None:
    async with stack.client("held") as client:
        chats = [
            client.chat.completions.create(
                model=MODELS[0], messages=[{"role": "user", "content": f"Say {number}."}], service_tier="flex"
            )
            for number in range(20)
        ]
        response = client.responses.create(model=MODELS[1], input="Say it.", service_tier="flex")
        completions, said = await asyncio.gather(asyncio.gather(*chats), response)
        assert all(each.choices[0].message.content for each in completions)
        assert said.output_text


async def test_a_cancelled_call_ends_although_the_backend_holds_its_batch(stack: Stack) -> None:
    async with stack.client() as client, stack.backend.hold(MODELS[2]) as hold:
        held = await client.responses.create(model=MODELS[2], input="Wait.", background=True)
        await hold.reached()
        early = await client.responses.create(model=MODELS[2], input="Never.", background=True)
        for made in (early, held):
            assert (await client.responses.cancel(made.id)).status == "cancelled"
        await hold.release()
        assert [each.status for each in await ends_of(client, [held, early])] == ["cancelled"] * 2


async def test_calls_that_cannot_wait_are_answered_beside_a_running_batch(stack: Stack) -> None:
    asked: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say it."}]
    async with stack.client("interactive") as client, stack.backend.hold(MODELS[2]) as hold:
        batch = await submit(client, chat_lines([MODELS[2]], 20))
        await hold.reached()
        chats = client.chat.completions
        completion = await chats.create(model=MODELS[0], messages=asked)
        assert completion.choices[0].message.content
        stream = await chats.create(model=MODELS[0], messages=asked, stream=True)
        words = [choice.delta.content or "" async for chunk in stream for choice in chunk.choices]
        assert len([word for word in words if word]) > 2
        assert (await client.responses.create(model=MODELS[1], input="Say it.")).output_text
        said = await client.responses.create(model=MODELS[1], input="Say it.", stream=True)
        assert [event.type async for event in said][-1] == "response.completed"
        assert (await client.embeddings.create(model=MODELS[1], input="it")).data
        broken = await chats.create(model=MODELS[0], messages=asked, stream=True, user="sim:cut")
        with pytest.raises(APIError, match="connection ended"):
            [chunk async for chunk in broken]
        with pytest.raises(NotFoundError, match="does not exist"):
            await chats.create(model="none", messages=asked)
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        await hold.release()
        done = await ended(client, batch.id)
        assert done.status == "completed"
