"""Inputs with one prompt: `prompt.txt` becomes a batch of one line, and the model's answer becomes
`result.txt`.
"""

import json

from pydantic import BaseModel, Field, ValidationError

from batchwright.contracts.terms import Endpoint
from batchwright.starter.folder.input_files import FileName, InputDirectory, InputFailed

_MAX_PROMPT_BYTES = 10_000_000
_MAX_ANSWER_BYTES = 256 * 1024 * 1024  # an input may have an input.jsonl of many lines, too
_MAX_SHOWN = 2_000
_MAX_TYPE_BYTES = 100


def write_request(directory: InputDirectory, model: str | None) -> None:
    """Build a chat request from the input's `prompt.txt`, and write it to `input.jsonl`.

    Raises:
        InputFailed: no model is set, the prompt is empty, too large or not UTF-8, `type.txt` asks for another
            kind of request, or a file cannot be used.
    """
    if directory.exists(FileName.TYPE):
        with directory.open(FileName.TYPE) as file:
            kind = file.read(_MAX_TYPE_BYTES).decode(errors="replace").strip()
        if kind != "text":
            raise InputFailed(f"{FileName.TYPE} is {kind!r}: only prompts of type 'text' are run.")
    with directory.open(FileName.PROMPT) as file:
        content = file.read(_MAX_PROMPT_BYTES + 1)
    if model is None:
        raise InputFailed(f"{FileName.PROMPT} names no model: start `batchwright folder` with --model.")
    if len(content) > _MAX_PROMPT_BYTES:
        raise InputFailed(f"{FileName.PROMPT} has more than {_MAX_PROMPT_BYTES:,} bytes.")
    try:
        prompt = content.decode()
    except UnicodeDecodeError:
        raise InputFailed(f"{FileName.PROMPT} is not UTF-8 text.") from None
    if not prompt.strip():
        raise InputFailed(f"{FileName.PROMPT} is empty.")
    body = {"model": model, "messages": [{"role": "user", "content": prompt}]}
    line = {"custom_id": "prompt", "method": "POST", "url": Endpoint.CHAT_COMPLETIONS, "body": body}
    directory.write(FileName.INPUT, [json.dumps(line).encode() + b"\n"])


def answer(directory: InputDirectory) -> str:
    """Read the input's result files, and return the text that the model has generated.

    Raises:
        InputFailed: the request failed, or the response has no text.
    """
    if not directory.exists(FileName.OUTPUT):
        raise InputFailed(_failure(directory))
    with directory.open(FileName.OUTPUT) as file:
        line = file.read(_MAX_ANSWER_BYTES)
    try:
        return _OutputLine.model_validate_json(line).response.body.choices[0].message.content
    except ValidationError:
        raise InputFailed(f"The response has no text; {FileName.OUTPUT} has all of it.") from None


def _failure(directory: InputDirectory) -> str:
    with directory.open(FileName.ERRORS) as file:
        content = file.read(_MAX_ANSWER_BYTES)
    try:
        line = _ErrorLine.model_validate_json(content)
    except ValidationError:
        return f"The request failed; see {FileName.ERRORS}."
    if line.error is not None:
        return f"{line.error.message} ({line.error.code})"
    if line.response is None:
        return f"The request failed; see {FileName.ERRORS}."
    return f"The backend answered with status {line.response.status_code}: {_message(line.response.body)}"


def _message(body: object) -> str:
    """Return the message in an error response. If there is no message, return the beginning of the
    response.
    """
    try:
        return _ErrorBody.model_validate(body).error.message
    except ValidationError:
        return json.dumps(body, ensure_ascii=False)[:_MAX_SHOWN]


class _Message(BaseModel):
    content: str


class _Choice(BaseModel):
    message: _Message


class _Body(BaseModel):
    choices: list[_Choice] = Field(min_length=1)


class _Response(BaseModel):
    body: _Body


class _OutputLine(BaseModel):
    response: _Response


class _LineError(BaseModel):
    code: str
    message: str


class _ErrorResponse(BaseModel):
    status_code: int
    body: object


class _ErrorLine(BaseModel):
    response: _ErrorResponse | None
    error: _LineError | None


class _ErrorMessage(BaseModel):
    message: str


class _ErrorBody(BaseModel):
    error: _ErrorMessage
