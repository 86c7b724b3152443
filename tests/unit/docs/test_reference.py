"""The reference pages agree with the code."""

import re
from pathlib import Path

import pytest

from batchwright.contracts.errors import LineCode
from batchwright.contracts.terms import Quota
from batchwright.rules.input.validation_errors import ValidationCode
from batchwright.settings import Settings
from batchwright.settings.size_and_quota_settings import SizeAndQuotaSettings
from docs.error_codes import CODES
from docs.generate import pages

ROOT = Path(__file__).parents[3]
PAGES = pages()
API = (ROOT / "docs/reference/api.md").read_text()


@pytest.mark.parametrize("path", list(PAGES), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_generated_page_is_up_to_date(path: Path) -> None:
    assert path.read_text() == PAGES[path], "run `make docs`"


@pytest.mark.parametrize("name", list(Settings.model_fields))
def test_every_setting_says_what_it_means(name: str) -> None:
    assert Settings.model_fields[name].description


@pytest.mark.parametrize("code", list(LineCode))
def test_every_error_code_of_a_line_has_a_cause_and_a_remedy(code: LineCode) -> None:
    assert all(CODES[code])


def test_every_relative_link_in_the_documentation_resolves() -> None:
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


def test_every_code_of_an_answer_is_in_the_table_of_the_reference_and_no_other() -> None:
    sources = [*(ROOT / "api").rglob("*.py"), ROOT / "batchwright/rules/pagination.py"]
    text = "".join(path.read_text() for path in sources)
    given = set(re.findall(r'code="([a-z_]+)"', text)) | set(re.findall(r'"(integer_[a-z_]+)"', text))
    assert _first_cells(API.split("\n## Errors\n")[1].split("\n## ")[0]) == given


def test_every_code_of_validation_is_in_the_table_of_the_reference_and_no_other() -> None:
    table = API.split("A batch whose input has errors")[1].split("\n### ")[0]
    assert _first_cells(table) == {code.value for code in ValidationCode}


@pytest.mark.parametrize("name", list(SizeAndQuotaSettings.model_fields))
def test_every_limit_of_the_contract_is_in_the_reference(name: str) -> None:
    assert f"BATCHWRIGHT_{name.upper()}" in API


@pytest.mark.parametrize("quota", list(Quota))
def test_every_quota_is_in_the_reference_with_its_setting(quota: Quota) -> None:
    guide = (ROOT / "docs/how-to/limit-tenants.md").read_text()
    assert f"| `{quota}` |" in guide
    assert f"`BATCHWRIGHT_MAX_{quota.upper()}`" in guide
    assert f"`{quota}`" in API


def _first_cells(text: str) -> set[str]:
    """Return the texts in backquotes in the first column of a table."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize("page", ["reliability.md", "operations.md"])
def test_every_test_that_a_promise_names_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    named = set(re.findall(r"`(tests/[\w/.]+)`", text))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    files = [path for path in map(ROOT.joinpath, named) if path.suffix == ".py"]
    defined = set(re.findall(r"def (test_\w+)", "".join(path.read_text() for path in files)))
    assert set(re.findall(r"`(test_\w+)`", text)) - defined == set()
