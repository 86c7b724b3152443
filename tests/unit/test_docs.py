"""The reference says what the code says."""

from pathlib import Path

import pytest

from batchwright.contracts.errors import LineCode
from batchwright.settings import Settings
from docs.generate import CAUSES, LINE_MESSAGES, pages

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", list(pages()), ids=lambda path: path.name)
def test_a_generated_page_is_up_to_date(path: Path) -> None:
    assert path.read_text() == pages()[path], "run `make docs`"


@pytest.mark.parametrize("name", list(Settings.model_fields))
def test_every_setting_says_what_it_means(name: str) -> None:
    assert Settings.model_fields[name].description


@pytest.mark.parametrize("code", list(LineCode))
def test_every_error_code_of_a_line_has_a_cause(code: LineCode) -> None:
    assert (code in LINE_MESSAGES) != (code in CAUSES)


def test_every_relative_link_of_the_documentation_leads_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for target in _links(page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def _links(text: str) -> list[str]:
    targets = [part.split(")")[0].split("#")[0] for part in text.split("](")[1:]]
    return [target for target in targets if target and "://" not in target]
