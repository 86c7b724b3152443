"""What `dev` and `demo` show of a stack."""

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from starter.stack.errors import StackError
from starter.stack.state import StackInfo
from starter.tables import facts


def panel(info: StackInfo, backends: tuple[str, ...], *, with_keys: bool = False) -> Panel:
    """The addresses, within 80 columns."""
    table = facts()
    for name, value in _addresses(info, backends, with_keys):
        table.add_row(name, Text(value))
    return Panel(table, title="Batchwright", subtitle="Ctrl-C stops it", title_align="left", expand=False)


def _addresses(info: StackInfo, backends: tuple[str, ...], with_keys: bool) -> list[tuple[str, str]]:
    inference = f"simulator at {info.simulator}" if info.simulator else ", ".join(backends)
    return [
        ("API", f"{info.api}/v1 (described at /docs)"),
        ("Temporal UI", info.ui),
        ("Temporal", f"{info.temporal}, namespace {info.namespace}"),
        ("PostgreSQL", info.postgres),
        ("Inference", inference),
        ("Data, logs", f"{info.data}, {info.data}/logs"),
        *([("Keys", _first_key(info))] if with_keys else []),
        ("Try", f"batchwright submit FILE --wait --url {info.api}"),
    ]


def _first_key(info: StackInfo) -> str:
    """What makes one, and where the command line looks for it."""
    told = f"export BATCHWRIGHT_DATABASE_URL={info.postgres}"
    made = "export BATCHWRIGHT_API_KEY=$(batchwright keys create default)"
    return f"{told}\nbatchwright tenants create default\n{made}"


def complain(errors: Console, error: StackError) -> None:
    """The sentence, and what the part itself said last."""
    errors.print(Text(str(error)), style="red")
    if error.detail:
        errors.print(Text(error.detail), style="dim")
