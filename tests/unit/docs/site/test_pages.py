"""Files of the repository become pages of the site whose links work there."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from docs.site import pages
from docs.site.navigation import navigation
from docs.site.openapi import api_pages
from docs.site.pages import BrokenLink, collect_pages


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a README, and a page `docs/how-to/a.md` that the README links to."""
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "_DOCS", tmp_path / "docs")
    monkeypatch.setattr(pages, "_HOME", tmp_path / "README.md")
    (tmp_path / "docs" / "how-to").mkdir(parents=True)
    (tmp_path / "README.md").write_text("# Home\n\n[a](docs/how-to/a.md#part)\n")
    (tmp_path / "docs" / "how-to" / "a.md").write_text("# A\n")
    return tmp_path


def page(root: Path, text: str) -> str:
    (root / "docs" / "how-to" / "a.md").write_text(text)
    return collect_pages()["how-to/a.md"].decode()


def test_the_readme_is_the_home_page(root: Path) -> None:
    assert collect_pages()["index.md"] == b"# Home\n\n[a](how-to/a.md#part)\n"


def test_a_link_to_the_readme_leads_home(root: Path) -> None:
    assert page(root, "[home](../../README.md)") == "[home](../index.md)"


def test_a_link_to_a_source_file_leads_to_a_page_that_shows_it(root: Path) -> None:
    (root / "alerts.yaml").write_text("groups: []\n")
    assert page(root, "[alerts](../../alerts.yaml)") == "[alerts](../source/alerts.yaml.md)"
    shown = collect_pages()["source/alerts.yaml.md"].decode()
    assert shown == "# alerts.yaml\n\n````yaml\ngroups: []\n````\n"


def test_pages_outside_the_documentation_are_collected_with_what_they_link_to(root: Path) -> None:
    (root / "LICENSE").write_text("Apache\n")
    (root / "CONTRIBUTING.md").write_text("# Contributing\n\n[licence]: LICENSE\n")
    assert page(root, "[x](../../CONTRIBUTING.md)") == "[x](../repository/CONTRIBUTING.md)"
    assert (
        collect_pages()["repository/CONTRIBUTING.md"]
        == b"# Contributing\n\n[licence]: ../source/LICENSE.md\n"
    )


@pytest.mark.parametrize("target", ["nothing.md", "../../../outside.md", "/etc/hostname", "../how-to"])
def test_a_link_to_a_missing_file_is_refused_with_its_page(root: Path, target: str) -> None:
    with pytest.raises(BrokenLink, match=f"how-to/a.md links to {target}"):
        page(root, f"[x]({target})")


@pytest.mark.parametrize(
    "text",
    [
        "`[x](nothing.md)`",
        "```python\n[x](nothing.md)\n```",
        "[x](https://example.com/a.md)",
        "[x](#part)",
    ],
)
def test_code_and_other_links_stay(root: Path, text: str) -> None:
    assert page(root, text) == text


def test_of_the_words_after_a_fence_only_the_language_is_kept(root: Path) -> None:
    assert page(root, "```sh needs-a-cluster\nhelm\n```\n") == "```sh\nhelm\n```\n"


def test_every_page_of_the_repository_is_in_the_navigation_once() -> None:
    collected = collect_pages()
    shown = _paths(tomllib.loads(f"nav = {navigation(collected)}")["nav"])
    assert sorted(shown) == sorted(name for name in collected if name.endswith(".md"))


def test_the_requirements_are_in_the_tab_of_the_project() -> None:
    tabs = tomllib.loads(f"nav = {navigation(collect_pages())}")["nav"]
    tab_of = {path: name for tab in tabs for name in tab for path in _paths([tab]) if "requirements" in path}
    assert tab_of == {"reference/requirements.md": "Project"}


def test_every_route_and_schema_is_on_a_page() -> None:
    name = {"schema": {"$ref": "#/components/schemas/Name"}}
    operation = {
        "tags": ["files"],
        "description": "Upload a file.",
        "parameters": [{"name": "limit", "in": "query", "schema": {"type": "integer", "maximum": 9}}],
        "requestBody": {"content": {"application/json": name}},
        "responses": {"200": {"description": "Done", "content": {"application/json": name}}},
    }
    fields = {"id": {"type": "string"}, "next": {"anyOf": [name["schema"], {"type": "null"}]}}
    schemas = {"Name": {"properties": fields, "required": ["id"]}}
    made = api_pages({"paths": {"/v1/files": {"post": operation}}, "components": {"schemas": schemas}})
    routes, described = made["reference/http-routes.md"].decode(), made["reference/http-schemas.md"].decode()
    assert "### POST /v1/files\n\nUpload a file.\n" in routes
    assert "| `limit` | query | integer, at most 9 |  |" in routes
    assert "| 200 | [Name](http-schemas.md#name) | Done |" in routes
    assert "| `id` | string, required |\n" in described
    assert "| `next` | [Name](http-schemas.md#name) or null |\n" in described


def _paths(entries: Any) -> list[str]:
    found: list[str] = []
    for value in (value for entry in entries for value in entry.values()):
        found += _paths(value) if isinstance(value, list) else [str(value)]
    return found
