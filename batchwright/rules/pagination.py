"""Parse the query parameters of list operations, with OpenAI's rules and error messages."""

import re

_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class BadParameter(ValueError):
    """Raised if a query parameter is invalid. The client sees the message, `code` and `param`."""

    def __init__(self, message: str, *, code: str, param: str) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


def page_limit(text: str | None, *, default: int, maximum: int) -> int:
    """Return the page size (maximum number of objects in a response) that the client requested as `text`.

    If `text` is None, return `default`.

    Raises:
        BadParameter: the text is not an integer from 1 to `maximum`.
    """
    if text is None:
        return default
    if _INTEGER.fullmatch(text) is None:
        message = "Invalid type for 'limit': expected an integer, but got a string instead."
        raise BadParameter(message, code="invalid_type", param="limit")
    if int(text) < 1:
        raise _outside("below minimum", ">= 1", text, "integer_below_min_value")
    if int(text) > maximum:
        raise _outside("above maximum", f"<= {maximum}", text, "integer_above_max_value")
    return int(text)


def is_ascending(order: str | None) -> bool:
    """Return True if a list begins with the oldest object (`asc`).

    Return False if `order` is `desc` or None.

    Raises:
        BadParameter: `order` has another value.
    """
    if order not in (None, "asc", "desc"):
        message = f"Invalid value: '{order}'. Supported values are: 'asc' and 'desc'."
        raise BadParameter(message, code="invalid_value", param="order")
    return order == "asc"


def _outside(side: str, bound: str, text: str, code: str) -> BadParameter:
    message = f"Invalid 'limit': integer {side} value. Expected a value {bound}, but got {text} instead."
    return BadParameter(message, code=code, param="limit")
