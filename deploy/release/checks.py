"""Checks that must pass before a version is released."""

import re
import subprocess
import tomllib
from pathlib import Path

import yaml

_MIGRATIONS = "batchwright/database/migrations"


def project_version(root: Path) -> str:
    """Return the version of the project, from pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]


def find_problems(root: Path) -> list[str]:
    """Return the reasons why the present files of the repository cannot be released, one sentence for
    each.
    """
    version = project_version(root)
    return [
        *_chart_problems(root, version),
        *_changelog_problems(root, version),
        *_tag_problems(root, version),
        *_migration_problems(root),
        *(f"{line[3:]} is not committed" for line in _git(root, "status", "--porcelain")),
    ]


def _chart_problems(root: Path, version: str) -> list[str]:
    path = root / "deploy" / "helm" / "batchwright" / "Chart.yaml"
    chart = yaml.safe_load(path.read_text())
    return [
        f"{key} in {path.relative_to(root)} is {chart[key]}, and the project's version is {version}"
        for key in ("version", "appVersion")
        if chart[key] != version
    ]


def _changelog_problems(root: Path, version: str) -> list[str]:
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    if re.search(heading, (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        return []
    return [f"CHANGELOG.md has no section '## [{version}] - DATE'"]


def _tag_problems(root: Path, version: str) -> list[str]:
    return [f"the tag v{version} exists: raise the version"] if f"v{version}" in _tags(root) else []


def _migration_problems(root: Path) -> list[str]:
    """Return a sentence for each migration that was changed after a release contained it.

    Such a change is not allowed, because databases that ran the earlier version would have other tables.
    """
    return [
        f"{path} has changed since {tag}: restore it, and write a new migration"
        for tag in _tags(root)
        for path in _git(root, "diff", "--name-only", "--diff-filter=a", tag, "--", _MIGRATIONS)
    ]


def _tags(root: Path) -> list[str]:
    return _git(root, "tag", "--list", "v*", "--sort=version:refname")


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()
