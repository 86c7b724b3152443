"""The page of other projects has a row for each program and each server that its command runs."""

import re

from tests.compatibility.__main__ import FOLDER, PAGE, PROGRAMS, TESTED, recorded_rows
from tests.compatibility.servers import SERVED

_ROW = re.compile(
    r"^\| \[([^]]+)\]\(https://pypi\.org/project/\1/\) \| [^|]+ \| ([^|]+) \| [^|]+ \|$", re.MULTILINE
)


def test_the_page_has_a_row_for_each_program_and_each_endpoint_of_a_server() -> None:
    tried = [(one.project, one.use) for one in (*PROGRAMS, *SERVED, *TESTED)]
    assert [row for row in _ROW.findall(PAGE.read_text()) if row[1].strip()] == tried


def test_the_page_has_a_row_for_each_recorded_answer_and_none_besides() -> None:
    page = PAGE.read_text().partition("## Recorded answers")[2]
    assert [line for line in page.splitlines() if line.startswith("| [")] == recorded_rows()


def test_every_program_is_run() -> None:
    programs = {path.stem for path in (FOLDER / "programs").glob("*.py")}
    assert {program.file for program in PROGRAMS} == programs
