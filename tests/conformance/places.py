"""Where the checks run: two stacks, and APIs beside their own, each started by the first who asks."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from batchwright.contracts.openai import Profile
from starter.stack.ports import free_port
from tests.clients import asked
from tests.conformance.contract import Place
from tests.e2e.stack import SETTINGS, Addresses, Stack, dev
from tests.integration.stacks import until

# Limits that a check passes with a few bytes; policies that an operator may choose.
TIGHT = {
    "BATCHWRIGHT_MAX_LINES": "20",
    "BATCHWRIGHT_MAX_LINE_BYTES": "4000",
    "BATCHWRIGHT_MAX_EMBEDDING_INPUTS": "5",
    "BATCHWRIGHT_MAX_BATCH_FILE_BYTES": "100000",
    "BATCHWRIGHT_MAX_PART_BYTES": "50000",
    "BATCHWRIGHT_ONE_MODEL_PER_BATCH": "true",
    "BATCHWRIGHT_STRICT_MODELS": "true",
}
_KEYS = {"BATCHWRIGHT_AUTH": "api_key"}


class Places:
    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        self._stacks: dict[bool, Stack] = {}
        self._urls: dict[tuple[Place, Profile], str] = {}

    def stack(self, place: Place) -> Stack:
        """The one with tight limits, or the one that the other places share."""
        tight = place == "tight"
        if tight not in self._stacks:
            settings = TIGHT if tight else {}
            self._stacks[tight] = self._opened.enter_context(dev("--workers", "1", data=None, **settings))
        return self._stacks[tight]

    def url(self, place: Place, profile: Profile) -> str:
        """Of an API in that profile; a batch carries its profile to the workers."""
        stack = self.stack(place)
        if profile is Profile.RELAXED and place != "keys":
            return stack.now.api
        if (place, profile) not in self._urls:
            settings = {"tight": TIGHT, "keys": _KEYS, "ordinary": {}}[place]
            api = _api(_told(stack.now, profile) | settings)
            self._urls[place, profile] = self._opened.enter_context(api)
        return self._urls[place, profile]


@contextmanager
def _api(settings: dict[str, str]) -> Generator[str]:
    port = free_port()
    environment = {**os.environ, **SETTINGS, **settings, "BATCHWRIGHT_API_PORT": str(port)}
    with subprocess.Popen([sys.executable, "-m", "api"], env=environment) as process:
        url = f"http://127.0.0.1:{port}"
        until(lambda: _answers(url))
        yield url
        process.terminate()
        process.wait(120)


def _told(addresses: Addresses, profile: Profile) -> dict[str, str]:
    settings = {
        "database_url": addresses.postgres,
        "temporal_address": addresses.temporal,
        "temporal_namespace": addresses.namespace,
        "storage_dir": str(Path(addresses.data) / "objects"),
        "backends": f'["{addresses.simulator}"]',
        "profile": profile.value,
    }
    return {f"BATCHWRIGHT_{name.upper()}": value for name, value in settings.items()}


def _answers(url: str) -> bool:
    """It is ready, and knows the models, unless it asks for a key first."""
    try:
        if asked(url + "/readyz").status_code != 200:
            return False
        models = asked(url + "/v1/models")
    except httpx.TransportError:
        return False
    return models.status_code == 401 or (models.is_success and bool(models.json()["data"]))
