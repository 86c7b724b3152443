"""Turns the repository's Markdown files into pages of the site, with links that work in the site.

The site has a page for each file below `docs/`, for the README, and for each file that one of these pages
links to. Markdown files outside `docs/` become pages in the folder `repository`. Other files become pages in
the folder `source`, which show the content of the file.
"""

import re
from pathlib import Path
from posixpath import relpath

ROOT = Path(__file__).parents[2]
_DOCS = ROOT / "docs"
_HOME = ROOT / "README.md"
_ASSETS = {".png", ".svg", ".json"}
_FENCE = re.compile(r"^( *```[\w-]*)([^\n]*)$(.*?)(^ *```$)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"(?P<before>\]\(|^\[[^]\n]+\]: )(?P<target>[^)\s#]+)", re.MULTILINE)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".sql": "sql", ".toml": "toml", ".json": "json"}


class BrokenLink(Exception):
    """A page links to a path that does not exist in the repository."""


def collect_pages() -> dict[str, bytes]:
    """Return the content of each file of the site that comes from the repository, by its path in the site.

    Raises:
        BrokenLink: a page links to a file that does not exist.
    """
    assets = {path for path in _DOCS.rglob("*") if path.suffix in _ASSETS}
    pages = {place(path): path.read_bytes() for path in assets}
    waiting = [_HOME, *sorted(_DOCS.rglob("*.md"))]
    while waiting:
        path = waiting.pop()
        if place(path) not in pages:
            text, linked = _page(path)
            pages[place(path)] = text.encode()
            waiting += linked
    return pages


def place(path: Path) -> str:
    """Return the path in the site for a file of the repository."""
    if path == _HOME:
        return "index.md"
    if path.is_relative_to(_DOCS) and path.suffix in {".md", *_ASSETS}:
        return path.relative_to(_DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    return f"repository/{name}" if path.suffix == ".md" else f"source/{name}.md"


def _page(path: Path) -> tuple[str, list[Path]]:
    """Return the text of the page for a file, and the files to which the page links."""
    text = path.read_text()
    if path.suffix != ".md":
        language = _LANGUAGES.get(path.suffix, "text")
        return f"# {path.relative_to(ROOT)}\n\n````{language}\n{text}````\n", []
    linked: list[Path] = []

    def to_site(found: re.Match[str]) -> str:
        target = found["target"]
        if ":" in target:  # another host
            return found[0]
        file = _linked_file(path, target)
        linked.append(file)
        return found["before"] + relpath(place(file), Path(place(path)).parent.as_posix())

    return "".join(part if is_code else _LINK.sub(to_site, part) for is_code, part in _parts(text)), linked


def _linked_file(path: Path, target: str) -> Path:
    """Return the file to which the link `target` on the page points. For a folder, return its README."""
    file = (path.parent / target).resolve()
    if file.is_dir():
        file /= "README.md"
    if not file.is_file() or not file.is_relative_to(ROOT):
        raise BrokenLink(f"{path.relative_to(ROOT)} links to {target}, which does not exist")
    return file


def _parts(text: str) -> list[tuple[bool, str]]:
    """Split the text of a page into code and other text. Return pairs (is code, text), in order.

    If several words follow the opening fence of a code block, only the first, the language, is kept.
    """
    parts: list[tuple[bool, str]] = []
    end = 0
    for fence in _FENCE.finditer(text):
        parts += [*_inline_parts(text[end : fence.start()]), (True, fence[1] + fence[3] + fence[4])]
        end = fence.end()
    return [*parts, *_inline_parts(text[end:])]


def _inline_parts(text: str) -> list[tuple[bool, str]]:
    parts: list[tuple[bool, str]] = []
    end = 0
    for code in _CODE.finditer(text):
        parts += [(False, text[end : code.start()]), (True, code[0])]
        end = code.end()
    return [*parts, (False, text[end:])]
