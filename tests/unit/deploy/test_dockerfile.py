"""The Dockerfile, as far as it can be tested without building the image."""

import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from batchwright.settings import Settings
from tests.unit.deploy.files import ROOT, dockerfile, image_environment, stage

pytestmark = pytest.mark.integration

PACKAGES = {"activities", "api", "batchwright", "simulator", "starter", "worker", "workflows"}
LINTER = Path(sys.executable).with_name("hadolint")


def copied() -> list[str]:
    """Return the paths in the repository that the image copies."""
    from_here = [each for each in dockerfile() if each.name == "COPY" and "--from=" not in each.text]
    return [source for each in from_here for source in each.words[:-1]]


def test_the_linter_finds_nothing() -> None:
    found = subprocess.run([LINTER, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (found.stdout, found.returncode) == ("", 0)


@pytest.mark.parametrize("source", copied())
def test_copied_files_exist_and_are_sent_to_the_builder(source: str) -> None:
    assert (ROOT / source).exists()
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert rules[0] == "*"
    assert any(f"{source}/".startswith(f"{rule[1:]}/") for rule in rules if rule.startswith("!"))


def test_every_package_of_ours_is_copied() -> None:
    assert set(copied()) >= PACKAGES


def test_no_environment_state_or_secret_is_sent_to_the_builder() -> None:
    rules = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for path in (".git", ".venv", ".env", ".batchwright", "tests", "deploy/helm"):
        assert not any(fnmatch.fnmatch(path, rule) or path.startswith(f"{rule}/") for rule in rules)


def test_images_are_pinned_to_the_bytes_of_a_release() -> None:
    stages = [each.text.split(" ")[0] for each in dockerfile() if each.name == "FROM"]
    assert all(re.fullmatch(r"[a-z./-]+:\d+\.\d+\.\d+[a-z-]*@sha256:[0-9a-f]{64}", image) for image in stages)


def test_the_image_runs_the_python_that_the_tests_run() -> None:
    images = {each.text.split(" ")[0] for each in dockerfile() if each.text.startswith("python:")}
    [image] = images
    assert image.startswith(f"python:{sys.version_info.major}.{sys.version_info.minor}.")


def test_the_image_runs_as_a_numeric_user_that_is_not_root() -> None:
    [user] = [each.text for each in stage(last=True) if each.name == "USER"]
    assert all(int(part) > 0 for part in user.split(":"))


def test_the_image_writes_only_to_its_volume() -> None:
    environment = image_environment()
    [volume] = [each.text for each in stage(last=True) if each.name == "VOLUME"]
    assert volume == f'["{environment["BATCHWRIGHT_SPOOL_DIR"]}"]'
    assert environment["TMPDIR"] == environment["BATCHWRIGHT_SPOOL_DIR"]


def test_the_image_sets_only_existing_settings_and_does_not_expose_the_api() -> None:
    names = {name for name in image_environment() if name.startswith("BATCHWRIGHT_")}
    assert names <= {f"BATCHWRIGHT_{name.upper()}" for name in Settings.model_fields}
    assert "BATCHWRIGHT_AUTH" not in names


def test_the_api_of_the_image_does_not_start_without_authentication_and_names_the_setting() -> None:
    environment = {**os.environ, **image_environment(), "PATH": os.environ["PATH"], "TMPDIR": "/tmp"}
    environment["BATCHWRIGHT_BACKENDS"] = '["http://127.0.0.1:9"]'
    command = [sys.executable, "-m", "batchwright.starter", "api"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 2
    assert "BATCHWRIGHT_AUTH=api_key" in ended.stderr
