"""The page of other projects' programs has a row for each program that its command runs."""

import re

from tests.compatibility.__main__ import FOLDER, PAGE, PROGRAMS

_ROW = re.compile(
    r"^\| \[([^]]+)\]\(https://pypi\.org/project/\1/\) \| [^|]+ \| ([^|]+) \| [^|]+ \|$", re.MULTILINE
)


def test_the_page_has_a_row_for_each_program() -> None:
    assert _ROW.findall(PAGE.read_text()) == [(program.project, program.use) for program in PROGRAMS]


def test_every_program_is_run() -> None:
    programs = {path.stem for path in (FOLDER / "programs").glob("*.py")}
    assert {program.file for program in PROGRAMS} == programs
