"""Functions of the embedded stack that can be tested without starting its services."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from batchwright.settings import SettingsError, load
from batchwright.settings.unknown_variables import unknown_variables
from batchwright.starter.commands.local.dev import settings_or_exit
from batchwright.starter.embedded_stack import ports, temporal_server
from batchwright.starter.embedded_stack.directory import (
    ProcessIds,
    StackDirectory,
    StackInfo,
    end_leftovers,
    record_processes,
)
from batchwright.starter.embedded_stack.errors import StackError
from batchwright.starter.embedded_stack.ports import claim_ports, free_port, is_free
from batchwright.starter.embedded_stack.restart_loop import RestartLoop
from batchwright.starter.embedded_stack.service_commands import (
    Addresses,
    DevOptions,
    choose_addresses,
    environment,
    exports,
    own_backends,
    temporal_service,
    worker_services,
)
from batchwright.starter.embedded_stack.service_process import (
    ServiceProcess,
    ServiceSpec,
    exit_description,
    log_tail,
)
from batchwright.starter.embedded_stack.terminal import (
    address_panel,
    print_default_limit,
    print_next_commands,
)
from batchwright.starter.output import program_name

PIDS = ProcessIds(dev=1, temporal=2, postgres=3, simulator=4, api=[5], worker=[6, 7])
INFO = StackInfo(
    pages="http://127.0.0.1:8000/ui",
    api="http://127.0.0.1:8000",
    temporal="127.0.0.1:7233",
    namespace="default",
    ui="http://127.0.0.1:8233",
    postgres="postgresql://postgres:secret@127.0.0.1:20000/batchwright",
    simulator="http://127.0.0.1:20001",
    data="/a [dir]",
    pids=PIDS,
    metrics=["http://127.0.0.1:8000/metrics"],
)
ADDRESSES = Addresses(
    api_port=1, temporal_port=2, ui_port=3, backends=("http://b",), simulator_port=None, metrics_ports=(4, 5)
)


def values_of(command: list[str], option: str) -> list[str]:
    return [value for name, value in pairwise(command) if name == option]


def test_the_dev_server_keeps_its_state_in_a_file() -> None:
    part = temporal_service(ADDRESSES, StackDirectory(Path("/a dir")))
    assert (part.working_directory, values_of(part.command, "--db-filename")) == (
        Path("/a dir"),
        ["temporal.db"],
    )


def test_the_dev_server_polls_its_transfer_queue_often() -> None:
    command = temporal_server.dev_server_command("temporal.db", port=1, ui_port=2)
    variables = dict(value.split("=", 1) for value in values_of(command, "--dynamic-config-value"))
    assert int(variables["history.transferProcessorMaxPollRPS"]) >= 100


def test_a_missing_dev_server_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(StackError, match=r"install batchwright\[embedded\]"):
        temporal_server.find_binary()


def test_a_free_port_can_be_listened_on() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)
    assert is_free(port)


def test_a_port_chosen_by_a_live_process_is_not_chosen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "batchwright.starter.embedded_stack.ports"
    choose = f"from {module} import free_port; print(free_port(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", choose], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as another:
        assert another.stdout is not None
        port = int(another.stdout.readline())
        monkeypatch.setattr(ports, "_FIRST", port)
        monkeypatch.setattr(ports, "_LAST", port)
        with pytest.raises(StackError, match="No free TCP port"):
            free_port()
        another.communicate("")
    assert free_port() == port


def test_a_taken_port_is_refused_with_its_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StackError, match=f"Port {port} is in use: choose another with --port"):
            claim_ports({"--port": port, "--ui-port": 0})


def test_all_taken_ports_are_named_together_with_the_options_that_choose_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        first, second = one.getsockname()[1], other.getsockname()[1]
        message = (
            f"Ports {first} and {second} are in use: choose others, or free ones with --port 0 --ui-port 0."
        )
        with pytest.raises(StackError, match=message):
            claim_ports({"--port": first, "--temporal-port": 0, "--ui-port": second})


def test_each_worker_has_a_port_and_a_log_of_its_own() -> None:
    parts = worker_services(ADDRESSES, {"KEPT": "1"})
    assert [(part.name, part.environment["BATCHWRIGHT_METRICS_PORT"]) for part in parts] == [
        ("worker-1", "4"),
        ("worker-2", "5"),
    ]
    assert all(part.environment["KEPT"] == "1" for part in parts)


def test_settings_of_the_user_reach_the_services_but_addresses_are_those_of_the_stack(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_MAX_LINES", "7")
    monkeypatch.setenv("BATCHWRIGHT_DATABASE_URL", "postgresql://production")
    variables = environment(ADDRESSES, StackDirectory(tmp_path), "postgresql://ours")
    assert variables["BATCHWRIGHT_MAX_LINES"] == "7"
    assert variables["BATCHWRIGHT_DATABASE_URL"] == "postgresql://ours"
    assert json.loads(variables["BATCHWRIGHT_BACKENDS"]) == ["http://b"]


def test_a_registry_replaces_the_simulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BATCHWRIGHT_REGISTRY", "models.yaml")
    options = DevOptions(tmp_path, load(registry=None), registry=Path("models.yaml"))
    addresses = choose_addresses(options)
    variables = environment(addresses, StackDirectory(tmp_path), "postgresql://ours")
    assert addresses.simulator is None
    assert variables["BATCHWRIGHT_REGISTRY"] == str(tmp_path / "models.yaml")
    assert "BATCHWRIGHT_BACKENDS" not in variables
    shell = exports(addresses, variables)
    assert f"export BATCHWRIGHT_REGISTRY={tmp_path}/models.yaml\n" in shell
    assert f"export BATCHWRIGHT_CALLBACK_SECRET={variables['BATCHWRIGHT_CALLBACK_SECRET']}\n" in shell


def test_a_registry_is_not_for_a_stack_with_the_simulator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_REGISTRY", "models.yaml")
    variables = environment(ADDRESSES, StackDirectory(tmp_path), "postgresql://ours")
    assert "BATCHWRIGHT_REGISTRY" not in variables


def test_a_shell_with_the_dev_env_of_an_ended_stack_starts_a_simulator_and_calls_back_the_new_stack(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended = choose_addresses(DevOptions(tmp_path, load()))
    text = exports(ended, environment(ended, StackDirectory(tmp_path), "postgresql://ours"))
    for line in text.splitlines():
        name, _, value = line.removeprefix("export ").partition("=")
        monkeypatch.setenv(name, value.strip("'"))
    settings = load()
    assert settings.backends == [ended.simulator]
    assert own_backends(settings) == ()
    variables = environment(ADDRESSES, StackDirectory(tmp_path), "postgresql://ours")
    assert variables["BATCHWRIGHT_CALLBACK_URL"] == ADDRESSES.api
    assert unknown_variables() == {}


def test_backends_of_the_user_are_kept_in_a_shell_with_a_dev_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHWRIGHT_DEV_SIMULATOR", "http://127.0.0.1:20001")
    assert own_backends(load(backends=["http://gpu-1:8000"])) == ("http://gpu-1:8000",)


def test_a_directory_has_one_owner_at_a_time(tmp_path: Path) -> None:
    first, second = StackDirectory(tmp_path), StackDirectory(tmp_path)
    first.open()
    first.write_info(INFO)
    with pytest.raises(StackError, match=rf"already \(pid {os.getpid()}\)"):
        second.open()
    second.close()
    assert StackInfo.model_validate_json((tmp_path / "dev.json").read_text()) == INFO
    first.close()
    assert not (tmp_path / "dev.json").exists()
    second.open()
    second.close()


def test_the_files_with_the_password_are_readable_by_their_owner_only_and_deleted_at_the_end(
    tmp_path: Path,
) -> None:
    directory = StackDirectory(tmp_path)
    directory.open()
    directory.write_info(INFO)
    directory.write_exports("export A=1\n")
    for name in ("dev.json", "dev.env"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    directory.close()
    assert not (tmp_path / "dev.json").exists()
    assert not (tmp_path / "dev.env").exists()


def test_leftovers_are_ended(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as left:
        record_processes(tmp_path / "notes", [left.pid])
        assert end_leftovers(tmp_path / "notes") == 1
        assert not psutil.pid_exists(left.pid)


def test_a_process_that_only_has_a_leftovers_pid_is_spared(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.write_text(json.dumps([{"pid": os.getpid(), "created": 1.0}]))
    assert end_leftovers(notes) == 0


@pytest.mark.parametrize("text", [None, "", "{", '[{"pid": "x"}]'])
def test_an_unreadable_list_of_processes_ends_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "notes").write_text(text)
    assert end_leftovers(tmp_path / "notes") == 0


def test_an_exit_is_described_in_words() -> None:
    assert exit_description(3) == "ended with exit status 3"
    assert exit_description(-9) == "was ended by SIGKILL"


def test_last_lines_of_a_log_are_few_and_never_fail(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert log_tail(log) == ""
    log.write_bytes(b"\xff\n" * 5000 + b"the end\n")
    assert log_tail(log).splitlines()[-1] == "the end"
    assert len(log_tail(log).splitlines()) == 15
    assert log_tail(log, log.stat().st_size) == ""


async def test_only_the_log_of_the_process_that_failed_to_start_is_shown(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    log = tmp_path / "part.log"
    log.write_text("an error of an earlier run\n")
    command = [sys.executable, "-c", "raise SystemExit('a setting is wrong')"]
    part = ServiceProcess(ServiceSpec("part", command, os.environ, never), log, lambda: None)
    with pytest.raises(StackError) as raised:
        await part.start()
    assert raised.value.detail == "a setting is wrong"


class EndingService:
    """A service that cannot be started again. After eight attempts, a start raises KeyError."""

    name, log, pid = "api", Path("/nowhere"), 1

    def __init__(self) -> None:
        self.starts = 0

    async def start(self) -> None:
        self.starts += 1
        raise StackError("api ended.") if self.starts <= 8 else KeyError

    async def ended(self) -> str:
        return "ended"

    async def stop(self, patience_seconds: float) -> None: ...


async def test_the_message_about_a_service_that_keeps_ending_tells_how_often_it_is_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses, said = list[float](), list[str]()

    async def record_pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", record_pause)
    with pytest.raises(KeyError):
        await RestartLoop(EndingService(), said.append).run()
    assert pauses == [0, 0.5, 1, 2, 4, 8, 10, 10, 10]
    assert said[1].startswith("api keeps ending; the pauses before its restarts grow to 10 s. api ended.\n")
    assert len(said) == 2


def test_the_panel_fits_80_columns_and_shows_every_address() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(address_panel(INFO))
    shown = capture.get()
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert str(INFO.pages) in shown.splitlines()[1]
    for value in (INFO.api, INFO.temporal, INFO.ui, INFO.simulator, INFO.data):
        assert str(value) in shown


def test_a_stack_with_keys_says_how_to_make_one() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        print_next_commands(console, INFO, with_keys=True)
    shown = capture.get()
    assert ". '/a [dir]/dev.env'" in shown
    assert "batchwright tenants create default" in shown
    assert "BATCHWRIGHT_API_KEY=$(batchwright keys create default)" in shown


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({}, "at most 10 requests of a model at once. Raise BATCHWRIGHT_MODEL_IN_FLIGHT to send more."),
        ({"BATCHWRIGHT_CAPACITY_FRACTION": "0.5"}, "at most 5 requests of a model at once."),
        ({"BATCHWRIGHT_MODEL_IN_FLIGHT": "10"}, ""),
        ({"BATCHWRIGHT_MODELS": '{"a": {"in_flight": 64}}'}, ""),
    ],
)
def test_the_limit_of_requests_at_once_is_shown_unless_the_user_has_set_it(
    variables: dict[str, str], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    console = Console(width=20)
    with console.capture() as capture:
        print_default_limit(console, load())
    printed = capture.get()
    assert shown in printed
    assert bool(printed) is bool(shown)


def test_the_commands_under_the_panel_are_never_broken_over_lines() -> None:
    console = Console(width=20)
    with console.capture() as capture:
        print_next_commands(console, INFO)
    lines = capture.get().splitlines()
    assert lines[0] == f"PostgreSQL: {INFO.postgres}"
    assert lines[2:4] == [
        "  . '/a [dir]/dev.env'",
        "  batchwright submit FILE --wait",
    ]


def test_a_command_to_copy_names_a_program_with_spaces_in_its_path_as_a_shell_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["/my venv/bin/batchwright"])
    monkeypatch.setenv("PATH", "")
    assert program_name() == "'/my venv/bin/batchwright'"


def test_a_list_setting_that_is_no_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHWRIGHT_BACKENDS", "http://one,http://two")
    with pytest.raises(SettingsError, match="BATCHWRIGHT_BACKENDS is wrong: it is not JSON"):
        load()


def test_dev_and_demo_name_a_misspelt_setting_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_MODEL_IN_FLIGHTS", "7")
    settings_or_exit()
    said = " ".join(capsys.readouterr().err.split())
    assert "BATCHWRIGHT_MODEL_IN_FLIGHTS is not a setting and is ignored." in said
    assert "Did you mean BATCHWRIGHT_MODEL_IN_FLIGHT?" in said
