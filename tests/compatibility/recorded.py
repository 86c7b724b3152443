"""Answers of real servers that the tests cannot run. Each was recorded once."""

from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict

FOLDER = Path(__file__).parent / "recorded"
# The headers that decide how an answer is read.
HEADERS = ("content-type", "retry-after")


class Effect(StrEnum):
    """The effect of an answer on the line, or on the streaming call, that gets it."""

    RESULT = "a line in the output file, its tokens counted"
    ERROR = "a line in the error file at once, with the server's error"
    ATTEMPT = "the line is sent again, which uses an attempt only if the server answers other requests"
    RETRY = "the line waits and is sent again, without using an attempt"
    STREAM = "passed on to the caller, its tokens counted"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Answer(_Strict):
    """The answer to the request of a case (`record.py`), byte for byte."""

    case: str
    status: int
    headers: dict[str, str]
    body: str

    @property
    def effect(self) -> Effect:
        if "event-stream" in self.headers["content-type"]:
            return Effect.STREAM
        if self.status == 500:
            return Effect.ATTEMPT
        return {200: Effect.RESULT, 429: Effect.RETRY, 503: Effect.RETRY}.get(self.status, Effect.ERROR)


class Recording(_Strict):
    """The answers of one release of a server.

    Attributes:
        project: name of the server on PyPI.
        date: when the answers were recorded.
        source: how the server was run.
    """

    project: str
    release: str
    date: str
    source: str
    answers: list[Answer]


def recordings() -> list[Recording]:
    return [Recording.model_validate_json(file.read_text()) for file in sorted(FOLDER.glob("*.json"))]
