"""Tables of the command line: what has no room is folded, never cut, and names are never markup."""

from datetime import datetime

from rich.markup import escape
from rich.table import Table


def columns(*names: str, right: int = 0, whole: str = "") -> Table:
    """The last `right` of them hold numbers; `whole` is not folded while another can be, for it is copied."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, name in enumerate(names):
        is_number = place >= len(names) - right
        table.add_column(
            name, justify="right" if is_number else "left", overflow="fold", no_wrap=name == whole
        )
    return table


def facts() -> Table:
    """A name and what it is, a line each."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def plain(text: str) -> str:
    """Not rich's markup, whatever brackets and backslashes it has."""
    return escape(text)


def local_time(at: datetime | None) -> str:
    return "" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
