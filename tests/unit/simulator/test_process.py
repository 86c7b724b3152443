"""The simulator as a process."""

import signal
import subprocess
import sys

import httpx
import pytest

pytestmark = pytest.mark.e2e
COMMAND = [sys.executable, "-m", "batchwright.simulator"]


def test_the_simulator_prints_its_address_and_exits_with_0_at_a_signal() -> None:
    command = [*COMMAND, "--models", "a,b", "--fault", "b:503=1", "--model-latency", "a:latency_ms=1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            url = process.stderr.readline().removeprefix("simulator listening on ").strip()
            with httpx.Client(base_url=url, trust_env=False, timeout=60) as http:
                assert [model["id"] for model in http.get("/v1/models").json()["data"]] == ["a", "b"]
                statuses = [
                    http.post("/v1/completions", json={"model": name, "prompt": "x"}).status_code
                    for name in "ab"
                ]
                assert statuses == [200, 503]
                process.send_signal(signal.SIGTERM)
                assert process.wait(120) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    "arguments",
    [["--models", " , "], ["--fault", "*:explode"]],
    ids=" ".join,
)
def test_a_wrong_option_is_reported_in_one_sentence(arguments: list[str]) -> None:
    ended = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert ended.stderr.startswith("simulator: ")
    assert ended.stderr.count("\n") == 1


def test_a_port_that_does_not_exist_is_refused() -> None:
    command = [*COMMAND, "--port", "65536"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert "less than or equal to 65535" in ended.stderr
