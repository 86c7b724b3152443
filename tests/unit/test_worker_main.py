"""What the worker's process refuses before it polls anything, and how it is asked to stop."""

import os
import signal
from collections.abc import Sequence

import pytest
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

from batchwright.settings import load
from starter.stack.ports import free_port
from worker.drain import StopSignal
from worker.main import main, options_of
from worker.roles import Role, roles_of
from worker.versioning import deployment


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        ("control,io,inference", [Role.CONTROL, Role.IO, Role.INFERENCE]),
        (" io , io", [Role.IO]),
    ],
)
def test_roles_are_named_by_commas(text: str, roles: Sequence[Role]) -> None:
    assert roles_of(text) == roles


@pytest.mark.parametrize("text", ["", " , ", "control,cook"])
def test_a_wrong_role_is_refused_and_the_right_ones_are_named(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options_of(["--roles", text])) == 2
    assert "control, io, inference" in capsys.readouterr().err


def test_a_wrong_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_SLOTS_PER_MODEL", "many")
    assert main(options_of([])) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("BATCHWRIGHT_SLOTS_PER_MODEL is wrong: ")


@pytest.mark.parametrize(
    ("setting", "missing"), [("DEPLOYMENT_NAME", "BUILD_ID"), ("BUILD_ID", "DEPLOYMENT_NAME")]
)
def test_half_a_version_is_refused(
    setting: str, missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"BATCHWRIGHT_{setting}", "x")
    assert main(options_of([])) == 2
    assert capsys.readouterr().err.startswith(f"BATCHWRIGHT_{missing} is missing")


def test_batches_stay_on_the_build_that_started_them_where_there_is_one() -> None:
    assert deployment(load()) is None
    assert deployment(load(deployment_name="batchwright", build_id="1f2e")) == WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name="batchwright", build_id="1f2e"),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


def test_a_temporal_that_is_not_there_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("BATCHWRIGHT_TEMPORAL_ADDRESS", address)
    monkeypatch.setenv("BATCHWRIGHT_STARTUP_SECONDS", "0")
    assert main(options_of([])) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"Temporal does not answer at {address} (BATCHWRIGHT_TEMPORAL_ADDRESS)")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_asks_for_a_drain(number: signal.Signals) -> None:
    stop = StopSignal()
    stop.install()
    assert not stop.is_requested
    os.kill(os.getpid(), number)
    await stop.wait()
    assert stop.is_requested
