"""Converts a whole response body to Server-Sent Events with the same content."""

from collections.abc import Iterator

import msgspec

from batchwright.simulator.call_parser import InferenceCall
from batchwright.simulator.responses import response_types

MEDIA_TYPE = "text/event-stream"
_DONE = b"data: [DONE]\n\n"


def as_events(call: InferenceCall, body: bytes) -> bytes:
    """Return a response body as the events that OpenAI's API would send, with one event for each word.

    The events of chat and text completions include `usage` only if `stream_options` asks for it. The events
    of /v1/responses always include `usage`.
    """
    match call.endpoint:
        case "/v1/chat/completions":
            chat = msgspec.json.decode(body, type=response_types.ChatCompletion)
            return _chunks(call, chat.usage, _chat_choices(chat), id=chat.id, object="chat.completion.chunk")
        case "/v1/completions":
            text = msgspec.json.decode(body, type=response_types.TextCompletion)
            return _chunks(call, text.usage, _text_choices(text), id=text.id, object=text.object)
        case _:
            return _response_events(body)


def _chunks(
    call: InferenceCall,
    usage: response_types.ChatUsage,
    choices: Iterator[dict[str, object]],
    **fields: str,
) -> bytes:
    chunk: dict[str, object] = {**fields, "model": call.model, "created": response_types.CREATED}
    events = [_event({**chunk, "choices": [choice]}) for choice in choices]
    if call.body.stream_options is not None and call.body.stream_options.include_usage:
        events.append(_event({**chunk, "choices": [], "usage": usage}))
    return b"".join([*events, _DONE])


def _chat_choices(chat: response_types.ChatCompletion) -> Iterator[dict[str, object]]:
    for choice in chat.choices:
        for word in _words(choice.message.content):
            delta = {"role": choice.message.role, "content": word}
            yield {"index": choice.index, "delta": delta, "finish_reason": None}
        yield {"index": choice.index, "delta": {}, "finish_reason": choice.finish_reason}


def _text_choices(completion: response_types.TextCompletion) -> Iterator[dict[str, object]]:
    for choice in completion.choices:
        for word in _words(choice.text):
            yield {"index": choice.index, "text": word, "finish_reason": None, "logprobs": None}
        yield {"index": choice.index, "text": "", "finish_reason": choice.finish_reason, "logprobs": None}


def _response_events(body: bytes) -> bytes:
    response = msgspec.json.decode(body, type=response_types.ResponseObject)
    message = response.output[0]
    events: list[dict[str, object]] = [
        {"type": "response.output_text.delta", "item_id": message.id, "delta": word}
        for word in _words(message.content[0].text)
    ]
    places = {"output_index": 0, "content_index": 0, "logprobs": ()}
    events = [{**event, **places} for event in events]
    events.append({"type": "response.completed", "response": msgspec.Raw(body)})
    return b"".join(
        b"event: %b\n%b" % (str(event["type"]).encode(), _event({**event, "sequence_number": number}))
        for number, event in enumerate(events)
    )


def _words(text: str) -> list[str]:
    return [word if not number else f" {word}" for number, word in enumerate(text.split(" "))]


def _event(data: dict[str, object]) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(data)
