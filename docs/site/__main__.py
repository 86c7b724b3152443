"""Write the sources of the documentation site: `python -m docs.site FOLDER`. `make site` then builds it."""

import shutil
import sys
from pathlib import Path

from batchwright.api.app import DocumentedApp
from docs.site.navigation import navigation
from docs.site.openapi import api_pages
from docs.site.pages import ROOT, collect_pages
from tests.fakes.api import ApiFixture

_CONFIG = Path(__file__).with_name("zensical.toml")
_STYLE = Path(__file__).with_name("site.css")
# Docstrings that users read. Zensical renders each `:::` directive with mkdocstrings.
_PYTHON = {
    "reference/python/client.md": """\
# Python client

[How to use it](../../how-to/python-client.md), with examples.

::: batchwright.client
    options:
      show_root_heading: false
      show_root_toc_entry: false
""",
    "reference/python/hooks.md": """\
# Hooks

[How to check requests with hooks](../../how-to/check-requests-with-hooks.md), with examples.

::: batchwright.inference.hooks
    options:
      show_root_heading: false
      show_root_toc_entry: false
      members: [Call, Refused, Hook]
""",
}


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    app = ApiFixture(auth="api_key").app
    assert isinstance(app, DocumentedApp)
    python = {name: text.encode() for name, text in _PYTHON.items()}
    style = {_STYLE.name: _STYLE.read_bytes()}
    pages = collect_pages() | api_pages(app.openapi()) | python | style
    for name, content in pages.items():
        path = folder / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    config = _CONFIG.read_text().replace("@VERSION@", app.version).replace("@SOURCE@", str(ROOT))
    (folder / "zensical.toml").write_text(config.replace("@NAVIGATION@", navigation(pages)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
