"""The folder of a test run, also of programs that use parts of the suite without pytest."""

from contextlib import ExitStack

import pytest

from tests import run_folder


def test_a_run_without_pytest_has_a_folder_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_RUN_FOLDER")
    with ExitStack() as at_the_end:
        run_folder.open_run_folder(at_the_end.callback)
        folder = run_folder.run_folder()
        assert folder.is_dir()
    assert not folder.exists()
