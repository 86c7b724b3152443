"""A version is released only when its files agree, and with the migrations of all earlier releases."""

import subprocess
from pathlib import Path

import pytest

from deploy.release.checks import find_problems

MIGRATION = "batchwright/database/migrations/0001_tables.sql"
CHART = "deploy/helm/batchwright/Chart.yaml"
FILES = {
    "pyproject.toml": '[project]\nname = "batchwright"\nversion = "1.2.0"\n',
    CHART: 'version: 1.2.0\nappVersion: "1.2.0"\n',
    "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-12-01\n",
    MIGRATION: "CREATE TABLE batches ();\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose version 1.1.0 is released and whose version 1.2.0 can be released."""
    git(tmp_path, "init", "--quiet")
    for name, text in FILES.items():
        write(tmp_path, name, text)
    commit(tmp_path)
    git(tmp_path, "tag", "v1.1.0")
    return tmp_path


def git(root: Path, *arguments: str) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *author, *arguments], cwd=root, check=True, capture_output=True)


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "a")


def test_a_version_whose_files_agree_can_be_released(root: Path) -> None:
    assert find_problems(root) == []


@pytest.mark.parametrize("key", ["version", "appVersion"])
def test_the_chart_has_the_version_of_the_project(root: Path, key: str) -> None:
    write(root, CHART, FILES[CHART].replace(f"{key}: ", f"{key}: 1.1.0 # "))
    commit(root)
    assert find_problems(root) == [f"{key} in {CHART} is 1.1.0, and the project's version is 1.2.0"]


@pytest.mark.parametrize("heading", ["## [Unreleased]", "## [1.2.0]", "## [1.2.01] - 2026-12-01"])
def test_the_changelog_has_a_dated_section_of_the_version(root: Path, heading: str) -> None:
    write(root, "CHANGELOG.md", f"# Changelog\n\n{heading}\n")
    commit(root)
    assert find_problems(root) == ["CHANGELOG.md has no section '## [1.2.0] - DATE'"]


def test_a_version_is_released_once(root: Path) -> None:
    git(root, "tag", "v1.2.0")
    assert find_problems(root) == ["the tag v1.2.0 exists: raise the version"]


def test_a_released_migration_is_never_edited(root: Path) -> None:
    write(root, MIGRATION, "CREATE TABLE others ();\n")
    commit(root)
    [problem] = find_problems(root)
    assert problem == f"{MIGRATION} has changed since v1.1.0: restore it, and write a new migration"


def test_a_released_migration_is_never_removed(root: Path) -> None:
    (root / MIGRATION).unlink()
    commit(root)
    assert [problem.split(" ")[0] for problem in find_problems(root)] == [MIGRATION]


def test_a_new_migration_is_no_problem(root: Path) -> None:
    write(root, MIGRATION.replace("0001", "0002"), "CREATE TABLE others ();\n")
    commit(root)
    assert find_problems(root) == []


def test_everything_is_committed(root: Path) -> None:
    write(root, "new.py", "")
    assert find_problems(root) == ["new.py is not committed"]
