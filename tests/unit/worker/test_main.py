"""Options and settings that a worker process rejects at its start, and its shutdown signal."""

import os
import signal
from collections.abc import Sequence

import pytest
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

from batchwright.settings import load
from batchwright.starter.embedded_stack.ports import free_port
from batchwright.worker.main import main, parse_options
from batchwright.worker.roles import Role, parse_roles
from batchwright.worker.shutdown import ShutdownSignal
from batchwright.worker.wiring import deployment_config


@pytest.fixture(autouse=True)
def _backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHWRIGHT_BACKENDS", '["http://127.0.0.1:9"]')


def test_without_a_backend_the_worker_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BATCHWRIGHT_BACKENDS")
    assert main(parse_options([])) == 2
    assert capsys.readouterr().err.splitlines() == [
        "No backend is configured: set BATCHWRIGHT_BACKENDS to a JSON list of URLs, such as "
        '["http://127.0.0.1:8080"], or BATCHWRIGHT_REGISTRY to a registry file.'
    ]


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        ("control,io,inference", [Role.CONTROL, Role.IO, Role.INFERENCE]),
        (" io , io", [Role.IO]),
    ],
)
def test_roles_are_named_by_commas(text: str, roles: Sequence[Role]) -> None:
    assert parse_roles(text) == roles


@pytest.mark.parametrize("text", ["", " , ", "control,cook"])
def test_a_wrong_role_is_refused_and_the_right_ones_are_named(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(parse_options(["--roles", text])) == 2
    assert "control, io, inference" in capsys.readouterr().err


def test_a_wrong_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_IO_SLOTS", "many")
    assert main(parse_options([])) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("BATCHWRIGHT_IO_SLOTS is wrong: ")


@pytest.mark.parametrize(
    ("setting", "missing"), [("DEPLOYMENT_NAME", "BUILD_ID"), ("BUILD_ID", "DEPLOYMENT_NAME")]
)
def test_a_deployment_name_without_a_build_id_or_the_reverse_is_refused(
    setting: str, missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"BATCHWRIGHT_{setting}", "x")
    assert main(parse_options([])) == 2
    assert capsys.readouterr().err.startswith(f"BATCHWRIGHT_{missing} is missing")


def test_batches_stay_on_the_build_that_started_them_if_one_is_set() -> None:
    assert deployment_config(load()) is None
    assert deployment_config(load(deployment_name="batchwright", build_id="1f2e")) == WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name="batchwright", build_id="1f2e"),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


def test_an_unreachable_temporal_is_reported_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("BATCHWRIGHT_TEMPORAL_ADDRESS", address)
    monkeypatch.setattr("batchwright.worker.dependency_checks.STARTUP_SECONDS", 0)
    assert main(parse_options([])) == 1
    error_output = capsys.readouterr().err
    assert error_output.startswith(f"Temporal does not answer at {address} (BATCHWRIGHT_TEMPORAL_ADDRESS)")


def test_a_setting_that_names_an_unknown_object_stops_the_worker_as_a_wrong_setting_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_PRE_CALL_HOOKS", '["no_such_module:hook"]')
    assert main(parse_options([])) == 2
    assert "no_such_module" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_starts_the_drain(number: signal.Signals) -> None:
    stop = ShutdownSignal()
    stop.install()
    assert not stop.is_requested
    os.kill(os.getpid(), number)
    await stop.wait()
    assert stop.is_requested
