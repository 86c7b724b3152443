"""What is wrong with a setting, in our words: one sentence that says what it may be."""

import re
from collections.abc import Sequence

from pydantic_core import ErrorDetails

# By pydantic's kinds of error, completed by its numbers; others keep pydantic's words.
_MUST = {
    "bool_parsing": "be true or false",
    "bool_type": "be true or false",
    "dict_type": "be a JSON object",
    "enum": "be {expected}",
    "float_parsing": "be a number",
    "float_type": "be a number",
    "greater_than": "be more than {gt}",
    "greater_than_equal": "be at least {ge}",
    "int_from_float": "be a whole number",
    "int_parsing": "be a whole number",
    "int_parsing_size": "be a smaller number",
    "int_type": "be a whole number",
    "less_than": "be less than {lt}",
    "less_than_equal": "be at most {le}",
    "list_type": "be a JSON list",
    "literal_error": "be {expected}",
    "model_attributes_type": "be a JSON object",
    "model_type": "be a JSON object",
    "too_long": "have at most {max_length} entries",
    "too_short": "have at least {min_length} of them",
    "string_too_long": "have at most {max_length} characters",
    "string_too_short": "not be empty",
    "string_type": "be a string",
}
HIDDEN_VALUE = "hidden_value"  # the kind of our own errors about what may hold a secret
_KEY = "[key]"  # pydantic's place of a map's key


class SettingsError(Exception):
    """A setting is wrong; the message names it and says what it may be."""


def what_is_wrong(error: ErrorDetails) -> str:
    """Without a full stop, and without the value, which may be a secret."""
    within = error["loc"][1:]
    if error["type"] in ("value_error", HIDDEN_VALUE):
        said = error["msg"].removeprefix("Value error, ")
        return f"{_place(within)}: {said}" if within else said
    return f"{_place(within)} must {what_must_be(error)}"


def not_json(kind: object) -> str:
    """Of a setting that is a list or a map by its annotation."""
    form = '{"...": ...}' if str(kind).startswith("dict") else '["...", "..."]'
    return f"it is not JSON, in the form {form}"


def what_must_be(error: ErrorDetails) -> str:
    """The end of a sentence that begins with: it must."""
    context = {name: _plain(value) for name, value in error.get("ctx", {}).items()}
    if error["type"] == "string_pattern_mismatch":
        return _match(str(context["pattern"]))
    if error["type"] in _MUST:
        return _MUST[error["type"]].format(**context)
    return error["msg"].removeprefix("Input should ")


def _plain(value: object) -> object:
    """0.0 as 0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _match(pattern: str) -> str:
    choices = re.fullmatch(r"\^\(([\w:|]+)\)\$", pattern)
    if choices is None:
        return f"match the pattern {pattern}"
    return "be " + " or ".join(choice for choice in choices[1].split("|") if choice)


def _place(within: Sequence[int | str]) -> str:
    """Of `models`, 'a', `in_flight`: in_flight of 'a'."""
    if not within:
        return "it"
    if within[-1] == _KEY:
        return "a name in it"
    names = [f"entry {part + 1}" if isinstance(part, int) else repr(part) for part in within]
    return " of ".join([names[-1].strip("'") if len(names) > 1 else names[-1], *reversed(names[:-1])])
