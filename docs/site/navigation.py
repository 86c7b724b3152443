"""The navigation of the site: tutorial, how-to guides, reference, explanation, and the project."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

_HOW_TO = "how-to/"
# How-to guides of those who send batches. All others are for operators.
_FOR_APPLICATIONS = {
    "compressed-files.md",
    "control-costs.md",
    "data-in-place.md",
    "deduplicate-requests.md",
    "find-batches.md",
    "follow-a-batch.md",
    "python-client.md",
    "receive-webhooks.md",
    "rerun-a-batch.md",
    "schedules.md",
    "send-interactive-calls.md",
    "send-single-calls.md",
    "submit-a-batch.md",
    "tables.md",
    "use-a-folder.md",
    "use-the-anthropic-clients.md",
    "use-the-pages.md",
}
_OPERATE = ("operations.md", "runbooks.md")
# Pages of the reference that are for developers: they are in the tab of the project.
_FOR_DEVELOPERS = ("reference/requirements.md",)
_EXPLANATION = ("architecture.md", "temporal.md", "scheduling.md", "performance.md", "reliability.md")
Entry = dict[str, "str | list[Entry]"]


def navigation(pages: Mapping[str, bytes]) -> str:
    """Return the navigation as a TOML value. `pages` has the content of each page by its path."""

    def entries(names: Collection[str]) -> list[Entry]:
        return [{_title(pages[name]): name} for name in names]

    def below(folder: str) -> list[Entry]:
        found = entries([name for name in pages if name.startswith(folder) and name.endswith(".md")])
        return sorted(found, key=lambda entry: next(iter(entry)).lower())

    applications = {_HOW_TO + name for name in _FOR_APPLICATIONS}
    guides = below(_HOW_TO)
    tabs: list[Entry] = [
        {"Home": "index.md"},
        {"Tutorial": below("tutorial/")},
        {
            "How-to": [
                {"For applications": [each for each in guides if _path(each) in applications]},
                {"For operators": entries(_OPERATE) + [x for x in guides if _path(x) not in applications]},
            ]
        },
        {"Reference": [each for each in below("reference/") if _path(each) not in _FOR_DEVELOPERS]},
        {"Explanation": entries(_EXPLANATION) + below("explanation/")},
        {
            "Project": [
                *below("repository/"),
                *entries([name for name in _FOR_DEVELOPERS if name in pages]),
                {
                    "Source files": [
                        {Path(name).stem: name} for name in sorted(pages) if name.startswith("source/")
                    ]
                },
                {"Decisions": below("decisions/")},
            ]
        },
    ]
    return _toml(tabs)


def _title(page: bytes) -> str:
    first, _, _ = page.decode().partition("\n")
    return first.removeprefix("# ").replace("`", "")


def _path(entry: Entry) -> object:
    return next(iter(entry.values()))


def _toml(value: "str | list[Entry]") -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    items = [f"{{{_toml(name)} = {_toml(inner)}}}" for entry in value for name, inner in entry.items()]
    return f"[{', '.join(items)}]"
