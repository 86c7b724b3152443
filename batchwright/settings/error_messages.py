"""Error messages of settings. Each message is one sentence that says which values are valid."""

import re
from collections.abc import Sequence

from pydantic_core import ErrorDetails

# Requirements by pydantic's error types; other types keep pydantic's message.
_REQUIREMENTS = {
    "bool_parsing": "be true or false",
    "bool_type": "be true or false",
    "dict_type": "be a JSON object",
    "enum": "be {expected}",
    "extra_forbidden": "be removed: no such setting exists",
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
# Requirements by the patterns of settings and of the registry file. Patterns that only list values need none.
_PATTERNS = {
    r"^(.{32,})?$": "have at least 32 characters",
    r"^[A-Z]{3}$": "be three capital letters, such as EUR",
    r"^[A-Za-z0-9-]{0,64}$": "have at most 64 characters: letters, digits and '-'",
    r"^[A-Za-z0-9-]{1,64}$": "have 1 to 64 characters: letters, digits and '-'",
    r"^[A-Za-z0-9_-]{0,64}$": "have at most 64 characters: letters, digits, '_' and '-'",
    r"^[^.]{0,63}$": "have at most 63 characters, and no dot",
    r"^([^.\s]+(\.[^.\s]+)*)?$": "be the name of a field, or names with dots between them, such as data.id",
    r"^([\w.-]*[\w-][\w.-]*)?$": "be the name of a file: letters, digits, '.', '_' and '-'",
    r"^[^\x00]*$": "have no NUL character",
    r"^[^\x00]+$": "have no NUL character",
}
HIDDEN_VALUE = "hidden_value"  # type of our own errors about values that may contain a secret
_KEY = "[key]"  # pydantic's location of a map's key


class SettingsError(Exception):
    """Raised if a setting is invalid. The message names the setting and the valid values."""


def describe_error(error: ErrorDetails) -> str:
    """Return what is wrong with a setting, as a sentence without a full stop.

    The message does not contain the value of the setting, because the value may be a secret.
    """
    within = error["loc"][1:]
    if error["type"] in ("value_error", HIDDEN_VALUE):
        message = error["msg"].removeprefix("Value error, ")
        return f"{_place(within)}: {message}" if within else message
    return f"{_place(within)} must {describe_requirement(error)}"


def describe_invalid_json(kind: object) -> str:
    """Return the error message for a setting that is not valid JSON.

    `kind` is the type of the setting, such as `list[str]` or `dict[str, float]`. The message shows an example
    of this type in JSON.
    """
    form = '{"...": ...}' if str(kind).startswith("dict") else '["...", "..."]'
    return f"it is not JSON, in the form {form}"


def describe_requirement(error: ErrorDetails) -> str:
    """Return what a value must be, as the rest of a message that begins with "it must".

    Example: "be a number".
    """
    context = {name: _plain(value) for name, value in error.get("ctx", {}).items()}
    if error["type"] == "string_pattern_mismatch":
        return _match(str(context["pattern"]))
    if error["type"] in _REQUIREMENTS:
        return _REQUIREMENTS[error["type"]].format(**context)
    return error["msg"].removeprefix("Input should ")


def _plain(value: object) -> object:
    """Return a float without a fraction as an integer, so that messages show 0 instead of 0.0.

    Other values are returned unchanged.
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _match(pattern: str) -> str:
    choices = re.fullmatch(r"\^\(([\w:|]+)\)\$", pattern)
    if choices is None:
        return _PATTERNS.get(pattern, f"match the pattern {pattern}")
    return "be " + " or ".join(choice for choice in choices[1].split("|") if choice)


def _place(within: Sequence[int | str]) -> str:
    """Return words for the place of an error in a setting; "it" for the whole setting.

    Args:
        within: path inside of the setting. For example, ('a', 'in_flight') becomes "in_flight of 'a'".
    """
    if not within:
        return "it"
    if within[-1] == _KEY:
        return "a name in it"
    names = [f"entry {part + 1}" if isinstance(part, int) else repr(part) for part in within]
    return " of ".join([names[-1].strip("'") if len(names) > 1 else names[-1], *reversed(names[:-1])])
