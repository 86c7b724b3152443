"""Strategies for hypothesis that generate text which can be encoded as UTF-8."""

from hypothesis import strategies as st

# Hypothesis' own choice asks UTF-8 about each code point there is: seconds in a fresh clone.
_CHARACTERS = st.characters(exclude_categories=["Cs"])


def texts(*, min_size: int = 0, max_size: int | None = None) -> st.SearchStrategy[str]:
    return st.text(_CHARACTERS, min_size=min_size, max_size=max_size)


def matching(pattern: str) -> st.SearchStrategy[str]:
    """Return a strategy that generates texts which match `pattern` completely."""
    return st.from_regex(pattern, fullmatch=True, alphabet=_CHARACTERS)
