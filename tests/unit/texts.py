"""Any text that UTF-8 can say, for hypothesis."""

from hypothesis import strategies as st

# Hypothesis' own choice asks UTF-8 about each code point there is: seconds in a fresh clone.
_CHARACTERS = st.characters(exclude_categories=["Cs"])


def texts(*, min_size: int = 0, max_size: int | None = None) -> st.SearchStrategy[str]:
    return st.text(_CHARACTERS, min_size=min_size, max_size=max_size)


def matching(pattern: str) -> st.SearchStrategy[str]:
    """Texts that match it from end to end."""
    return st.from_regex(pattern, fullmatch=True, alphabet=_CHARACTERS)
