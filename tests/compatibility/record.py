"""Records answers of a server that the tests cannot run, for `recorded.py`.

`python -m tests.compatibility.record URL FILE CASE...` sends the requests of these cases to a running server,
and adds the answers to the JSON file. The server has the model `tiny` with a context of 512 tokens.
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import NamedTuple

import httpx
from pydantic import JsonValue

from tests.compatibility.recorded import HEADERS, Answer, Recording

_QUESTION = "Which of the two tides of today is the higher one, and when is it? " * 5
_CHAT = "/v1/chat/completions"
_ASKED: dict[str, JsonValue] = {
    "messages": [{"role": "user", "content": _QUESTION}],
    "max_tokens": 8,
    "temperature": 0,
}


class Case(NamedTuple):
    """A request that is sent in `rounds` rounds, one after another. In each round, `copies` of it are sent at
    the same time.

    The last answer whose status is `status` is recorded.
    """

    path: str
    body: dict[str, JsonValue]
    status: int = 200
    rounds: int = 1
    copies: int = 1


CASES = {
    "chat, a part of the prompt cached": Case(_CHAT, _ASKED, rounds=3),
    "chat, reasoning in a field of its own": Case(_CHAT, _ASKED),
    "completions": Case("/v1/completions", {"prompt": "The tide", "max_tokens": 8, "temperature": 0}),
    "responses": Case("/v1/responses", {"input": "The tide", "max_output_tokens": 8, "temperature": 0}),
    "messages": Case("/v1/messages", {"messages": _ASKED["messages"], "max_tokens": 8}),
    "embeddings": Case("/v1/embeddings", {"input": ["ebb", "flow"], "encoding_format": "base64"}),
    "stream of a chat": Case(
        _CHAT, {**_ASKED, "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}}
    ),
    "prompt beyond the context": Case(
        _CHAT, {"messages": [{"role": "user", "content": _QUESTION * 9}]}, status=400
    ),
    "parameter out of range": Case(_CHAT, {**_ASKED, "temperature": -1}, status=400),
    "field of another type": Case(_CHAT, {"messages": "tide"}, status=400),
    "unknown model": Case(_CHAT, {**_ASKED, "model": "none"}, status=404),
    # While it is answered, the engine's process is killed by hand.
    "crash of the engine": Case(_CHAT, {**_ASKED, "max_tokens": 100}, status=500),
    "full queue": Case(_CHAT, {**_ASKED, "max_tokens": 100}, status=503, copies=16),
}


def body_of(name: str) -> dict[str, JsonValue]:
    """Return the body of the request of a case."""
    return {"model": "tiny", **CASES[name].body}


async def answer_to(client: httpx.AsyncClient, name: str) -> Answer:
    """Send the requests of a case, and return the answer to record.

    Raises:
        LookupError: no answer has the status of the case. The message contains the last answer.
    """
    case, body = CASES[name], body_of(name)
    answers = [
        answer
        for _ in range(case.rounds)
        for answer in await asyncio.gather(*(client.post(case.path, json=body) for _ in range(case.copies)))
    ]
    fitting = [answer for answer in answers if answer.status_code == case.status]
    if not fitting:
        raise LookupError(f"{name}: {answers[-1].status_code} {answers[-1].text}")
    headers = {name: fitting[-1].headers[name] for name in HEADERS if name in fitting[-1].headers}
    return Answer(case=name, status=case.status, headers=headers, body=fitting[-1].text)


async def answers_to(url: str, names: list[str]) -> list[Answer]:
    async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as client:
        return [await answer_to(client, name) for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("file", type=Path)
    parser.add_argument("cases", nargs="+", choices=CASES)
    arguments = parser.parse_args()
    recording = Recording.model_validate_json(arguments.file.read_text())
    kept = [answer for answer in recording.answers if answer.case not in arguments.cases]
    recording.answers = kept + asyncio.run(answers_to(arguments.url, arguments.cases))
    recording.answers.sort(key=lambda answer: list(CASES).index(answer.case))
    arguments.file.write_text(json.dumps(recording.model_dump(), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
