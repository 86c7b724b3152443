"""What commands say of those who share a budget of tokens: organizations, and users."""

from batchwright.rules.ids import is_tenant
from starter.output import stop


def check_name(name: str, whose: str) -> None:
    """Ends the command unless it can be one, of a tenant, an organization or a user."""
    if not is_tenant(name):
        stop(
            f"{name!r} cannot be {whose} name: 1 to 64 letters, digits, '.', '_' or '-', the first of "
            "them a letter or digit."
        )


def budget(tokens_per_day: int | None, none: str = "no budget") -> str:
    return f"{tokens_per_day} tokens a day" if tokens_per_day else none


def used(tokens: int, tokens_per_day: int | None) -> str:
    """Of today."""
    return f"{tokens} of {tokens_per_day}" if tokens_per_day else str(tokens)
