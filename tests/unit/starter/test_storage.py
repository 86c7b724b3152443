"""`batchwright storage` on a directory."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from batchwright.starter.__main__ import app


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, ["storage", *arguments], env=environment)


def test_a_working_storage_is_reported(tmp_path: Path) -> None:
    result = run("check", BATCHWRIGHT_STORAGE_DIR=str(tmp_path / "objects"))
    assert (result.exit_code, result.stdout) == (0, "Objects can be written, read and deleted.\n")


def test_a_broken_storage_is_reported_with_the_reason_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    result = run("check", BATCHWRIGHT_STORAGE=f"file://{tmp_path}/file/objects")
    assert result.exit_code == 1
    assert "ENOTDIR" in result.stderr


def test_a_sweep_prints_what_it_deleted(tmp_path: Path) -> None:
    assert run("check", BATCHWRIGHT_STORAGE_DIR=str(tmp_path)).exit_code == 0
    for name, age in (("old", 0), ("new", 4_000_000_000)):
        (tmp_path / ".tmp" / name).write_bytes(b"x")
        os.utime(tmp_path / ".tmp" / name, (age, age))
    # Opening a directory sweeps it already.
    assert json.loads(run("sweep", "--json", BATCHWRIGHT_STORAGE_DIR=str(tmp_path)).stdout) == {"swept": 0}
    assert [path.name for path in (tmp_path / ".tmp").iterdir()] == ["new"]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"BATCHWRIGHT_STORAGE": "bucket"}, "neither s3://bucket/prefix nor file:///directory"),
        ({"BATCHWRIGHT_STORAGE": "s3://"}, "'' is not a bucket name"),
        ({"BATCHWRIGHT_STORAGE": "s3://bucket/a b"}, "'a b' is not a prefix"),
        ({"BATCHWRIGHT_STORAGE": "s3://key:secret@bucket"}, "must not contain a user"),
        ({"BATCHWRIGHT_S3_ENDPOINT_URL": "localhost:9000"}, "does not begin with http:// or https://"),
        ({"BATCHWRIGHT_S3_SSE": "aes"}, "BATCHWRIGHT_S3_SSE is wrong"),
        ({"BATCHWRIGHT_S3_SSE_KMS_KEY_ID": "k"}, "a KMS key needs BATCHWRIGHT_S3_SSE=aws:kms"),
    ],
)
def test_a_wrong_setting_is_named(environment: dict[str, str], message: str) -> None:
    result = run("check", **environment)
    assert result.exit_code == 3
    assert message in " ".join(result.stderr.split())
