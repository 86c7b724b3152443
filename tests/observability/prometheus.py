"""Runs a Prometheus server with our rules. It reads the metrics of given processes."""

import json
import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import yaml
from pydantic import BaseModel
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from batchwright.starter.embedded_stack.ports import free_port

ROOT = Path(__file__).parents[2]
RULES = sorted((ROOT / "deploy" / "prometheus").glob("*.yaml"))


class Sample(BaseModel):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(BaseModel):
    result: list[Sample] = []


class _Answer(BaseModel):
    status: str
    data: _Data = _Data()
    error: str = ""


class Prometheus:
    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def ask(self, expr: str) -> list[Sample]:
        """Return the current samples of the expression.

        Raises:
            AssertionError: Prometheus rejects the expression. The message contains the reason.
            httpx.HTTPError: Prometheus cannot answer. For example, it returns 503 while it opens its storage.
        """
        response = self._http.get("/api/v1/query", params={"query": expr})
        if response.is_server_error:
            response.raise_for_status()
        answer = _Answer.model_validate_json(response.content)
        assert answer.status == "success", f"{expr}: {answer.error}"
        return answer.data.result

    def families(self) -> set[str]:
        """Return the names of all metrics that any process declares, even if they have no value."""
        return set(self._http.get("/api/v1/metadata").json()["data"])

    @retry(
        retry=retry_if_exception_type((httpx.HTTPError, AssertionError)),
        wait=wait_fixed(0.25),
        stop=stop_after_delay(300),
        reraise=True,
    )
    def wait(self, least: str) -> None:
        """Wait until the expression `least` has a value. After five minutes, raise AssertionError."""
        assert self.ask(least)


def tool(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not on the PATH; `make test-observability` gets it and runs these tests"
    return found


@contextmanager
def scraping(urls: list[str], folder: Path) -> Generator[Prometheus]:
    """Context manager that runs a Prometheus, and yields it when all `urls` are reachable.

    It reads the metrics at `urls` every second. The first URL is that of the API, the others are of workers.
    """
    config = folder / "prometheus.yml"
    config.write_text(json.dumps(_config(urls)))
    address = f"127.0.0.1:{free_port()}"
    command = [tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [*command, f"--web.listen-address={address}"], stdout=log, stderr=log, env={**os.environ}
        ) as process,
        httpx.Client(base_url=f"http://{address}", timeout=60) as http,
    ):
        try:
            prometheus = Prometheus(http)
            prometheus.wait(f"count(up == 1) == {len(urls)}")
            yield prometheus
        finally:
            process.terminate()


def _config(urls: list[str]) -> dict[str, object]:
    jobs = [("batchwright-api", urls[:1]), ("batchwright-worker", urls[1:])]
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in RULES],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [urlsplit(url).netloc for url in of]}]}
            for name, of in jobs
        ],
    }


def rules() -> list[dict[str, str]]:
    """Return all alerts and recording rules in deploy/prometheus."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]
