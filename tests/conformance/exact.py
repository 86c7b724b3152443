"""Compares a response strictly with the official client's type: equal keys, and values of the right types."""

from collections.abc import Iterator
from typing import TypeVar, get_args

import openai
from openai._legacy_response import LegacyAPIResponse
from pydantic import BaseModel, TypeAdapter

_OBJECT = TypeAdapter(dict[str, object])
_LIST = TypeAdapter(list[object])
_Object = TypeVar("_Object", bound=openai.BaseModel)
# Ours, in the one place where extensions live; and what OpenAI's own answers may lack.
_OURS = {"Batch": {"x_batchwright"}, "MessageBatch": {"x_batchwright"}}
_ABSENT = {"Model": {"shutdown_date"}}


def exact(answer: LegacyAPIResponse[_Object]) -> _Object:
    """Check that the response is a 200 whose JSON matches its type exactly, and return the parsed object."""
    assert answer.http_response.status_code == 200
    parsed = answer.parse()
    check(type(parsed), _OBJECT.validate_json(answer.content))
    return parsed


def check(kind: type[BaseModel], value: dict[str, object]) -> None:
    """Check that `value` has exactly the keys of `kind`, with values of the right types.

    Raises:
        AssertionError: a key is missing or unknown.
        pydantic.ValidationError: a value has another type.
    """
    assert list(differences(kind, value, kind.__name__)) == []
    known = {name: item for name, item in value.items() if name in kind.model_fields}
    TypeAdapter(kind).validate_python(known, strict=True)


def differences(kind: type[BaseModel], value: dict[str, object], path: str) -> Iterator[str]:
    """Yield missing and unknown keys, including those of nested objects."""
    name = kind.__name__
    fields = set(kind.model_fields)
    for missing in sorted(fields - value.keys() - _ABSENT.get(name, set())):
        yield f"{path}.{missing} is missing"
    for unknown in sorted(value.keys() - fields - _OURS.get(name, set())):
        yield f"{path}.{unknown} is unknown"
    for field, info in kind.model_fields.items():
        for inner in _models(info.annotation):
            for item in _objects(value.get(field)):
                yield from differences(inner, item, f"{path}.{field}")


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the object types in an annotation, such as X in Optional[List[X]]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _objects(value: object) -> Iterator[dict[str, object]]:
    if isinstance(value, dict):
        yield _OBJECT.validate_python(value)
    elif isinstance(value, list):
        for item in _LIST.validate_python(value):
            yield from _objects(item)
