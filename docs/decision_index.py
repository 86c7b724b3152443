"""Writes the index of the decision records."""

from pathlib import Path

_FOLDER = Path(__file__).parent / "decisions"
_INTRO = """\
# Decisions

{generated}
Why Batchwright is built as it is. Each record has the context, the choice, the alternatives and what was
given up. Numbers are never reused; missing ones belong to decisions that were not made in the end.

"""


def pages(generated: str) -> dict[Path, str]:
    found = sorted(_FOLDER.glob("[0-9]*.md"))
    rows = [f"- [{_title(path)}]({path.name})\n" for path in found]
    return {_FOLDER / "README.md": _INTRO.format(generated=generated) + "".join(rows)}


def _title(path: Path) -> str:
    first, _, _ = path.read_text().partition("\n")
    return first.removeprefix("# ")
