"""The index of the decision records."""

from pathlib import Path

_FOLDER = Path(__file__).parent / "decisions"
_INTRO = """\
# Decisions

{generated}
What somebody will ask "why?" about: what was chosen, what was measured, what else there was. Numbers are
never used twice, and some were given to what was not decided in the end.

"""


def pages(generated: str) -> dict[Path, str]:
    found = sorted(_FOLDER.glob("[0-9]*.md"))
    rows = [f"- [{_title(path)}]({path.name})\n" for path in found]
    return {_FOLDER / "README.md": _INTRO.format(generated=generated) + "".join(rows)}


def _title(path: Path) -> str:
    first, _, _ = path.read_text().partition("\n")
    return first.removeprefix("# ")
